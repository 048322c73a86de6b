"""A problem and plans in, step times or a timeline out. `reference.py` states the rules."""

from placewright.simulator.judging import Verdict, judge, simulate

__all__ = ["Verdict", "judge", "simulate"]
