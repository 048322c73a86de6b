"""Simulator rules that others published, for comparison only; no solver uses them."""

from placewright.simulator.published.placeto import placeto_seconds

__all__ = ["placeto_seconds"]
