"""Repair: changes a placement that is over memory as little as possible until it fits.

The simulator tells which devices are over capacity, when, and which tensors are there then. From
each of them we move runs of groups that free enough and cost least elsewhere, in seconds of work
and of transfers. Then we simulate again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.plan import Plan
from placewright.solvers.partition.movable_groups import MovableGroups
from placewright.solvers.partition.rebalance import Rebalancing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    from placewright.problem import Problem

_ROUNDS = 24  # simulations at most
_PATIENCE = 8  # simulations in a row that are no better


def repair(
    problem: Problem,
    device: ArrayLike,
    priority: ArrayLike | None = None,
    staging: ArrayLike | None = None,
) -> NDArray[np.int32]:
    """A placement like the given one that fits, or with as little overflow as possible.

    Args:
        device: A device for each op; it must keep the problem's constraints.
        priority: The order of ops, on which memory depends.
        staging: Its staging buffers. They do not change, and remain large enough.

    Returns:
        The best by (overflow, objective) of the given placement and those tried.
    """
    placement = np.ascontiguousarray(device, dtype=np.int32)
    candidates = [placement, *repair_rounds(problem, placement, priority, staging)]
    plans = len(candidates)
    verdict = simulator.judge(
        problem,
        np.stack(candidates),
        None if priority is None else np.repeat(np.atleast_2d(priority), plans, axis=0),
        None if staging is None else np.repeat(np.atleast_2d(staging), plans, axis=0),
    )
    return candidates[verdict.best()]


def repair_rounds(
    problem: Problem,
    device: NDArray[np.int32],
    priority: ArrayLike | None = None,
    staging: ArrayLike | None = None,
) -> Iterator[NDArray[np.int32]]:
    """Successive placements towards one that fits; none if the given one does."""
    a = problem.arrays
    rebalancing: Rebalancing | None = None
    least_overflow, stalled = np.inf, 0
    memory_margin = previous = np.zeros(a.devices, dtype=np.int64)
    is_changed = np.zeros(a.devices, dtype=bool)
    for _ in range(_ROUNDS):
        timeline = simulator.simulate(problem, Plan.of(problem, device, priority, staging=staging))
        excess = np.maximum(timeline.peak - timeline.capacity, 0)
        least_overflow, stalled = (
            (float(excess.sum()), 0)
            if excess.sum() < least_overflow
            else (least_overflow, stalled + 1)
        )
        if not excess.any() or stalled >= _PATIENCE:
            return
        if rebalancing is None:
            buffers = None if staging is None else np.asarray(staging, dtype=np.int64).ravel()
            rebalancing = Rebalancing.of(MovableGroups.of(problem, device, buffers))
        # The bytes that a move frees and takes are estimates: where they were wrong, free more.
        underestimated = is_changed & (excess > 0) & (2 * excess > previous)
        memory_margin = np.where(
            underestimated, 2 * memory_margin + a.capacity // 64, memory_margin
        )
        previous = excess
        is_changed = rebalancing.relieve(timeline, memory_margin)
        if not is_changed.any():
            return
        device = rebalancing.device_of[rebalancing.groups.group_of].astype(np.int32)
        yield device
