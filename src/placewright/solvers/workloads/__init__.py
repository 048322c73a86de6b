"""Solves workloads: several calls with one placement of their weights."""
