"""Contiguous splits by dynamic programming: over the cuts of an order, and over ideals."""
