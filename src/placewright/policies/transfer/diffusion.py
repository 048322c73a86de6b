"""Kernels: a problem's groups in, in several senses how near each is to each other, out.

What a graph network hears of a placement is where a group's neighbours are, and theirs. One whose
devices have no number must treat all of them alike, so what it hears of a device is linear in who
is there: rounds of messages are then powers of one matrix, known before any group is placed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.scheduling.batched_schedules import Course

SENSES = ("sources", "readers", "same source", "same reader", "4 rounds", "16 rounds")


def kernels(course: Course) -> NDArray[np.float32]:
    """Senses × groups × groups: shares, which add up to 1 for each group that has such a neighbour.

    Sources, readers and rounds weigh by seconds on links; a group is not its own neighbour.
    """
    a, groups = course.problem.arrays, len(course.grouping)
    group = course.grouping.group.astype(np.int64)
    reader = np.repeat(np.arange(a.ops), np.diff(a.first_input))
    made = a.producer[a.inputs]
    source, target = group[made], group[reader]
    kept = (source != target) & a.turn[made]
    seconds = np.zeros((groups, groups))
    least = 1e-3 * float(course.mean_transfer.mean()) + 1e-30
    weight = course.mean_transfer[a.inputs] + least
    np.add.at(seconds, (target[kept], source[kept]), weight[kept])
    linked = (seconds > 0).astype(np.float64)
    step = _shares(seconds + seconds.T)
    four = np.linalg.matrix_power(step, 4)
    found = (
        seconds,
        seconds.T,
        linked @ linked.T,
        linked.T @ linked,
        four,
        np.linalg.matrix_power(four, 4),
    )
    return np.stack([_shares(each * ~np.eye(groups, dtype=bool)) for each in found]).astype(
        np.float32
    )


def through(course: Course) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Groups: the longest way from the graph's beginning to one's end, and that to the graph's end.

    Both as shares of the longest way of all, with transfers at their mean.
    """
    a = course.problem.arrays
    mean = np.where(a.allowed, a.compute, 0.0).sum(axis=1) / a.allowed.sum(axis=1)
    own = np.where(a.turn, mean, 0.0)
    before = np.zeros(a.ops)
    for op in range(a.ops):
        read = a.inputs[a.first_input[op] : a.first_input[op + 1]]
        if len(read):
            source = a.producer[read]
            sent = np.where(a.turn[source], course.mean_transfer[read], 0.0)
            before[op] = (before[source] + sent).max()
        before[op] += own[op]
    longest = max(float(course.rank[a.turn].max(initial=0.0)), 1e-30)
    groups = len(course.grouping)
    begin, end = np.zeros(groups), np.zeros(groups)
    turning = course.grouping.group[a.turn]
    np.maximum.at(begin, turning, before[a.turn])
    np.maximum.at(end, turning, (before + course.rank - own)[a.turn])
    return begin / longest, end / longest


def _shares(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-30)
    return shares
