"""Simulates plans: step times of batches, and timelines. `reference.py` states the rules."""

from placewright.simulator.batch_evaluation import (
    EvaluatePlans,
    evaluate_on_workers,
    judge,
    verdict_of,
)
from placewright.simulator.critical_path import (
    CriticalPath,
    PathSegment,
    find_critical_path,
)
from placewright.simulator.device_loads import Loads, loads
from placewright.simulator.evaluation import Verdict, judge_batch, simulate
from placewright.simulator.steps_in_flight import InFlight, simulate_in_flight

RULES_VERSION = 1
"""Raised when a rule changes what a plan takes: stored times of another version do not compare."""

__all__ = [
    "RULES_VERSION",
    "CriticalPath",
    "EvaluatePlans",
    "InFlight",
    "Loads",
    "PathSegment",
    "Verdict",
    "evaluate_on_workers",
    "find_critical_path",
    "judge",
    "judge_batch",
    "loads",
    "simulate",
    "simulate_in_flight",
    "verdict_of",
]
