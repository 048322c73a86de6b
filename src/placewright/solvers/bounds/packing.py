"""The packing bound: seconds in which the units cannot be packed onto the devices.

Suppose there were a plan of T seconds. Then units whose tensors take too long to send share a
device, and these sets must be packed onto the devices like items into bins. If that is impossible,
no plan takes T seconds, and T is a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.solvers.bounds.neighbourhood import forbidden_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.solvers.bounds.aggregates import Aggregates
    from placewright.solvers.bounds.longest_path import OpTimes
    from placewright.solvers.bounds.minimum_cuts import MinimumCuts

Seconds = NDArray[np.float64]

_MAX_PARTS = 40  # a device's time is cut into up to this many parts
_ROUNDS = 20  # of merging units, each of which may force others together
_ROUND_DOWN = 1 - 1e-12  # for the rounding of a few products and sums over all units
_ROUND_UP = 1 + 1e-9


def packing_bound(state: Packing, lower_bound: float, tries: int) -> float:
    """The largest T, found by bisection, for which plans are refuted, or 0.

    Args:
        lower_bound: Another bound, where the search starts.
        tries: The number of T that are tried.

    Proof: `Packing.refutes` holds for this T by its own proof. A plan of fewer seconds is also a
    plan of at most T seconds, so it is refuted too.
    """
    aggregates = state.aggregates
    serial_seconds = float(aggregates.seconds.sum(axis=0).min())  # everything on one device
    low, high = lower_bound, min(serial_seconds, 64 * lower_bound)
    if not (0 < low < high < np.inf):
        return 0.0
    best = 0.0
    for _ in range(tries):
        middle = (low * high) ** 0.5
        if state.refutes(middle):
            best = low = middle
        else:
            high = middle
        if high - low <= 1e-10 * low:
            break
    return aggregates.round_down(best)


@dataclass(frozen=True, eq=False)
class Packing:
    """Facts about plans of at most T seconds.

    Args:
        cuts: The cuts of each group.
        op_times: For the step time: the earliest begin of each op and the rest of the step.
        max_arcs: The number of arcs of cuts that may be used for each T.
    """

    aggregates: Aggregates
    cuts: Sequence[MinimumCuts]
    op_times: OpTimes | None
    max_arcs: int

    def refutes(self, seconds: float) -> bool:
        """Whether no plan takes at most `seconds`.

        Proof: let a plan take T seconds or less. The units of one of the `colocated_sets` share a
        device in it, and none is in one of its `forbidden_groups`. The device of each carries it
        whole, so T is at least its load there; if that is too much everywhere, there is no such
        plan. `overload_checks` refute the rest.
        """
        aggregates = self.aggregates
        unit_load = aggregates.seconds
        if self.max_arcs:
            unit_load = np.where(
                forbidden_groups(aggregates, self.cuts, seconds, self.max_arcs), np.inf, unit_load
            )
        set_of = self.colocated_sets(seconds, unit_load)
        load = np.zeros((int(set_of.max()) + 1, aggregates.groups))
        np.add.at(load, set_of, unit_load)
        load = np.where(load * _ROUND_DOWN <= seconds, load, np.inf)
        if not np.isfinite(load.min(axis=1)).all():
            return True
        return any(overload_checks(load, self.aggregates.device_count, self.main_group, seconds))

    @cached_property
    def main_group(self) -> int:
        """The group that can do most of the work."""
        seconds = self.aggregates.seconds
        totals = np.where(np.isfinite(seconds), seconds, 0.0).sum(axis=0)
        return int(np.argmax(self.aggregates.device_count / np.maximum(totals, 1e-300)))

    def colocated_sets(self, seconds: float, load: Seconds) -> NDArray[np.int64]:
        """Units: the number of the set of units that must share a device in a plan of T seconds.

        Proof: let one unit make a tensor that another reads, and let them be on different devices
        of some pair of groups. Then each device carries its unit. Without overlap each, unless it
        is a host, also pays for the tensor, so both sums must be at most T. With overlap a channel
        carries the tensor. In a step the op that makes the tensor must first have ended, and the
        op that reads it and all that follows must come after the transfer. If for no pair of
        groups all these are at most T, the units are not on different devices. Such units are
        then merged into one, and the argument repeats.
        """
        aggregates, a = self.aggregates, self.aggregates.problem.arrays
        set_of = np.arange(aggregates.units)
        unit_load = load
        source, target = aggregates.pair_source, aggregates.pair_unit
        for _ in range(_ROUNDS):
            may_part = np.zeros(len(source), dtype=bool)
            fits = load * _ROUND_DOWN <= seconds
            for source_group in range(aggregates.groups):
                for target_group in range(aggregates.groups):
                    send_seconds = aggregates.send_seconds(source_group, target_group)
                    if send_seconds is None:
                        continue
                    transfer_seconds = send_seconds[aggregates.pair_tensor]
                    if aggregates.blocking_transfers:
                        source_cost = 0.0 if aggregates.is_host[source_group] else transfer_seconds
                        target_cost = 0.0 if aggregates.is_host[target_group] else transfer_seconds
                        may_part |= (
                            (load[set_of[source], source_group] + source_cost) * _ROUND_DOWN
                            <= seconds
                        ) & (
                            (load[set_of[target], target_group] + target_cost) * _ROUND_DOWN
                            <= seconds
                        )
                        continue
                    both_fit = (
                        fits[set_of[source], source_group] & fits[set_of[target], target_group]
                    )
                    if self.op_times is None:
                        may_part |= both_fit & (transfer_seconds * _ROUND_DOWN <= seconds)
                    else:
                        producer_end = self.op_times.end[
                            a.producer[aggregates.pair_tensor], source_group
                        ]
                        may_part |= both_fit & (
                            (producer_end + transfer_seconds + self.tail_seconds[:, target_group])
                            * _ROUND_DOWN
                            <= seconds
                        )
            must_join = ~may_part & (set_of[source] != set_of[target])
            if not must_join.any():
                break
            joined_pairs = (set_of[source[must_join]], set_of[target[must_join]])
            set_of = _connected_sets(*joined_pairs, int(set_of.max()) + 1)[set_of]
            load = np.zeros((int(set_of.max()) + 1, aggregates.groups))
            np.add.at(load, set_of, unit_load)
        return set_of

    @cached_property
    def tail_seconds(self) -> Seconds:
        """Pairs × groups: the longest tail of the unit's ops that read the tensor."""
        aggregates, a = self.aggregates, self.aggregates.problem.arrays
        assert self.op_times is not None
        units = aggregates.units
        tensor = np.repeat(np.arange(len(a.sizes)), np.diff(a.first_reader))
        pair_key = aggregates.pair_tensor * units + aggregates.pair_unit
        reader_key = tensor * units + a.unit[a.readers]
        tail_seconds = np.zeros((len(pair_key), aggregates.groups))
        if not len(pair_key):
            return tail_seconds
        pair = np.minimum(np.searchsorted(pair_key, reader_key), len(pair_key) - 1)
        is_pair = (pair_key[pair] == reader_key) & a.scheduled[a.readers]
        np.maximum.at(tail_seconds, pair[is_pair], self.op_times.tail[a.readers[is_pair]])
        return tail_seconds


def _connected_sets(
    first: NDArray[np.int64], second: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """The number of each item's set, if the items of each pair are in one set."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(first)), (first, second)), shape=(count, count))
    set_of: NDArray[np.int64] = connected_components(graph, directed=False)[1].astype(np.int64)
    return set_of


def overload_checks(
    load: Seconds, device_count: NDArray[np.int64], main_group: int, seconds: float
) -> list[bool]:
    """For each division of a device's time into parts: whether the units need more than there are.

    Proof. Let the units of one device take T seconds together, and cut T into k + 1 parts. A unit
    of x seconds has ⌊(k + 1) x / T⌋ whole parts (a little less, so that the product is below the
    next whole number also after rounding); over the device these add up to at most k, as they are
    whole numbers whose sum is below k + 1 (Johnson's functions; Fekete and Schepers 2001). So n
    equal devices hold at most n × k parts. What the main group does not hold, the others must: give
    them prices as in `Relaxation.bound`; a unit then takes at least its cheapest cost there, and
    all together at most T. Those that cannot be in the main group come first. The parts that the
    others can take off the main group are at most those of the best choice of units, cut at the
    margin, that fit into what is left: a knapsack. If what remains exceeds n × k, there is no plan
    of T seconds. For infinite k the parts are the seconds themselves; these are tried too.
    """
    other_groups = np.flatnonzero(np.arange(load.shape[1]) != main_group)
    cheapest = np.full(len(load), np.inf)
    if len(other_groups):
        totals = np.where(np.isfinite(load[:, other_groups]), load[:, other_groups], 0.0).sum(
            axis=0
        )
        speed = 1 / np.maximum(totals, 1e-300)
        price = speed / (speed @ device_count[other_groups])
        cheapest = (load[:, other_groups] * price).min(axis=1)
    main_load = load[:, main_group] / seconds
    is_excluded = ~np.isfinite(main_load)
    excluded_cost = float((cheapest[is_excluded] / seconds).sum())
    if excluded_cost > _ROUND_UP:
        return [True]
    main_share = np.where(is_excluded, 0.0, main_load)
    parts = np.floor(main_share[:, None] * np.arange(2, _MAX_PARTS + 2) * _ROUND_DOWN) / np.arange(
        1, _MAX_PARTS + 1
    )
    with np.errstate(invalid="ignore"):  # cost and seconds are both infinite: nothing leaves
        costs = cheapest / seconds
    return [
        float(column.sum()) - _knapsack_parts(column, costs, 1 - excluded_cost)
        > device_count[main_group] * _ROUND_UP
        for column in (*parts.T, main_share)
    ]


def _knapsack_parts(parts: Seconds, costs: Seconds, max_cost: float) -> float:
    """The most parts of units, the last of them cut, within a cost."""
    is_movable = (parts > 0) & np.isfinite(costs)
    is_free, paid = is_movable & (costs <= 0), np.flatnonzero(is_movable & (costs > 0))
    order = paid[np.argsort(-parts[paid] / costs[paid], kind="stable")]
    cost_before = np.cumsum(costs[order]) - costs[order]
    share = np.clip((max_cost * _ROUND_UP - cost_before) / costs[order], 0.0, 1.0)
    return float(parts[is_free].sum() + (parts[order] * share).sum())
