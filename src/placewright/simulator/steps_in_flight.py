"""Simulates several steps in flight at once, as in a pipeline.

A device takes the oldest step that has an op ready, as CPU workers do: a device that has the first
and the last ops of a step begins the next step while it waits for the last ones. Only so is the
period reached by plans that give a device several stretches of the graph. A staging buffer serves
one step at a time: with one, each device runs step after step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import PlanError
from placewright.plan import check_names
from placewright.simulator.evaluation import build_timeline, simulate
from placewright.simulator.reference import plan_order
from placewright.transforms import contract, unroll

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.plan import Plan
    from placewright.problem import Problem


@dataclass(frozen=True, eq=False)
class InFlight:
    """Several independent steps that start at once, as in a pipeline.

    Args:
        seconds: Until the last step ends.
        interval: Seconds between the ends of the first and the last step, per step; no less than
            the period, since a weight that another device reads is sent in every step.
        peak: The memory peak of each device in bytes, with this many steps in flight.
        overflow: Bytes over the devices' capacity, summed over devices.
    """

    steps: int
    seconds: float
    interval: float
    peak: NDArray[np.int64]
    overflow: int


def simulate_in_flight(problem: Problem, plan: Plan, steps: int) -> InFlight:
    """Time and memory of `steps` steps in flight at once."""
    if steps < 2:
        raise PlanError(f"{steps} steps in flight: expected at least 2")
    check_names(problem, plan)
    if plan.fusion is not None:
        fused = contract(problem, plan)
        problem, plan = fused.problem, fused.plan
    order = plan_order(problem.arrays, None if plan.priority is None else plan.priority.tolist())
    unrolled, unrolled_plan, original = unroll(problem, plan, steps, order)
    if plan.staging is None or not (plan.staging >= 0).any():
        unrolled = replace(unrolled, discipline="ready")
    timeline = build_timeline(unrolled, unrolled_plan)
    step = np.zeros(len(original), dtype=np.int64)
    occurrences = np.zeros(len(problem.graph), dtype=np.int64)
    for at, op in enumerate(original):
        step[at] = occurrences[op]
        occurrences[op] += 1
    ends = np.zeros(steps)
    np.maximum.at(ends, step, timeline.end)
    interval = max(float(ends[-1] - ends[0]) / (steps - 1), simulate(problem, plan).period)
    return InFlight(steps, timeline.step_time, interval, timeline.peak, timeline.overflow)
