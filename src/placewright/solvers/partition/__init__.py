"""Graph partitioners as baselines, and the repair of placements over memory."""
