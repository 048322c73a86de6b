"""A problem on this machine in, plans that rely on its host or memory more and less out.

They are to be measured.

What a host computes beside a GPU is the least certain of all predictions: it shares memory with the
copies to the GPU, and cores with whoever else is there; and those copies are slower than alone. So
plans are also made as if the host and its links were slower or faster than measured, and what is
measured decides (`ranking`). What a GPU's memory holds beside a plan's tensors is uncertain, too:
pieces between them, and what CUDA graphs keep.
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

NEVER = 1e3
"""So slow that nothing is left to it that another device can do."""
LEANS = ((1.0, 1.0, 1.0), (1.0, 1.15, 1.0), (1.6, 1.0, 1.0), (NEVER, 1.0, 1.0), (NEVER, 1.0, 0.97))
"""The seconds of the host's ops and of a byte on its links, times measured; a share of the memory.

The last are streaming alone, which is predicted best: nothing can go wrong on the host.
"""
SLOW = 1.6, 1.15, 1.0, 2e-4
"""A host that may be slower than measured: times of its ops and of a byte on its links, all of the
memory, and seconds by which it wakes late when something is handed to it or awaited from it.

Where `auto` left a few ops of a step of 3 to 10 ms to the host, each time that host and GPU met
took 0.1 to 0.5 ms longer than predicted (`benchmarks/results/2026-11-runtime.md`).
"""


def leans(problem: Problem) -> bool:
    """Whether a host computes beside other devices, by times that were measured."""
    kinds = {device.kind for device in problem.cluster.devices}
    return isinstance(problem.costs, Table) and HOST in kinds and len(kinds) > 1


def lean(
    problem: Problem, factor: float, carried: float = 1.0, memory: float = 1.0, late: float = 0.0
) -> Problem:
    """The problem as if its host took so many times as long as measured, and its links so many.

    Args:
        memory: The share of other devices' memory that may be used.
        late: Seconds by which what an op makes comes later over the host's links.
    """
    costs, cluster = problem.costs, problem.cluster
    if not isinstance(costs, Table) or (factor == carried == memory == 1.0 and not late):
        return problem
    hosts = [device for device in cluster.devices if device.kind == HOST]
    names = {device.name for device in hosts}
    columns = names | {device.model for device in hosts} | {HOST}
    scale = np.array([factor if column in columns else 1.0 for column in costs.columns])
    links = {
        pair: replace(
            link,
            bandwidth=link.bandwidth / carried,
            handing=max(link.latency, link.handing or 0.0) + late if late else link.handing,
        )
        if names & set(pair)
        else link
        for pair, link in cluster.links.items()
    }
    costs = replace(costs, seconds=costs.seconds * scale)
    limits = dict(problem.constraints.limits)
    for device in cluster.devices:
        if memory < 1 and device.name not in names:
            limits[device.name] = int(memory * limits.get(device.name, device.memory))
    constraints = replace(problem.constraints, limits=limits)
    cluster = replace(cluster, links=links)
    return replace(problem, cluster=cluster, costs=costs, constraints=constraints)


def leaning_plans(
    problem: Problem,
    solver: Solver,
    stop: Stop,
    seed: int = 0,
    factors: Sequence[tuple[float, float, float]] = LEANS,
) -> list[Plan]:
    """The plan that a solver finds for each leaning, different ones once."""
    found = [solve(lean(problem, *each), solver, stop, seed).plan for each in factors]
    return list(dict.fromkeys(found))
