"""Searches that judge thousands of plans: walks, local search and populations."""
