"""Paths: when each op can begin at the earliest, and how much must come after it.

Beside the longest chain these see transfers between devices, ops that must take turns on one
device because their tensors would come too late from another, and the work of all ancestors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from placewright.solvers.bounds.aggregates import Layout

Seconds = NDArray[np.float64]

_SWEEPS = 64  # tails at which the work between heads and tails is added up
_FOREVER = 1e300  # of an op that may not be in a group; finite, so that -inf + this stays -inf


@dataclass(frozen=True, eq=False)
class Times:
    """Ops × groups, infinite where an op may not be."""

    begin: Seconds  # the op cannot begin before, if it is in this group
    end: Seconds  # nor end before
    rest: Seconds  # the op and what must follow it take at least so long


def times(layout: Layout, prices: Seconds, arrivals: int) -> Times:
    """The earliest begin of each op and the least rest of the step from there, by group.

    Args:
        prices: Groups: those of a second of work, which times the groups' counts add up to 1.
        arrivals: How many arrivals may be worked out (see `_Walk`).
    """
    a = layout.problem.arrays
    reader = np.repeat(np.arange(a.ops), np.diff(a.first_input))
    source = a.producer[a.inputs]
    real = a.turn[reader]
    forward = _Walk(layout, reader[real], source[real], a.inputs[real], prices, arrivals).begins()
    real &= a.turn[source]
    backward = _Walk(
        layout, source[real], reader[real], a.inputs[real], prices, arrivals, backward=True
    ).begins()
    return Times(forward, forward + layout.op_seconds, backward + layout.op_seconds)


def longest_way(layout: Layout, found: Times, prices: Seconds) -> float:
    """The longest way through an op, or the work to be done between heads and tails.

    Proof. By `_Walk.begins`, an op in some group begins no earlier than `begin` there. Backwards
    (time runs from the end of the step, tensors flow from readers to producers), the same proof
    says that at least `rest` passes from the op's begin to the end of the step. So the step takes
    at least their sum, in the best group for the op.

    And for any a and b: ops that all begin at a or later and have b or more to come after them run
    within the step less a + b. As in `Choices.bound`, the time between is at least the sum of
    these ops' cheapest bills at any prices.
    """
    turn = layout.problem.arrays.turn
    if not turn.any():
        return 0.0
    through = float((found.begin + found.rest)[turn].min(axis=1).max())
    seconds = layout.op_seconds[turn]
    tail = (found.rest[turn] - np.where(np.isfinite(seconds), seconds, 0.0)).min(axis=1)
    bill = (seconds * prices).min(axis=1) if (prices > 0).all() else np.zeros(len(seconds))
    begin = found.begin[turn].min(axis=1)
    order = np.argsort(-begin, kind="stable")
    begin, tail, bill = begin[order], tail[order], bill[order]
    between = 0.0
    for least in np.unique(np.quantile(tail, np.linspace(0, 1, _SWEEPS), method="lower")):
        inside = tail >= least
        done = (begin[inside] + np.cumsum(bill[inside])).max(initial=0.0)
        between = max(between, float(done + least))
    return layout.rounded_down(max(through, between))


class _Walk:
    """One way along the graph: forwards, or backwards from the readers to the producers.

    Args:
        after: Edges: the op that comes after `before`, and reads `tensor` of it (or makes it).
    """

    def __init__(
        self,
        layout: Layout,
        after: NDArray[np.integer],
        before: NDArray[np.integer],
        tensor: NDArray[np.integer],
        prices: Seconds,
        arrivals: int,
        backward: bool = False,
    ) -> None:
        a = layout.problem.arrays
        self.layout, self.ops, self.groups = layout, a.ops, layout.groups
        # Ops are numbered by their place on the way.
        place = np.arange(a.ops)[::-1] if backward else np.arange(a.ops)
        by_op = np.argsort(place[after], kind="stable")
        self.op = np.argsort(place)
        self.parents = place[before[by_op]]
        self.tensor = tensor[by_op].astype(np.int64)
        counts = np.bincount(place[after], minlength=a.ops)
        self.first = np.concatenate([[0], np.cumsum(counts)]).tolist()
        self.way = layout.way.T if backward else layout.way
        self.seconds = np.where(np.isfinite(layout.op_seconds), layout.op_seconds, _FOREVER)[
            self.op
        ]
        self.turn = a.turn[self.op].tolist()
        bill = (layout.op_seconds * prices).min(axis=1) if (prices > 0).all() else np.zeros(a.ops)
        self.bill = bill[self.op]
        self.window = arrivals // max(1, len(self.parents) * self.groups)
        if self.window < 500:
            self.window = 0
        self.readers = np.bincount(self.parents, minlength=a.ops).tolist()
        self.begin = np.zeros((self.ops, self.groups))
        self.least = np.zeros(self.ops)
        self.rows: dict[int, tuple[int, Seconds]] = {}
        """Of ops that are still read: the first ancestor, and groups × ancestors: arrivals."""

    def begins(self) -> Seconds:
        """Ops × groups: no plan begins an op earlier there.

        Proof by induction along the way, each of these being a bound:

        *Each input by itself.* A tensor is on the op's device once its producer has ended, if that
        is on the same device, and else a transfer later (rules 3 to 6). The producer is in some
        group and ended no earlier than its own bound there. Take the least over groups.

        *Arrivals* and *work*: see `_arrivals` and `_work`.
        """
        groups = range(self.groups)
        ways = [[(one, int(row)) for one, row in enumerate(col) if row >= 0] for col in self.way.T]
        rows = [row.tolist() for row in self.layout.transfer]
        seconds, parents, tensors = (
            self.seconds.tolist(),
            self.parents.tolist(),
            self.tensor.tolist(),
        )
        begins: list[list[float]] = []
        ends: list[list[float]] = []
        for op in range(self.ops):
            takes, part = seconds[op], slice(self.first[op], self.first[op + 1])
            begin = [0.0] * self.groups
            remote = []
            for parent, tensor in zip(parents[part], tensors[part], strict=True):
                end = ends[parent]
                far = [
                    min([end[one] + rows[row][tensor] for one, row in way], default=math.inf)
                    for way in ways
                ]
                remote.append(far)
                for group in groups:
                    comes = min(far[group], end[group])
                    if comes > begin[group]:
                        begin[group] = comes
            if self.window and remote:
                late = np.array(remote).T
                begin = self._arrivals(op, parents[part], late, np.array(begin)).tolist()
            for group in groups:
                if takes[group] >= _FOREVER:
                    begin[group] = math.inf
            begins.append(begin)
            ends.append([start + lasts for start, lasts in zip(begin, takes, strict=True)])
            if self.window:
                self.begin[op] = begin
                self.least[op] = min(begin)
        found = np.empty((self.ops, self.groups))
        found[self.op] = begins
        return found

    def _arrivals(self, op: int, parents: list[int], remote: Seconds, base: Seconds) -> Seconds:
        """The op's earliest begin by group, given that no tensor is there before `base`.

        Proof. Let the op v be on a device of this group, and let u be an ancestor of it that is
        not. Some parent w of v is u, or has u among its ancestors. Either w is elsewhere, and v
        begins no earlier than w's tensor comes (`remote`); or w is on v's device and u is not, and
        by the same argument w begins no earlier than u's arrival at w, and v after w has run. The
        smaller of the two, and of all such w the largest, is u's *arrival* at v.

        Order the ancestors by arrival, the latest first. A plan has some number m of the first
        ones on v's device, and not the next: then v begins no earlier than that next one's
        arrival. A device runs one op at a time (rule 1), so v also begins no earlier than the
        first of these m can begin, plus the time that all m take in this group. The larger of both
        holds for this m, so the least of these over all m holds for every plan. Ancestors may be
        left out, so we look at a window of recent ones. An op that takes no turn never waits.
        """
        first = op - self.window if op > self.window else 0
        oldest = min(self.rows[w][0] if w in self.rows else w for w in parents)
        first = max(first, oldest)
        row = np.full((self.groups, op - first), -np.inf)
        turns = 0
        for column, w in enumerate(parents):
            if self.turn[w]:
                turns += 1
                late = remote[:, column, None]
                if w in self.rows:
                    start, theirs = self.rows[w]
                    skip = max(0, first - start)
                    if skip < theirs.shape[1]:
                        part = row[:, start + skip - first : start + theirs.shape[1] - first]
                        after = theirs[:, skip:] + self.seconds[w][:, None]
                        np.maximum(part, np.minimum(after, late, out=after), out=part)
                if w >= first:
                    np.maximum(row[:, w - first], late[:, 0], out=row[:, w - first])
            self.readers[w] -= 1
            if not self.readers[w]:
                self.rows.pop(w, None)
        if self.readers[op]:
            self.rows[op] = (first, row)
        if turns > 1:
            base = np.maximum(base, self._work(first + np.flatnonzero(row[0] > -np.inf)))
        for group in np.flatnonzero((row > base[:, None]).any(axis=1)):
            forced = np.flatnonzero(row[group] > base[group])
            forced = forced[np.argsort(-row[group, forced], kind="stable")]
            begin = np.minimum.accumulate(self.begin[first + forced, group])
            there = np.cumsum(self.seconds[first + forced, group]) + begin
            there = np.concatenate([[base[group]], np.maximum.accumulate(there)])
            comes = np.concatenate([row[group, forced], [base[group]]])
            base[group] = np.maximum(there, comes).min()
        return base

    def _work(self, ancestors: NDArray[np.int64]) -> float:
        """The earliest end of these ops.

        Proof: those that begin at a or later do all their work from a to that end; as in
        `Choices.bound` this time is at least the sum of their cheapest bills, at any prices.
        """
        begin = self.least[ancestors]
        order = np.argsort(-begin, kind="stable")
        done = begin[order] + np.cumsum(self.bill[ancestors[order]])
        return float(done.max(initial=0.0))
