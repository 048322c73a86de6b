"""The longest-path bound: earliest starts of ops, and how much must come after each.

Besides the longest chain these account for transfers between devices, for ops that must share one
device because their tensors would arrive too late from another, and for the work of all ancestors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.solvers.bounds._path_sweep import earliest_begins

if TYPE_CHECKING:
    from placewright.solvers.bounds.aggregates import Aggregates

Seconds = NDArray[np.float64]

_MIN_WINDOW = 500  # ancestors; with fewer, arrivals gain too little
_TAIL_SAMPLES = 64  # tails at which the work between heads and tails is summed
_FORBIDDEN_SECONDS = (
    1e300  # of an op that may not be in a group; finite, so that -inf + this stays -inf
)


@dataclass(frozen=True, eq=False)
class OpTimes:
    """Ops × groups, infinite where an op may not be."""

    begin: Seconds  # the op cannot begin before, if it is in this group
    end: Seconds  # nor end before
    tail: Seconds  # the op and all that must follow it take at least this long


def earliest_times(aggregates: Aggregates, prices: Seconds, max_arrivals: int) -> OpTimes:
    """The earliest begin of each op and the shortest rest of the step from there, by group.

    Args:
        prices: Groups: the price of a second of work; times the groups' counts they sum to 1.
        max_arrivals: The number of arrivals that may be computed (see `_earliest_begins`).
    """
    a = aggregates.problem.arrays
    source = a.producer[a.inputs]
    is_edge = a.scheduled[a.reader]
    forward = _earliest_begins(
        aggregates, a.reader[is_edge], source[is_edge], a.inputs[is_edge], prices, max_arrivals
    )
    is_edge &= a.scheduled[source]
    backward = _earliest_begins(
        aggregates,
        source[is_edge],
        a.reader[is_edge],
        a.inputs[is_edge],
        prices,
        max_arrivals,
        backward=True,
    )
    return OpTimes(forward, forward + aggregates.op_seconds, backward + aggregates.op_seconds)


def longest_path_bound(aggregates: Aggregates, op_times: OpTimes, prices: Seconds) -> float:
    """The longest path through an op, or the work to be done between heads and tails.

    Proof. By `_earliest_begins`, an op in some group begins no earlier than `begin`
    there. Backwards (time runs from the end of the step, tensors flow from readers to producers),
    the same proof says that at least `tail` passes from the op's begin to the end of the step. So
    the step takes at least their sum, in the best group for the op.

    And for any a and b: ops that all begin at a or later and have b or more to come after them run
    within the step less a + b. As in `Relaxation.bound`, the time between is at least the sum of
    these ops' cheapest costs at any prices.
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


def _earliest_begins(
    aggregates: Aggregates,
    after: NDArray[np.integer],
    before: NDArray[np.integer],
    tensor: NDArray[np.integer],
    prices: Seconds,
    max_arrivals: int,
    backward: bool = False,
) -> Seconds:
    """Ops × groups: no plan begins an op earlier there; backwards: ends it later before the end.

    Args:
        after: Edges: the op that comes after `before`, and reads `tensor` of it (or makes it).
        max_arrivals: The number of arrivals that may be computed, which limits the window of
            ancestors.

    Proof by induction along one sweep over the graph, forwards, or backwards from the readers to
    the producers; each of these is a bound:

    *Each input by itself.* A tensor is on the op's device once its producer has ended, if that is
    on the same device, and else a transfer later (rules 3 to 6). The producer is in some group and
    ended no earlier than its own bound there. Take the minimum over groups.

    *Arrivals.* Let the op v be on a device of a group, and let u be an ancestor of it that is not.
    Some parent w of v is u, or has u among its ancestors. Either w is elsewhere, and v begins no
    earlier than w's tensor comes; or w is on v's device and u is not, and by the same argument w
    begins no earlier than u's arrival at w, and v after w has run. The smaller of the two, and of
    all such w the largest, is u's *arrival* at v. Order the ancestors by arrival, the latest first.
    A plan has some number m of the first ones on v's device, and not the next: then v begins no
    earlier than that next one's arrival. A device runs one op at a time (rule 1), so v also begins
    no earlier than the first of these m can begin, plus the time that all m take in this group. The
    larger of both holds for this m, so the minimum over all m holds for every plan. Ancestors may
    be left out, so we use a window of recent ones. Unscheduled ops never wait.

    *Work.* Ancestors that begin at some time or later do all their work from then on; as in
    `Relaxation.bound` this takes at least the sum of their cheapest costs, at any prices.
    """
    a = aggregates.problem.arrays
    # Ops are numbered in the order of the sweep.
    position = np.arange(a.ops)[::-1] if backward else np.arange(a.ops)
    edge_order, op = np.argsort(position[after], kind="stable"), np.argsort(position)
    counts = np.bincount(position[after], minlength=a.ops)
    prices_prove = bool((prices > 0).all())
    min_cost = (aggregates.op_seconds * prices).min(axis=1) if prices_prove else np.zeros(a.ops)
    seconds = np.where(
        np.isfinite(aggregates.op_seconds), aggregates.op_seconds, _FORBIDDEN_SECONDS
    )
    window = max_arrivals // max(1, len(after) * aggregates.groups)
    transfer_row = aggregates.transfer_row.T if backward else aggregates.transfer_row
    result = np.empty((a.ops, aggregates.groups))
    result[op] = earliest_begins(
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        np.ascontiguousarray(position[before[edge_order]], dtype=np.int64),
        np.ascontiguousarray(tensor[edge_order], dtype=np.int64),
        np.ascontiguousarray(seconds[op]),
        np.ascontiguousarray(min_cost[op]),
        np.ascontiguousarray(a.scheduled[op], dtype=np.uint8),
        np.ascontiguousarray(transfer_row, dtype=np.int64),
        np.ascontiguousarray(aggregates.transfer),
        window if window >= _MIN_WINDOW else 0,
        _FORBIDDEN_SECONDS,
    )
    return result
