"""m-ETF, earliest task first within memory: Jeon et al. 2020, "Baechi", SoCC.

After Hwang et al. 1989, SIAM Journal on Computing 18(2).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from placewright.scheduling.list_scheduler import Bytes, ListSchedule
from placewright.scheduling.ranks import upward_ranks
from placewright.solvers.memory_retry import judge_schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.solvers.search import Search


@dataclass(frozen=True)
class METF:
    """Of all ready ops and devices with memory left, always the pair that can start first.

    The paper's devices are equal. On unequal ones a start counts later by the time the op loses
    there compared with its fastest device; for equal devices this is the paper's rule. Ties go to
    the higher upward rank. An op that fits nowhere goes to the device that lacks least.

    Args:
        contended: Whether transfers wait for their channel in the schedule.
    """

    contended: bool = True

    @property
    def name(self) -> str:
        return "m-etf" if self.contended else "m-etf-free"

    def run(self, search: Search) -> None:
        make_schedule = partial(schedule, search.problem, None, contended=self.contended)
        judge_schedule(search, lambda memory_margin: make_schedule(memory_margin=memory_margin))


def schedule(
    problem: Problem,
    favourite: NDArray[np.int64] | None = None,
    memory_margin: Bytes | None = None,
    contended: bool = True,
) -> ListSchedule:
    """The list schedule of m-ETF, or with each op's favourite child (-1 for none) that of m-SCT.

    A device that has just run an op waits for the op's favourite child: it takes another op first
    only if that one is urgent: by then it could start on any device.
    """
    a = problem.arrays
    list_schedule = ListSchedule(problem, contended, memory_margin)
    fastest = np.where(a.allowed, a.compute, np.inf).min(axis=1, keepdims=True)
    delay = np.where(a.allowed, a.compute - fastest, np.inf)
    rank = np.empty(a.ops, dtype=np.int64)
    rank[np.argsort(-upward_ranks(a), kind="stable")] = np.arange(a.ops)
    list_schedule.earliest_first(delay, rank, favourite)
    return list_schedule
