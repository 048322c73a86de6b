"""Runtime: a model and a plan in, a plan that runs, is measured, or is handed to others out."""
