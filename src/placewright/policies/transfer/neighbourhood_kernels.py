"""Diffusion kernels: how close the groups of a problem are, by several measures.

A graph network learns from messages where a group's neighbours are placed, and their neighbours. If
devices have no index, it must treat all of them alike, so messages about a device are linear in the
groups on it: rounds of messages are then powers of one matrix, known before any group is placed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.scheduling.batched_schedules import ScheduleOrder

NEIGHBOURHOODS = ("sources", "readers", "same source", "same reader", "4 rounds", "16 rounds")


def diffusion_kernels(order: ScheduleOrder) -> NDArray[np.float32]:
    """Kernels × groups × groups: shares that sum to 1 for each group with such a neighbour.

    Sources, readers and rounds are weighted by transfer seconds; a group is not its own neighbour.
    """
    a, groups = order.problem.arrays, len(order.grouping)
    group = order.grouping.group.astype(np.int64)
    producers = a.producer[a.inputs]
    source, target = group[producers], group[a.reader]
    crossing = (source != target) & a.scheduled[producers]
    seconds = np.zeros((groups, groups))
    min_weight = 1e-3 * float(order.mean_transfer.mean()) + 1e-30
    weight = order.mean_transfer[a.inputs] + min_weight
    np.add.at(seconds, (target[crossing], source[crossing]), weight[crossing])
    is_linked = (seconds > 0).astype(np.float64)
    transition = _normalise_rows(seconds + seconds.T)
    four_rounds = np.linalg.matrix_power(transition, 4)
    weights = (
        seconds,
        seconds.T,
        is_linked @ is_linked.T,
        is_linked.T @ is_linked,
        four_rounds,
        np.linalg.matrix_power(four_rounds, 4),
    )
    return np.stack(
        [_normalise_rows(kernel * ~np.eye(groups, dtype=bool)) for kernel in weights]
    ).astype(np.float32)


def path_positions(order: ScheduleOrder) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Groups: the longest path from the start of the graph to a group's end, and through it.

    Both as shares of the longest path of all, with mean transfers.
    """
    a = order.problem.arrays
    mean = np.where(a.allowed, a.compute, 0.0).sum(axis=1) / a.allowed.sum(axis=1)
    op_seconds = np.where(a.scheduled, mean, 0.0)
    path_to = np.zeros(a.ops)
    for op in range(a.ops):
        tensors = a.inputs[a.first_input[op] : a.first_input[op + 1]]
        if len(tensors):
            source = a.producer[tensors]
            transfer_seconds = np.where(a.scheduled[source], order.mean_transfer[tensors], 0.0)
            path_to[op] = (path_to[source] + transfer_seconds).max()
        path_to[op] += op_seconds[op]
    longest = max(float(order.rank[a.scheduled].max(initial=0.0)), 1e-30)
    groups = len(order.grouping)
    path_before, path_through = np.zeros(groups), np.zeros(groups)
    scheduled_groups = order.grouping.group[a.scheduled]
    np.maximum.at(path_before, scheduled_groups, path_to[a.scheduled])
    np.maximum.at(path_through, scheduled_groups, (path_to + order.rank - op_seconds)[a.scheduled])
    return path_before / longest, path_through / longest


def _normalise_rows(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-30)
    return shares
