"""Recipes: the training settings of each system."""
