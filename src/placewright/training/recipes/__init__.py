"""Recipes: what each system is trained with."""
