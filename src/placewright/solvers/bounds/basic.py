"""The plain bounds: a chain of ops, all the work, the largest unit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.solvers.bounds.relaxation import Choices

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.solvers.bounds.aggregates import Layout

Ints = NDArray[np.int64]
Seconds = NDArray[np.float64]


def critical_path(problem: Problem) -> float:
    """The longest chain of ops, each on its fastest allowed device, with free communication.

    Proof: an op starts only after every op whose tensor it reads has finished (rules 3 and 4), and
    takes at least its time on its fastest allowed device (rule 1). So by induction along the graph
    no op finishes before the longest such chain that ends in it. What exists before the step
    (weights, states, inputs) finishes at 0. The step lasts at least until its last op has finished.
    Sums here run in the simulator's own order, so rounding cannot lift the bound above it.
    """
    return max(_finishes(problem)[0])


def critical_chain(problem: Problem) -> Ints:
    """The ops of that chain, the last first."""
    finish, waits = _finishes(problem)
    op, chain = int(np.argmax(finish)), []
    while op >= 0:
        chain.append(op)
        op = waits[op]
    return np.array(chain, dtype=np.int64)


def _finishes(problem: Problem) -> tuple[list[float], list[int]]:
    """When each op can finish, and which op it waits for, or -1."""
    a = problem.arrays
    fastest = np.where(a.turn, np.where(a.allowed, a.compute, np.inf).min(axis=1), 0.0).tolist()
    first, sources = a.first_input.tolist(), a.producer[a.inputs].tolist()
    finish: list[float] = []
    waits: list[int] = []
    for op, seconds in enumerate(fastest):
        last = max(sources[first[op] : first[op + 1]], key=finish.__getitem__, default=-1)
        waits.append(last)
        finish.append((finish[last] if last >= 0 else 0.0) + seconds)
    return finish, waits


def work(layout: Layout) -> tuple[float, Seconds]:
    """All the work, shared out over the devices as well as can be: the value of a linear programme.

    Returns:
        The bound, and the prices of a second in each group that prove it.

    Proof: a device runs one op at a time (rule 1), so the step, like the period, lasts at least as
    long as every device's load, and a group of equal devices carries at most as many seconds of
    work as it has devices in each second that passes. Every unit of ops that share a device is in
    one group and loads it with its time there. So units choose among groups, which are rows of
    time, and `Choices.bound` proves the rest. Dividing units among devices could reach the value
    that we compute (up to rounding), so no other prices prove more.
    """
    groups = layout.groups
    load = np.where(np.eye(groups, dtype=bool), layout.seconds[:, :, None], 0.0)
    load[~np.isfinite(layout.seconds)] = np.inf
    choices = Choices(load, layout.count.astype(np.float64), np.zeros(groups))
    seconds, prices = choices.best()
    return layout.rounded_down(seconds), prices


def largest_unit(layout: Layout) -> float:
    """The longest unit of ops that must share a device, on its fastest allowed device.

    Proof: the ops of a unit all run on one device (rule 10), one at a time (rule 1); that device's
    load is at least their sum there, and the step, like the period, is at least that load.
    """
    return layout.rounded_down(float(layout.seconds.min(axis=1).max()))
