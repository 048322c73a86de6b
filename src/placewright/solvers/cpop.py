"""CPoP, critical path on a processor: Topcuoglu, Hariri and Wu 2002, IEEE TPDS 13(3)."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from placewright.scheduling.list_scheduler import Bytes, ListSchedule
from placewright.scheduling.ranks import Seconds, downward_ranks, mean_transfer, upward_ranks
from placewright.solvers.memory_retry import judge_schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.solvers.search import Search


@dataclass(frozen=True)
class CPoP:
    """The critical path on the one device that runs it fastest, other ops where they finish first.

    The next op is always the ready op with the longest path through it, from the graph's start to
    its end. The paper models neither memory nor contention of channels. We exclude devices that the
    op would overfill, also on the critical path.

    Args:
        contended: Whether transfers wait for their channel in the schedule.
    """

    contended: bool = False

    @property
    def name(self) -> str:
        return "cpop-contended" if self.contended else "cpop"

    def run(self, search: Search) -> None:
        judge_schedule(search, partial(schedule, search.problem, self.contended))


def schedule(
    problem: Problem, contended: bool = False, memory_margin: Bytes | None = None
) -> ListSchedule:
    """CPoP's schedule, which estimates the step time."""
    a = problem.arrays
    list_schedule = ListSchedule(problem, contended, memory_margin)
    upward_rank, downward_rank = upward_ranks(a), downward_ranks(a)
    is_critical = np.zeros(a.ops, dtype=bool)
    is_critical[critical_path_ops(problem, upward_rank)] = True
    processor = _critical_device(problem, is_critical)
    pending_inputs = np.bincount(a.reader[a.scheduled[a.producer[a.inputs]]], minlength=a.ops)
    path_length = upward_rank + downward_rank
    ready = [
        (-path_length[op], op)
        for op in np.flatnonzero(a.scheduled & (pending_inputs == 0)).tolist()
    ]
    heapq.heapify(ready)
    while ready:
        _, op = heapq.heappop(ready)
        list_schedule.place(op, processor if is_critical[op] else -1)
        for tensor in range(a.first_tensor[op], a.first_tensor[op + 1]):
            for successor in a.readers[
                a.first_reader[tensor] : a.first_reader[tensor + 1]
            ].tolist():
                pending_inputs[successor] -= 1
                if not pending_inputs[successor]:
                    heapq.heappush(ready, (-path_length[successor], successor))
    return list_schedule


def critical_path_ops(problem: Problem, upward: Seconds) -> list[int]:
    """The ops of the longest path through the graph, from first to last."""
    a = problem.arrays
    transfer = mean_transfer(a)
    scheduled_ops = np.flatnonzero(a.scheduled)
    if not len(scheduled_ops):
        return []
    path = [int(scheduled_ops[upward[scheduled_ops].argmax()])]
    while True:
        successors = [
            (float(transfer[tensor]) + float(upward[reader]), -int(reader))
            for tensor in range(a.first_tensor[path[-1]], a.first_tensor[path[-1] + 1])
            for reader in a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]]
        ]
        if not successors:
            return path
        path.append(-max(successors)[1])


def _critical_device(problem: Problem, is_critical: NDArray[np.bool_]) -> int:
    """The device that may run most of the critical path, and of those the fastest for it."""
    a = problem.arrays
    allowed = a.allowed[is_critical]
    seconds = np.where(allowed, a.compute[is_critical], 0.0).sum(axis=0)
    return int(np.lexsort((seconds, -allowed.sum(axis=0)))[0])
