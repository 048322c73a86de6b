"""Metaheuristics that judge thousands of plans: annealing, local search and populations."""
