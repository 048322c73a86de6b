"""Plans for a host that is slower or faster than measured, or for less memory of a GPU.

The time of ops on a host next to a GPU is the least certain prediction: the host shares memory
bandwidth with copies to the GPU, and cores with other processes; and those copies are slower than
alone. So plans are also made as if the host and its links were slower or faster than measured, and
measuring them decides (`selection`). The memory of a GPU is uncertain, too: fragmentation, and what
CUDA graphs keep.
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

PROHIBITIVE = 1e3
"""A factor so large that the host gets no op that another device can run."""
HOST_SCALES = (
    (1.0, 1.0, 1.0),
    (1.0, 1.15, 1.0),
    (1.6, 1.0, 1.0),
    (PROHIBITIVE, 1.0, 1.0),
    (PROHIBITIVE, 1.0, 0.97),
)
"""Factors of the host's op times and of its links' transfer times, and a share of the memory.

The last two only stream weights, which is predicted best.
"""
SLOW_HOST = 1.6, 1.15, 1.0, 2e-4
"""A host that may be slower than measured: times of its ops and of a byte on its links, all of the
memory, and seconds by which it wakes late when something is handed to it or awaited from it.

Where `auto` left a few ops of a step of 3 to 10 ms to the host, each time that host and GPU met
took 0.1 to 0.5 ms longer than predicted (`benchmarks/results/2026-11-runtime.md`).
"""


def host_matters(problem: Problem) -> bool:
    """Whether a host computes beside other devices, by times that were measured."""
    kinds = {device.kind for device in problem.cluster.devices}
    return isinstance(problem.costs, Table) and HOST in kinds and len(kinds) > 1


def scale_host(
    problem: Problem,
    compute_factor: float,
    transfer_factor: float = 1.0,
    memory_share: float = 1.0,
    wake_delay: float = 0.0,
) -> Problem:
    """The problem as if its host took so many times as long as measured, and its links so many.

    Args:
        memory_share: The share of other devices' memory that may be used.
        wake_delay: Seconds by which what an op makes comes later over the host's links.
    """
    costs, cluster = problem.costs, problem.cluster
    if not isinstance(costs, Table) or (
        compute_factor == transfer_factor == memory_share == 1.0 and not wake_delay
    ):
        return problem
    hosts = [device for device in cluster.devices if device.kind == HOST]
    host_names = {device.name for device in hosts}
    columns = host_names | {device.model for device in hosts} | {HOST}
    column_scale = np.array(
        [compute_factor if column in columns else 1.0 for column in costs.columns]
    )
    links = {
        pair: replace(
            link,
            bandwidth=link.bandwidth / transfer_factor,
            handoff_latency=max(link.latency, link.handoff_latency or 0.0) + wake_delay
            if wake_delay
            else link.handoff_latency,
        )
        if host_names & set(pair)
        else link
        for pair, link in cluster.links.items()
    }
    costs = replace(costs, seconds=costs.seconds * column_scale)
    limits = dict(problem.constraints.limits)
    for device in cluster.devices:
        if memory_share < 1 and device.name not in host_names:
            limits[device.name] = int(memory_share * limits.get(device.name, device.memory))
    constraints = replace(problem.constraints, limits=limits)
    cluster = replace(cluster, links=links)
    return replace(problem, cluster=cluster, costs=costs, constraints=constraints)


def host_variants(
    problem: Problem,
    solver: Solver,
    stop: Stop,
    seed: int = 0,
    scales: Sequence[tuple[float, float, float]] = HOST_SCALES,
) -> list[Plan]:
    """The plan that a solver finds for each scale, without duplicates."""
    plans = [solve(scale_host(problem, *scale), solver, stop, seed).plan for scale in scales]
    return list(dict.fromkeys(plans))
