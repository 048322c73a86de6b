"""Basic bounds: the critical path, all the work, the largest unit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.solvers.bounds.relaxation import Relaxation

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.solvers.bounds.aggregates import Aggregates

Ints = NDArray[np.int64]
Seconds = NDArray[np.float64]


def critical_path_bound(problem: Problem) -> float:
    """The longest chain of ops, each on its fastest allowed device, with free communication.

    Proof: an op starts only after every op whose tensor it reads has finished (rules 3 and 4), and
    takes at least its time on its fastest allowed device (rule 1). So by induction along the graph
    no op finishes before the longest such chain that ends in it. Unscheduled ops (weights, states,
    inputs) finish at 0. The step lasts at least until its last op has finished. Sums here run in
    the simulator's order, so rounding cannot lift the bound above it.
    """
    return max(_earliest_finishes(problem)[0])


def critical_path_ops(problem: Problem) -> Ints:
    """The ops of that chain, the last first."""
    finish, predecessor = _earliest_finishes(problem)
    op, chain = int(np.argmax(finish)), []
    while op >= 0:
        chain.append(op)
        op = predecessor[op]
    return np.array(chain, dtype=np.int64)


def _earliest_finishes(problem: Problem) -> tuple[list[float], list[int]]:
    """When each op can finish, and which op it waits for, or -1."""
    a = problem.arrays
    fastest = np.where(
        a.scheduled, np.where(a.allowed, a.compute, np.inf).min(axis=1), 0.0
    ).tolist()
    first_input, sources = a.first_input.tolist(), a.producer[a.inputs].tolist()
    finish: list[float] = []
    predecessor: list[int] = []
    for op, seconds in enumerate(fastest):
        latest_input = max(
            sources[first_input[op] : first_input[op + 1]], key=finish.__getitem__, default=-1
        )
        predecessor.append(latest_input)
        finish.append((finish[latest_input] if latest_input >= 0 else 0.0) + seconds)
    return finish, predecessor


def work_bound(aggregates: Aggregates) -> tuple[float, Seconds]:
    """All the work, divided optimally over the devices: the value of a linear program.

    Returns:
        The bound, and the prices of a second in each group that prove it.

    Proof: a device runs one op at a time (rule 1), so the step, like the period, lasts at least as
    long as every device's load, and a group of equal devices carries at most as many seconds of
    work as it has devices in each second that passes. Every unit of ops that share a device is in
    one group and loads it with its time there. So units choose among groups, which are rows of
    time, and `Relaxation.bound` proves the rest. Dividing units among devices could reach the value
    that we compute (up to rounding), so no other prices prove more.
    """
    groups = aggregates.groups
    load = np.where(np.eye(groups, dtype=bool), aggregates.seconds[:, :, None], 0.0)
    load[~np.isfinite(aggregates.seconds)] = np.inf
    relaxation = Relaxation(load, aggregates.device_count.astype(np.float64), np.zeros(groups))
    seconds, prices = relaxation.best_bound()
    return aggregates.round_down(seconds), prices


def largest_unit_bound(aggregates: Aggregates) -> float:
    """The longest unit of ops that must share a device, on its fastest allowed device.

    Proof: the ops of a unit all run on one device (rule 10), one at a time (rule 1); that device's
    load is at least their sum there, and the step, like the period, is at least that load.
    """
    return aggregates.round_down(float(aggregates.seconds.min(axis=1).max()))
