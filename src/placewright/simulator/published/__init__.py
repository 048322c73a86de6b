"""Rules that others published, for comparison with ours alone; nothing is planned by them."""

from placewright.simulator.published.placeto import placeto_seconds

__all__ = ["placeto_seconds"]
