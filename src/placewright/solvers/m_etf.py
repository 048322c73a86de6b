"""m-ETF, earliest task first within memory: Jeon et al. 2020, "Baechi", SoCC.

After Hwang et al. 1989, SIAM Journal on Computing 18(2).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from placewright.scheduling.list_scheduler import Bytes, Listing
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
    there against its fastest device, which for equal devices is the paper's rule. Ties go to the
    higher upward rank. An op that fits nowhere goes where least is missing.

    Args:
        contended: Whether the schedule reckons with transfers that wait for their channel.
    """

    contended: bool = True

    @property
    def name(self) -> str:
        return "m-etf" if self.contended else "m-etf-free"

    def run(self, search: Search) -> None:
        make = partial(schedule, search.problem, None, contended=self.contended)
        judge_schedule(search, lambda kept_back: make(kept_back=kept_back))


def schedule(
    problem: Problem,
    favourite: NDArray[np.int64] | None = None,
    kept_back: Bytes | None = None,
    contended: bool = True,
) -> Listing:
    """The list schedule of m-ETF, or with each op's favourite child (-1 for none) that of m-SCT.

    A device that has just run an op waits for the op's favourite child: it takes another op first
    only if that one is urgent, which means that it could by then start on any device.
    """
    a = problem.arrays
    listing = Listing(problem, contended, kept_back)
    fastest = np.where(a.allowed, a.compute, np.inf).min(axis=1, keepdims=True)
    late = np.where(a.allowed, a.compute - fastest, np.inf)
    rank = np.empty(a.ops, dtype=np.int64)
    rank[np.argsort(-upward_ranks(problem), kind="stable")] = np.arange(a.ops)
    listing.earliest_first(late, rank, favourite)
    return listing
