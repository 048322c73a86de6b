"""Simulates several steps in flight, as in a pipeline.

A device takes the oldest step whose next op is ready, as CPU workers do: a device that has the
first and the last ops of a step begins the next step while it waits for the last ones. Only so is
the period reached by plans that give a device several stretches of the graph. A staging buffer
serves one step at a time: with one, each device runs step after step.

The interval is that of a caller who begins a step whenever the oldest has ended. It can be longer
than that of steps which all begin at once: an op with which a step begins on a busy device waits
there for all older steps, and so does whatever reads its tensor elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import PlanError
from placewright.plan import check_names
from placewright.simulator.evaluation import build_timeline, simulate
from placewright.simulator.reference import plan_order
from placewright.transforms import contract, unroll

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placewright.plan import Plan
    from placewright.problem import Problem


WINDOWS = 4
"""Steps to simulate for the interval, in multiples of those in flight: a multiple to fill the
pipeline, two that count, and one to drain it."""


@dataclass(frozen=True, eq=False)
class InFlight:
    """Several independent steps in flight, as in a pipeline.

    Args:
        seconds: Until the last step ends, if so many start at once.
        interval: Seconds between the ends of steps, if one begins whenever the oldest has ended; no
            less than the period, since a weight that another device reads is sent in every step.
        peak: The memory peak of each device in bytes, with this many steps in flight.
        overflow: Bytes over the devices' capacity, summed over devices.
    """

    steps: int
    seconds: float
    interval: float
    peak: NDArray[np.int64]
    overflow: int


def simulate_in_flight(problem: Problem, plan: Plan, steps: int) -> InFlight:
    """Time and memory with `steps` steps in flight."""
    if steps < 2:
        raise PlanError(f"{steps} steps in flight: expected at least 2")
    check_names(problem, plan)
    if plan.fusion is not None:
        fused = contract(problem, plan)
        problem, plan = fused.problem, fused.plan
    order = plan_order(problem.arrays, None if plan.priority is None else plan.priority.tolist())
    at_once = unroll(problem, plan, steps, order)
    timeline = build_timeline(at_once.problem, at_once.plan)
    interval = max(_interval(problem, plan, steps, order), simulate(problem, plan).period)
    return InFlight(steps, timeline.step_time, interval, timeline.peak, timeline.overflow)


def _interval(problem: Problem, plan: Plan, steps: int, order: Sequence[int]) -> float:
    """Seconds between the ends of steps that a caller begins one by one."""
    unrolled = unroll(problem, plan, WINDOWS * steps, order, steps)
    timeline = build_timeline(unrolled.problem, unrolled.plan)
    ends = np.zeros(WINDOWS * steps)
    np.maximum.at(ends, unrolled.step, timeline.end)
    ends = np.maximum.accumulate(ends)  # a caller takes results in order
    return float(ends[-steps - 1] - ends[steps - 1]) / ((WINDOWS - 2) * steps)
