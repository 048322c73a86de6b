"""A problem and plans in, step times or a timeline out. `reference.py` states the rules."""

from placewright.simulator.critical_path import (
    Path,
    Piece,
    critical_path,
)
from placewright.simulator.device_loads import Loads, loads
from placewright.simulator.evaluation import (
    InFlight,
    Verdict,
    judge,
    simulate,
    simulate_in_flight,
)

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
