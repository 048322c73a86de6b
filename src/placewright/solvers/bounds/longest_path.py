"""The longest-path bound: earliest starts of ops, and how much must come after each.

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
    from placewright.solvers.bounds.aggregates import Aggregates

Seconds = NDArray[np.float64]

_TAIL_SAMPLES = 64  # tails at which the work between heads and tails is added up
_FORBIDDEN_SECONDS = (
    1e300  # of an op that may not be in a group; finite, so that -inf + this stays -inf
)


@dataclass(frozen=True, eq=False)
class OpTimes:
    """Ops × groups, infinite where an op may not be."""

    begin: Seconds  # the op cannot begin before, if it is in this group
    end: Seconds  # nor end before
    tail: Seconds  # the op and what must follow it take at least so long


def earliest_times(aggregates: Aggregates, prices: Seconds, max_arrivals: int) -> OpTimes:
    """The earliest begin of each op and the least rest of the step from there, by group.

    Args:
        prices: Groups: those of a second of work, which times the groups' counts add up to 1.
        max_arrivals: How many arrivals may be worked out (see `_Walk`).
    """
    a = aggregates.problem.arrays
    source = a.producer[a.inputs]
    is_edge = a.scheduled[a.reader]
    forward = _PathSweep(
        aggregates, a.reader[is_edge], source[is_edge], a.inputs[is_edge], prices, max_arrivals
    ).earliest_begins()
    is_edge &= a.scheduled[source]
    backward = _PathSweep(
        aggregates,
        source[is_edge],
        a.reader[is_edge],
        a.inputs[is_edge],
        prices,
        max_arrivals,
        backward=True,
    ).earliest_begins()
    return OpTimes(forward, forward + aggregates.op_seconds, backward + aggregates.op_seconds)


def longest_path_bound(aggregates: Aggregates, op_times: OpTimes, prices: Seconds) -> float:
    """The longest way through an op, or the work to be done between heads and tails.

    Proof. By `_Walk.begins`, an op in some group begins no earlier than `begin` there. Backwards
    (time runs from the end of the step, tensors flow from readers to producers), the same proof
    says that at least `rest` passes from the op's begin to the end of the step. So the step takes
    at least their sum, in the best group for the op.

    And for any a and b: ops that all begin at a or later and have b or more to come after them run
    within the step less a + b. As in `Choices.bound`, the time between is at least the sum of
    these ops' cheapest bills at any prices.
    """
    scheduled = aggregates.problem.arrays.scheduled
    if not scheduled.any():
        return 0.0
    longest_path = float((op_times.begin + op_times.tail)[scheduled].min(axis=1).max())
    seconds = aggregates.op_seconds[scheduled]
    tail = (op_times.tail[scheduled] - np.where(np.isfinite(seconds), seconds, 0.0)).min(axis=1)
    min_cost = (seconds * prices).min(axis=1) if (prices > 0).all() else np.zeros(len(seconds))
    begin = op_times.begin[scheduled].min(axis=1)
    order = np.argsort(-begin, kind="stable")
    begin, tail, min_cost = begin[order], tail[order], min_cost[order]
    window_seconds = 0.0
    for min_tail in np.unique(np.quantile(tail, np.linspace(0, 1, _TAIL_SAMPLES), method="lower")):
        is_inside = tail >= min_tail
        latest_end = (begin[is_inside] + np.cumsum(min_cost[is_inside])).max(initial=0.0)
        window_seconds = max(window_seconds, float(latest_end + min_tail))
    return aggregates.round_down(max(longest_path, window_seconds))


class _PathSweep:
    """One way along the graph: forwards, or backwards from the readers to the producers.

    Args:
        after: Edges: the op that comes after `before`, and reads `tensor` of it (or makes it).
    """

    def __init__(
        self,
        aggregates: Aggregates,
        after: NDArray[np.integer],
        before: NDArray[np.integer],
        tensor: NDArray[np.integer],
        prices: Seconds,
        max_arrivals: int,
        backward: bool = False,
    ) -> None:
        a = aggregates.problem.arrays
        self.aggregates, self.ops, self.groups = aggregates, a.ops, aggregates.groups
        # Ops are numbered by their place on the way.
        position = np.arange(a.ops)[::-1] if backward else np.arange(a.ops)
        edge_order = np.argsort(position[after], kind="stable")
        self.op = np.argsort(position)
        self.parents = position[before[edge_order]]
        self.tensor = tensor[edge_order].astype(np.int64)
        counts = np.bincount(position[after], minlength=a.ops)
        self.first_edge = np.concatenate([[0], np.cumsum(counts)]).tolist()
        self.transfer_row = aggregates.transfer_row.T if backward else aggregates.transfer_row
        self.seconds = np.where(
            np.isfinite(aggregates.op_seconds), aggregates.op_seconds, _FORBIDDEN_SECONDS
        )[self.op]
        self.scheduled = a.scheduled[self.op].tolist()
        min_cost = (
            (aggregates.op_seconds * prices).min(axis=1) if (prices > 0).all() else np.zeros(a.ops)
        )
        self.min_cost = min_cost[self.op]
        self.window = max_arrivals // max(1, len(self.parents) * self.groups)
        if self.window < 500:
            self.window = 0
        self.pending_readers = np.bincount(self.parents, minlength=a.ops).tolist()
        self.begin = np.zeros((self.ops, self.groups))
        self.earliest = np.zeros(self.ops)
        self.arrival_rows: dict[int, tuple[int, Seconds]] = {}
        """Of ops that are still read: the first ancestor, and groups × ancestors: arrivals."""

    def earliest_begins(self) -> Seconds:
        """Ops × groups: no plan begins an op earlier there.

        Proof by induction along the way, each of these being a bound:

        *Each input by itself.* A tensor is on the op's device once its producer has ended, if that
        is on the same device, and else a transfer later (rules 3 to 6). The producer is in some
        group and ended no earlier than its own bound there. Take the least over groups.

        *Arrivals* and *work*: see `_arrivals` and `_work`.
        """
        groups = range(self.groups)
        links_into = [
            [
                (source_group, int(transfer_row))
                for source_group, transfer_row in enumerate(column)
                if transfer_row >= 0
            ]
            for column in self.transfer_row.T
        ]
        transfer_rows = [transfer_row.tolist() for transfer_row in self.aggregates.transfer]
        seconds, parents, tensors = (
            self.seconds.tolist(),
            self.parents.tolist(),
            self.tensor.tolist(),
        )
        begins: list[list[float]] = []
        ends: list[list[float]] = []
        for op in range(self.ops):
            op_seconds, edges = seconds[op], slice(self.first_edge[op], self.first_edge[op + 1])
            begin = [0.0] * self.groups
            remote = []
            for parent, tensor in zip(parents[edges], tensors[edges], strict=True):
                end = ends[parent]
                remote_arrival = [
                    min(
                        [
                            end[source_group] + transfer_rows[transfer_row][tensor]
                            for source_group, transfer_row in links
                        ],
                        default=math.inf,
                    )
                    for links in links_into
                ]
                remote.append(remote_arrival)
                for group in groups:
                    arrival = min(remote_arrival[group], end[group])
                    if arrival > begin[group]:
                        begin[group] = arrival
            if self.window and remote:
                remote_arrivals = np.array(remote).T
                begin = self._arrivals(
                    op, parents[edges], remote_arrivals, np.array(begin)
                ).tolist()
            for group in groups:
                if op_seconds[group] >= _FORBIDDEN_SECONDS:
                    begin[group] = math.inf
            begins.append(begin)
            ends.append(
                [begin_at + duration for begin_at, duration in zip(begin, op_seconds, strict=True)]
            )
            if self.window:
                self.begin[op] = begin
                self.earliest[op] = min(begin)
        result = np.empty((self.ops, self.groups))
        result[self.op] = begins
        return result

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
        window_start = op - self.window if op > self.window else 0
        oldest = min(
            self.arrival_rows[parent][0] if parent in self.arrival_rows else parent
            for parent in parents
        )
        window_start = max(window_start, oldest)
        row = np.full((self.groups, op - window_start), -np.inf)
        scheduled_parents = 0
        for column, parent in enumerate(parents):
            if self.scheduled[parent]:
                scheduled_parents += 1
                remote_arrival = remote[:, column, None]
                if parent in self.arrival_rows:
                    row_start, parent_row = self.arrival_rows[parent]
                    skipped = max(0, window_start - row_start)
                    if skipped < parent_row.shape[1]:
                        window_row = row[
                            :,
                            row_start + skipped - window_start : row_start
                            + parent_row.shape[1]
                            - window_start,
                        ]
                        local_arrival = parent_row[:, skipped:] + self.seconds[parent][:, None]
                        np.maximum(
                            window_row,
                            np.minimum(local_arrival, remote_arrival, out=local_arrival),
                            out=window_row,
                        )
                if parent >= window_start:
                    np.maximum(
                        row[:, parent - window_start],
                        remote_arrival[:, 0],
                        out=row[:, parent - window_start],
                    )
            self.pending_readers[parent] -= 1
            if not self.pending_readers[parent]:
                self.arrival_rows.pop(parent, None)
        if self.pending_readers[op]:
            self.arrival_rows[op] = (window_start, row)
        if scheduled_parents > 1:
            base = np.maximum(base, self._work(window_start + np.flatnonzero(row[0] > -np.inf)))
        for group in np.flatnonzero((row > base[:, None]).any(axis=1)):
            forced = np.flatnonzero(row[group] > base[group])
            forced = forced[np.argsort(-row[group, forced], kind="stable")]
            begin = np.minimum.accumulate(self.begin[window_start + forced, group])
            local_end = np.cumsum(self.seconds[window_start + forced, group]) + begin
            local_end = np.concatenate([[base[group]], np.maximum.accumulate(local_end)])
            arrival = np.concatenate([row[group, forced], [base[group]]])
            base[group] = np.maximum(local_end, arrival).min()
        return base

    def _work(self, ancestors: NDArray[np.int64]) -> float:
        """The earliest end of these ops.

        Proof: those that begin at a or later do all their work from a to that end; as in
        `Choices.bound` this time is at least the sum of their cheapest bills, at any prices.
        """
        begin = self.earliest[ancestors]
        order = np.argsort(-begin, kind="stable")
        ends = begin[order] + np.cumsum(self.min_cost[ancestors[order]])
        return float(ends.max(initial=0.0))
