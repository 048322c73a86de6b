"""m-ETF, earliest task first within memory: Jeon et al. 2020, "Baechi", SoCC.

After Hwang et al. 1989, SIAM Journal on Computing 18(2).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from placewright.solvers.listing import Bytes, Listing, judge_schedule, upward_ranks

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
    ready = _Ready(problem)
    waiting = np.bincount(_reader_of(a.first_input)[a.turn[a.producer[a.inputs]]], minlength=a.ops)
    for op in np.flatnonzero(a.turn & (waiting == 0)).tolist():
        ready.put(op, listing)
    kept_for = np.full(a.devices, -1)  # the favourite child that each device waits for
    while ready.count:
        op, device = ready.pick(listing, kept_for)
        listing.add(op, device)
        ready.remove(op)
        kept_for[kept_for == op] = -1
        if favourite is not None:
            child = favourite[op]
            kept_for[device] = child if child >= 0 and listing.allowed(child)[device] else -1
        for tensor in range(a.first_tensor[op], a.first_tensor[op + 1]):
            for reader in a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]].tolist():
                waiting[reader] -= 1
                if not waiting[reader]:
                    ready.put(reader, listing)
    return listing


class _Ready:
    """The ready ops, in rows of arrays that are kept gapless, with when each could start where."""

    def __init__(self, problem: Problem) -> None:
        a = problem.arrays
        fastest = np.where(a.allowed, a.compute, np.inf).min(axis=1, keepdims=True)
        self.late = np.where(a.allowed, a.compute - fastest, np.inf)
        self.turn = np.empty(a.ops, dtype=np.int64)  # by falling upward rank
        self.turn[np.argsort(-upward_ranks(problem), kind="stable")] = np.arange(a.ops)
        self.count = 0
        self.row = np.full(a.ops, -1)
        self.op = np.empty(a.ops, dtype=np.int64)
        self.start = np.empty((a.ops, a.devices))  # when its inputs can be there; inf: never
        self.anywhere = np.empty(a.ops)  # when they can be on any of its devices
        self.lost = np.empty((a.ops, a.devices))

    def put(self, op: int, listing: Listing) -> None:
        self.row[op], self.op[self.count] = self.count, op
        self.lost[self.count] = self.late[op]
        self.count += 1
        self._look(op, listing)

    def remove(self, op: int) -> None:
        """The last row moves into the gap."""
        self.count -= 1
        gap, last = self.row[op], self.count
        for column in (self.op, self.start, self.anywhere, self.lost):
            column[gap] = column[last]
        self.row[self.op[gap]], self.row[op] = gap, -1

    def pick(self, listing: Listing, kept_for: NDArray[np.int64]) -> tuple[int, int]:
        """The pair that starts first.

        What a row says can only be too early, since channels and memory fill up; so the row of the
        pair that seems best is looked at again until it holds.
        """
        while True:
            op, device = self._best(listing.free, kept_for)
            seen = self.start[self.row[op], device]
            self._look(op, listing)
            if self.start[self.row[op], device] <= seen:
                return op, device

    def _look(self, op: int, listing: Listing) -> None:
        row = self.row[op]
        self.start[row] = np.where(listing.choices(op), listing.ready(op), np.inf)
        starts = self.start[row]
        self.anywhere[row] = starts[starts < np.inf].max()

    def _best(self, free: NDArray[np.float64], kept_for: NDArray[np.int64]) -> tuple[int, int]:
        start = np.maximum(self.start[: self.count], free)
        for device in np.flatnonzero(kept_for >= 0).tolist():
            row = self.row[kept_for[device]]
            own = start[row, device]
            start[:, device] = np.maximum(start[:, device], self.anywhere[: self.count])
            if row >= 0:
                start[row, device] = own
        key = (start + self.lost[: self.count]).ravel()
        ties = np.flatnonzero(key == key.min())
        devices = len(free)
        pair = ties[self.turn[self.op[ties // devices]].argmin()] if len(ties) > 1 else ties[0]
        return int(self.op[pair // devices]), int(pair % devices)


def _reader_of(first_input: NDArray[np.int32]) -> NDArray[np.int64]:
    return np.repeat(np.arange(len(first_input) - 1), np.diff(first_input))
