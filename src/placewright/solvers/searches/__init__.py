"""Metaheuristics: annealing, local search, genetic search, cross-entropy, population annealing
and fusion search."""
