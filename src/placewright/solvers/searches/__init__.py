"""Metaheuristics: annealing, local search, genetic search, cross-entropy and fusion search."""
