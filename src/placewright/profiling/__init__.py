"""Profiling: measures devices, links and ops of this machine."""
