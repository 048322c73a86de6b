"""A problem on this machine in, plans that rely on its host more and less out, to be measured.

What a host computes beside a GPU is the least certain of all predictions: it shares memory with the
copies to the GPU, and cores with whoever else is there. So plans are also made as if the host were
slower or faster than measured, and what is measured decides (`ranking`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from placewright.cluster import HOST
from placewright.costs import Table
from placewright.solvers import solve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.solvers import Solver, Stop

LEANS = (1.0, 1.6, 0.6)
"""The host's seconds, times measured."""


def leans(problem: Problem) -> bool:
    """Whether a host computes beside other devices, by times that were measured."""
    kinds = {device.kind for device in problem.cluster.devices}
    return isinstance(problem.costs, Table) and HOST in kinds and len(kinds) > 1


def lean(problem: Problem, factor: float) -> Problem:
    """The problem as if its host took so many times as long as measured."""
    costs = problem.costs
    if not isinstance(costs, Table) or factor == 1.0:
        return problem
    hosts = {
        name
        for device in problem.cluster.devices
        if device.kind == HOST
        for name in (device.name, device.model, device.kind)
    }
    scale = np.array([factor if column in hosts else 1.0 for column in costs.columns])
    return replace(problem, costs=replace(costs, seconds=costs.seconds * scale))


def leaning_plans(
    problem: Problem, solver: Solver, stop: Stop, seed: int = 0, factors: Sequence[float] = LEANS
) -> list[Plan]:
    """The plan that a solver finds for each leaning, different ones once."""
    found = [solve(lean(problem, factor), solver, stop, seed).plan for factor in factors]
    return list(dict.fromkeys(found))
