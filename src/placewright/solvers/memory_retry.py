"""Tries again with less memory where a plan turns out not to fit.

Solvers that fill devices estimate memory; the simulator decides. Where it finds a device over its
capacity, they place again with a margin of memory left unused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.scheduling.list_scheduler import ListSchedule
    from placewright.simulator import Verdict
    from placewright.solvers.search import Search

Bytes = NDArray[np.int64]

_ATTEMPTS = 4  # to make a schedule fit whose estimate of memory was too low
_MIN_SHARE = 64  # a device over its capacity loses one part in 64 of it, or more


def raise_margin(margin: Bytes, overflow: Bytes, capacity: Bytes, parts: int = _MIN_SHARE) -> Bytes:
    """The margin of each device for the next attempt: twice the last one plus the overflow.

    Weights are large, so a device over its capacity loses at least one part in `parts` of it.
    """
    return 2 * margin + np.where(overflow, np.maximum(overflow, capacity // parts), 0)


def place_with_margin(
    search: Search,
    place: Callable[[Bytes], Bytes],
    attempts: int = _ATTEMPTS,
    parts: int = _MIN_SHARE,
) -> None:
    """Place until everything fits, with more memory left unused each time.

    Args:
        place: Evaluates plans that leave these bytes of each device unused; returns the bytes by
            which the best of them is over each device's capacity.
    """
    capacity = search.problem.arrays.capacity
    margin = np.zeros(len(capacity), dtype=np.int64)
    for _ in range(attempts):
        overflow = place(margin)
        if search.over or not overflow.any():
            return
        margin = raise_margin(margin, overflow, capacity, parts)


def judge_schedule(search: Search, schedule: Callable[[Bytes], ListSchedule]) -> None:
    """Evaluate a schedule's placement, with the schedule's order and with the graph's.

    Args:
        schedule: Makes a schedule that leaves these bytes of each device unused.
    """
    a = search.problem.arrays

    def place(margin: Bytes) -> Bytes:
        list_schedule = schedule(margin)
        placement = list_schedule.placement(search.problem)
        verdict = search.judge(
            np.stack([placement, placement]), np.stack([list_schedule.start, np.arange(a.ops)])
        )
        return best_overflow(verdict, a.capacity)

    place_with_margin(search, place)


def best_overflow(verdict: Verdict, capacity: Bytes) -> Bytes:
    """Bytes of the best plan over each device's capacity; 0 where no plan was evaluated."""
    if not len(verdict.value):  # the search was over
        return np.zeros_like(capacity)
    overflow: Bytes = verdict.excess[verdict.best()]
    return overflow
