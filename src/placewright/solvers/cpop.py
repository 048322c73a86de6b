"""CPoP, critical path on a processor: Topcuoglu, Hariri and Wu 2002, IEEE TPDS 13(3)."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from placewright.scheduling.list_scheduler import Bytes, Listing
from placewright.scheduling.ranks import Seconds, mean_seconds, mean_transfer, upward_ranks
from placewright.solvers.memory_retry import judge_schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.solvers.search import Search


@dataclass(frozen=True)
class CPoP:
    """The critical path on the one device that runs it fastest, all else where it finishes first.

    Of the ready ops always the one with the longest way through it, from the graph's start to its
    end. The paper knows neither memory nor waiting for a channel. We leave out devices that the op
    would overfill, be it on the critical path.

    Args:
        contended: Whether the schedule reckons with transfers that wait for their channel.
    """

    contended: bool = False

    @property
    def name(self) -> str:
        return "cpop-contended" if self.contended else "cpop"

    def run(self, search: Search) -> None:
        judge_schedule(search, partial(schedule, search.problem, self.contended))


def schedule(problem: Problem, contended: bool = False, kept_back: Bytes | None = None) -> Listing:
    """CPoP's own schedule, with its own estimate of the step time."""
    a = problem.arrays
    listing = Listing(problem, contended, kept_back)
    upward, downward = upward_ranks(problem), downward_ranks(problem)
    critical = np.zeros(a.ops, dtype=bool)
    critical[critical_path(problem, upward)] = True
    processor = _fastest(problem, critical)
    reader = np.repeat(np.arange(a.ops), np.diff(a.first_input))
    waiting = np.bincount(reader[a.turn[a.producer[a.inputs]]], minlength=a.ops)
    through = upward + downward
    ready = [(-through[op], op) for op in np.flatnonzero(a.turn & (waiting == 0)).tolist()]
    heapq.heapify(ready)
    while ready:
        _, op = heapq.heappop(ready)
        listing.place(op, processor if critical[op] else -1)
        for tensor in range(a.first_tensor[op], a.first_tensor[op + 1]):
            for after in a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]].tolist():
                waiting[after] -= 1
                if not waiting[after]:
                    heapq.heappush(ready, (-through[after], after))
    return listing


def downward_ranks(problem: Problem) -> Seconds:
    """Each op's mean way from the start of the graph in seconds (Topcuoglu et al. 2002, Eq. 9).

    What exists before the step (weights, inputs) is no part of the way.
    """
    a = problem.arrays
    seconds, transfer = mean_seconds(problem), mean_transfer(problem)
    turn, producer = a.turn.tolist(), a.producer.tolist()
    first, inputs = a.first_input.tolist(), a.inputs.tolist()
    ranks = [0.0] * a.ops
    for op in range(a.ops):
        for tensor in inputs[first[op] : first[op + 1]]:
            source = producer[tensor]
            if turn[source]:
                ranks[op] = max(ranks[op], ranks[source] + seconds[source] + transfer[tensor])
    return np.array(ranks)


def critical_path(problem: Problem, upward: Seconds) -> list[int]:
    """The ops of the longest way through the graph, from first to last."""
    a = problem.arrays
    transfer = mean_transfer(problem)
    starts = np.flatnonzero(a.turn)
    if not len(starts):
        return []
    path = [int(starts[upward[starts].argmax()])]
    while True:
        ahead = [
            (float(transfer[tensor]) + float(upward[reader]), -int(reader))
            for tensor in range(a.first_tensor[path[-1]], a.first_tensor[path[-1] + 1])
            for reader in a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]]
        ]
        if not ahead:
            return path
        path.append(-max(ahead)[1])


def _fastest(problem: Problem, critical: NDArray[np.bool_]) -> int:
    """The device that may run most of the critical path, and of those the fastest for it."""
    a = problem.arrays
    allowed = a.allowed[critical]
    seconds = np.where(allowed, a.compute[critical], 0.0).sum(axis=0)
    return int(np.lexsort((seconds, -allowed.sum(axis=0)))[0])
