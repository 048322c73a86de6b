"""Packing: seconds in which the units cannot be packed onto the devices, whatever is tried.

Suppose there were a plan of T seconds. Then units whose tensors take too long to send share a
device, and what is left must fit the devices like parcels in bins. If it does not, no plan takes T
seconds, and T is a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.solvers.bounds.neighbourhood import barred

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.solvers.bounds.aggregates import Layout
    from placewright.solvers.bounds.cuts import Cuts
    from placewright.solvers.bounds.longest_path import Times

Seconds = NDArray[np.float64]

_PARTS = 40  # a device's time is cut into up to so many parts when parcels are counted
_ROUNDS = 20  # of joining units, each of which may force others together
_LESS = 1 - 1e-12  # rounding of a handful of products and sums of all units
_SAFE = 1 + 1e-9


def packing(packed: Packing, at_least: float, tries: int) -> float:
    """The largest T of a search by halves in which a plan is refuted, or 0.

    Args:
        at_least: A bound proved otherwise, where the search begins.
        tries: How many T are tried.

    Proof: `Packing.refuted` holds for this T by its own proof. A plan of fewer seconds is also a
    plan of at most T seconds, so it is refuted too.
    """
    layout = packed.layout
    whole = float(layout.seconds.sum(axis=0).min())  # one device does everything
    low, high = at_least, min(whole, 64 * at_least)
    if not (0 < low < high < np.inf):
        return 0.0
    best = 0.0
    for _ in range(tries):
        middle = (low * high) ** 0.5
        if packed.refuted(middle):
            best = low = middle
        else:
            high = middle
        if high - low <= 1e-10 * low:
            break
    return layout.rounded_down(best)


@dataclass(frozen=True, eq=False)
class Packing:
    """What is known of plans of at most T seconds.

    Args:
        cuts: Of each group.
        times: For the step time: when each op can begin and how much comes after it.
        arcs: How many arcs of cuts may be looked at for each T.
    """

    layout: Layout
    cuts: Sequence[Cuts]
    times: Times | None
    arcs: int

    def refuted(self, seconds: float) -> bool:
        """Whether no plan takes at most so many seconds.

        Proof: let a plan take T seconds or less. The units that `together` joins share a device in
        it, and none is where it is `barred`. The device of each carries it whole, so T is at least
        its load there; if that is too much everywhere, there is no such plan. `overfull` refutes
        the rest.
        """
        layout = self.layout
        seen = layout.seconds
        if self.arcs:
            seen = np.where(barred(layout, self.cuts, seconds, self.arcs), np.inf, seen)
        joined = self.together(seconds, seen)
        load = np.zeros((int(joined.max()) + 1, layout.groups))
        np.add.at(load, joined, seen)
        load = np.where(load * _LESS <= seconds, load, np.inf)
        if not np.isfinite(load.min(axis=1)).all():
            return True
        return any(overfull(load, self.layout.count, self.main, seconds))

    @cached_property
    def main(self) -> int:
        """The group that can do most of the work."""
        seconds = self.layout.seconds
        totals = np.where(np.isfinite(seconds), seconds, 0.0).sum(axis=0)
        return int(np.argmax(self.layout.count / np.maximum(totals, 1e-300)))

    def together(self, seconds: float, load: Seconds) -> NDArray[np.int64]:
        """Units: the number of the set of units that must share a device in a plan of T seconds.

        Proof: let one unit make a tensor that another reads, and let them be on different devices
        of some pair of groups. Then each device carries its unit. Without overlap each, unless it
        is a host, also pays for the tensor, so both sums must be at most T. With overlap a channel
        carries the tensor. In a step the op that makes the tensor must first have ended, and the
        op that reads it and all that follows must come after the transfer. If for no pair of
        groups all these are at most T, the units are not on different devices. Units that are
        together are then one unit, and the argument repeats.
        """
        layout, a = self.layout, self.layout.problem.arrays
        joined = np.arange(layout.units)
        own = load
        source, target = layout.pair_source, layout.pair_unit
        for _ in range(_ROUNDS):
            may = np.zeros(len(source), dtype=bool)
            fits = load * _LESS <= seconds
            for one in range(layout.groups):
                for two in range(layout.groups):
                    sending = layout.sending(one, two)
                    if sending is None:
                        continue
                    tensor = sending[layout.pair_tensor]
                    if layout.sharing:
                        pays = 0.0 if layout.host[one] else tensor
                        gets = 0.0 if layout.host[two] else tensor
                        may |= ((load[joined[source], one] + pays) * _LESS <= seconds) & (
                            (load[joined[target], two] + gets) * _LESS <= seconds
                        )
                        continue
                    apart = fits[joined[source], one] & fits[joined[target], two]
                    if self.times is None:
                        may |= apart & (tensor * _LESS <= seconds)
                    else:
                        early = self.times.end[a.producer[layout.pair_tensor], one]
                        may |= apart & ((early + tensor + self.after[:, two]) * _LESS <= seconds)
            forced = ~may & (joined[source] != joined[target])
            if not forced.any():
                break
            ties = (joined[source[forced]], joined[target[forced]])
            joined = _tied(*ties, int(joined.max()) + 1)[joined]
            load = np.zeros((int(joined.max()) + 1, layout.groups))
            np.add.at(load, joined, own)
        return joined

    @cached_property
    def after(self) -> Seconds:
        """Pairs × groups: the most, over the unit's ops that read the tensor, that comes then."""
        layout, a = self.layout, self.layout.problem.arrays
        assert self.times is not None
        units = layout.units
        tensor = np.repeat(np.arange(len(a.sizes)), np.diff(a.first_reader))
        key = layout.pair_tensor * units + layout.pair_unit
        mine = tensor * units + a.unit[a.readers]
        after = np.zeros((len(key), layout.groups))
        if not len(key):
            return after
        at = np.minimum(np.searchsorted(key, mine), len(key) - 1)
        known = (key[at] == mine) & a.turn[a.readers]
        np.maximum.at(after, at[known], self.times.rest[a.readers[known]])
        return after


def _tied(one: NDArray[np.int64], other: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """The number of the set that each item is in, if these pairs are in one set."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(one)), (one, other)), shape=(size, size))
    found: NDArray[np.int64] = connected_components(graph, directed=False)[1].astype(np.int64)
    return found


def overfull(load: Seconds, count: NDArray[np.int64], main: int, seconds: float) -> list[bool]:
    """For each way to cut a device's time into parts: whether the units take more than there are.

    Proof. Let the units of one device take T seconds together, and cut T into k + 1 parts. A unit
    of x seconds has ⌊(k + 1) x / T⌋ whole parts (a little less, so that the product is below the
    next whole number also after rounding); over the device these add up to at most k, as they are
    whole numbers whose sum is below k + 1 (Johnson's functions; Fekete and Schepers 2001). So n
    equal devices hold at most n × k parts. What the main group does not hold, the others must:
    give them prices as in `Choices.bound`; a unit then takes at least its cheapest bill there, and
    all together at most T. Those that cannot be in the main group come first. The parts that the
    others can take off the main group are at most those of the best choice of units, cut at the
    margin, that fit into what is left: a knapsack. If what remains exceeds n × k, there is no plan
    of T seconds. With k without end the parts are the seconds themselves; these are tried too.
    """
    others = np.flatnonzero(np.arange(load.shape[1]) != main)
    bill = np.full(len(load), np.inf)
    if len(others):
        totals = np.where(np.isfinite(load[:, others]), load[:, others], 0.0).sum(axis=0)
        speed = 1 / np.maximum(totals, 1e-300)
        price = speed / (speed @ count[others])
        bill = (load[:, others] * price).min(axis=1)
    here = load[:, main] / seconds
    away = ~np.isfinite(here)
    spent = float((bill[away] / seconds).sum())
    if spent > _SAFE:
        return [True]
    stays = np.where(away, 0.0, here)
    parts = np.floor(stays[:, None] * np.arange(2, _PARTS + 2) * _LESS) / np.arange(1, _PARTS + 1)
    with np.errstate(invalid="ignore"):  # a bill and seconds that are both infinite: nothing leaves
        bills = bill / seconds
    return [
        float(column.sum()) - _taken(column, bills, 1 - spent) > count[main] * _SAFE
        for column in (*parts.T, stays)
    ]


def _taken(parts: Seconds, bill: Seconds, most: float) -> float:
    """The most parts that units, the last of them cut, have within a bill."""
    can = (parts > 0) & np.isfinite(bill)
    free, rest = can & (bill <= 0), np.flatnonzero(can & (bill > 0))
    order = rest[np.argsort(-parts[rest] / bill[rest], kind="stable")]
    before = np.cumsum(bill[order]) - bill[order]
    share = np.clip((most * _SAFE - before) / bill[order], 0.0, 1.0)
    return float(parts[free].sum() + (parts[order] * share).sum())
