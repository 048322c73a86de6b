"""HEFT, heterogeneous earliest finish time: Topcuoglu, Hariri and Wu 2002, IEEE TPDS 13(3)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from placewright.scheduling.list_scheduler import Bytes, ListSchedule
from placewright.scheduling.ranks import upward_ranks
from placewright.solvers.memory_retry import judge_schedule

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.solvers.search import Search


@dataclass(frozen=True)
class HEFT:
    """Ops by falling upward rank, each where it finishes first, in a gap if one is wide enough.

    The paper models neither memory nor contention of channels. We exclude devices that the op would
    overfill, which changes nothing where memory is ample.

    Args:
        contended: Whether transfers wait for their channel in the schedule.
    """

    contended: bool = False

    @property
    def name(self) -> str:
        return "heft-contended" if self.contended else "heft"

    def run(self, search: Search) -> None:
        judge_schedule(search, partial(schedule, search.problem, self.contended))


def schedule(
    problem: Problem, contended: bool = False, memory_margin: Bytes | None = None
) -> ListSchedule:
    """HEFT's schedule, which estimates the step time."""
    a = problem.arrays
    list_schedule = ListSchedule(problem, contended, memory_margin)
    # Equal ranks go by position, which keeps ops without cost in a topological order.
    order = np.argsort(-upward_ranks(a), kind="stable")
    for op in order[a.scheduled[order]].tolist():
        list_schedule.place(op)
    return list_schedule
