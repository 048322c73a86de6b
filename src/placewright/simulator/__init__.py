"""A problem and plans in, step times or a timeline out. `reference.py` states the rules."""

from placewright.simulator.judging import InFlight, Verdict, judge, simulate, simulate_in_flight
from placewright.simulator.loads import Loads, loads
from placewright.simulator.path import Path, Piece, critical_path

__all__ = [
    "InFlight",
    "Loads",
    "Path",
    "Piece",
    "Verdict",
    "critical_path",
    "judge",
    "loads",
    "simulate",
    "simulate_in_flight",
]
