"""Reads the public workload formats of earlier papers."""
