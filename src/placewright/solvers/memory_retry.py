"""Judges list schedules, and tries again with less memory where one does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.scheduling.list_scheduler import Bytes, ListSchedule
    from placewright.solvers.search import Search

_TRIES = 4  # to make a schedule fit whose estimate of memory was too low


def judge_schedule(search: Search, schedule: Callable[[Bytes], ListSchedule]) -> None:
    """Judge a schedule's placement, with its own order and with none.

    Args:
        schedule: Makes one that keeps these bytes of each device back. The ledger only estimates
            memory: where the simulator finds too much, we try again with that much kept back.
    """
    a = search.problem.arrays
    kept_back = np.zeros(a.devices, dtype=np.int64)
    for _ in range(_TRIES):
        listing = schedule(kept_back)
        placement = listing.placement(search.problem)
        verdict = search.judge(
            np.stack([placement, placement]), np.stack([listing.start, np.arange(a.ops)])
        )
        if search.over:
            return
        over = np.maximum(verdict.peak[verdict.best()] - a.capacity, 0)
        if not over.any():
            return
        # Weights are large steps: keep back a share worth having, and more each time.
        kept_back = 2 * kept_back + np.where(over, np.maximum(over, a.capacity // 64), 0)
