"""Repair: a placement that may be over memory in, one that fits and differs little out.

The simulator says which devices are over, when, and what is there then. From each of them we take
stretches of pieces that free enough and do the least harm elsewhere: seconds of work and of
transfers. Then the simulator looks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.plan import Plan
from placewright.solvers.partition.movable_groups import Pieces
from placewright.solvers.partition.rebalance import Relief

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    from placewright.problem import Problem

_ROUNDS = 24  # simulations at most
_PATIENCE = 8  # of them in a row that are no better


def repair(
    problem: Problem,
    device: ArrayLike,
    priority: ArrayLike | None = None,
    staging: ArrayLike | None = None,
) -> NDArray[np.int32]:
    """A placement like the given one that is within memory, or over by as little as we can.

    Args:
        device: A device for each op; it must keep the problem's constraints.
        priority: The order that it will run in, which memory depends on.
        staging: Its staging rooms. They stay as they are, and remain large enough.

    Returns:
        Of the given placement and those tried the best by (bytes over, objective).
    """
    given = np.ascontiguousarray(device, dtype=np.int32)
    tried = [given, *rounds(problem, given, priority, staging)]
    plans = len(tried)
    verdict = simulator.judge(
        problem,
        np.stack(tried),
        None if priority is None else np.repeat(np.atleast_2d(priority), plans, axis=0),
        None if staging is None else np.repeat(np.atleast_2d(staging), plans, axis=0),
    )
    return tried[verdict.best()]


def rounds(
    problem: Problem,
    device: NDArray[np.int32],
    priority: ArrayLike | None = None,
    staging: ArrayLike | None = None,
) -> Iterator[NDArray[np.int32]]:
    """Placement after placement on the way to one that fits; none if the given one does."""
    a = problem.arrays
    relief: Relief | None = None
    least, since = np.inf, 0
    kept_back = before = np.zeros(a.devices, dtype=np.int64)
    touched = np.zeros(a.devices, dtype=bool)
    for _ in range(_ROUNDS):
        timeline = simulator.simulate(problem, Plan.of(problem, device, priority, staging=staging))
        over = np.maximum(timeline.peak - timeline.capacity, 0)
        least, since = (float(over.sum()), 0) if over.sum() < least else (least, since + 1)
        if not over.any() or since >= _PATIENCE:
            return
        if relief is None:
            rooms = None if staging is None else np.asarray(staging, dtype=np.int64).ravel()
            relief = Relief.of(Pieces.of(problem, device, rooms))
        # We only estimate what a move frees and takes: where that was wrong, ask for more.
        wrong = touched & (over > 0) & (2 * over > before)
        kept_back = np.where(wrong, 2 * kept_back + a.capacity // 64, kept_back)
        before = over
        touched = relief.relieve(timeline, kept_back)
        if not touched.any():
            return
        device = relief.place[relief.pieces.of_op].astype(np.int32)
        yield device
