"""Graph partitioners as other people use them, and the repair of placements over memory."""
