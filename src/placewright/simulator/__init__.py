"""A problem and plans in, step times or a timeline out. `reference.py` states the rules."""

from placewright.simulator.judging import InFlight, Verdict, judge, simulate, simulate_in_flight

__all__ = ["InFlight", "Verdict", "judge", "simulate", "simulate_in_flight"]
