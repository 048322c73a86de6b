"""Renders results for the terminal and as JSON."""
