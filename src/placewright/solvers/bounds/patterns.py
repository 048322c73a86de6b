"""Patterns: seconds in which the devices cannot share out the units among them, counted by sets.

A *pattern* is a set of units that one device of a group can carry in T seconds, with its
transfers. If every unit has a value, and the best patterns of all devices together are worth less
than all units, no plan takes T seconds. Good values are found by column generation (Gilmore and
Gomory 1961).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from placewright.solvers.bounds.aggregates import Layout
    from placewright.solvers.bounds.packing import Packing

Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]
Seconds = NDArray[np.float64]

_NODES = 400  # of the search tree for one best pattern: a count, so that the bound never changes
_GAPS = (1e-2, 1e-3, 1e-4)  # between the best pattern found and the best there may be
_ROUNDS = 60  # of new patterns for one T
_EACH = 20_000  # what a programme costs however small it is, in the same measure as its square
_SHARE = 3  # one T may take this part of what is left of the budget
_STAY = 0.5  # how much of the next values is of the best before
_FINE = 1e-4  # steps of T, as a share, that are too small to try
_SLACK = 1e-9  # of worth, for rounding


def patterns(layout: Layout, packed: Packing, at_least: float, budget: int) -> float:
    """The largest T tried in which the patterns are worth too little, or 0.

    Args:
        packed: Which units must share a device in a plan of T seconds.
        at_least: A bound proved otherwise, where the search begins.
        budget: The squares of the sizes of the programmes solved, at most.

    Proof. Let a plan take T seconds or less. The units on each of its devices are a pattern of the
    device's group, as in the proof of `Cuts`: work and transfers within T without overlap; else
    work within T, and the transfers within T on each channel of the device. Units that must be
    together are together. Each unit is in one of these patterns. So for any values of the units,
    all of them are worth at most the sum, over devices, of the best pattern of its group. If that
    sum is less, there is no such plan; nor one of fewer seconds. Memory is left out of account.
    """
    if not at_least > 0 or (layout.groups == 1 and layout.count[0] == 1):
        return 0.0
    search = _Search(layout, packed, budget)
    best, step, failed = at_least, 0.01, False
    while search.budget > 0 and step > _FINE:
        if search.refuted(best * (1 + step)):
            best *= 1 + step
            step *= 1 if failed else 2
        else:
            failed, step = True, step / 4
    return layout.rounded_down(best) if best > at_least else 0.0


@dataclass
class _Search:
    layout: Layout
    packed: Packing
    budget: int
    values: Seconds | None = None  # units: the values that served last
    found: list[tuple[int, Ints]] = field(default_factory=list)  # (group, units) of good patterns

    def refuted(self, seconds: float) -> bool:
        """Whether no plan takes at most so many seconds."""
        layout = self.layout
        pool = _Pool.of(layout, self.packed.together(seconds, layout.seconds), seconds)
        if not (pool.load <= 1).any(axis=1).all():
            return True  # a unit fits nowhere
        # Patterns known from other T, as far as they still are ones.
        known = [(g, pool.fitted(g, np.unique(pool.part[units]))) for g, units in self.found]
        columns = [(g, parts) for g, parts in known if len(parts)]
        columns += [(g, np.array([u])) for u, g in np.argwhere(pool.load <= 1).tolist()]
        fastest = layout.seconds.min(axis=1)
        values = _normal(pool.summed(fastest if self.values is None else self.values))
        good, least = values, np.inf
        until = self.budget - self.budget // _SHARE
        for _ in range(_ROUNDS):
            for gap in _GAPS:  # as fine as it takes to know whether the patterns suffice
                worth = reached = 0.0
                fresh = []
                for group, count in enumerate(layout.count.tolist()):
                    most, parts, cost = pool.best(group, values, gap)
                    self.budget -= cost
                    worth += count * most
                    reached += count * float(values[parts].sum())
                    fresh.append((group, parts))
                if worth < 1 - _SLACK or reached >= 1 or self.budget <= 0:
                    break
            if worth < 1 - _SLACK:
                self.values = values[pool.part] / np.bincount(pool.part)[pool.part]
                return True
            if self.budget <= until:
                return False
            if worth < least:
                good, least = values, worth
            columns += fresh
            self.found += [
                (group, np.flatnonzero(np.isin(pool.part, parts))) for group, parts in fresh
            ]
            covered, dual = _shared(columns, len(pool.load), layout.count)
            if covered >= 1 - 1e-9:
                return False  # these patterns, divided as one likes, carry everything
            # Values that jump about find few good patterns: stay near those that served best.
            values = _normal(_STAY * good + (1 - _STAY) * _normal(dual))
        return False


def _normal(values: Seconds) -> Seconds:
    values = np.maximum(values, 0.0)
    found: Seconds = values / max(float(values.sum()), 1e-300)
    return found


def _shared(columns: list[tuple[int, Ints]], units: int, count: Ints) -> tuple[float, Seconds]:
    """The largest share of every unit that the devices carry with these patterns; units' values."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    sizes = [len(parts) for _, parts in columns]
    row = np.concatenate([parts for _, parts in columns])
    column = np.repeat(np.arange(len(columns)), sizes)
    last = len(columns)
    covers = coo_array(
        (
            np.concatenate([-np.ones(len(row)), np.ones(units)]),
            (np.concatenate([row, np.arange(units)]), np.append(column, np.full(units, last))),
        ),
        shape=(units, last + 1),
    )
    groups = np.array([group for group, _ in columns])
    uses = coo_array((np.ones(last), (groups, np.arange(last))), shape=(len(count), last + 1))
    from scipy.sparse import vstack

    solved = linprog(
        -(np.arange(last + 1) == last).astype(np.float64),
        A_ub=vstack([covers, uses]).tocsr(),
        b_ub=np.concatenate([np.zeros(units), count]),
        bounds=(0, None),
        method="highs",
    )
    if solved.status != 0:
        return np.inf, np.zeros(units)
    return -float(solved.fun), -solved.ineqlin.marginals[:units]


@dataclass(frozen=True, eq=False)
class _Pool:
    """Units that must be together as one, and their tensors, in shares of T."""

    layout: Layout
    part: Ints  # units: its place here
    load: Seconds  # parts × groups
    source: Ints  # tensors: the part that makes them
    reader: Ints  # pairs: a part that reads
    read: Ints  # pairs: the tensor
    sent: Seconds  # tensors × groups: the least share to send them
    got: Seconds  # tensors × groups: or to receive them

    @classmethod
    def of(cls, layout: Layout, part: Ints, seconds: float) -> _Pool:
        load = np.zeros((int(part.max()) + 1, layout.groups))
        np.add.at(load, part, layout.seconds)
        source, reader = part[layout.pair_source], part[layout.pair_unit]
        apart = source != reader
        tensors, first, read = np.unique(
            layout.pair_tensor[apart], return_index=True, return_inverse=True
        )
        ends = [
            [layout.least_sending(group, leaving)[tensors] for group in range(layout.groups)]
            for leaving in (True, False)
        ]
        sent, got = (np.stack(each, axis=1) / seconds for each in ends)
        # Tensors of one part that the same parts read are one tensor.
        pairs = np.unique(np.stack([read, reader[apart]], axis=1), axis=0)
        heads = source[apart][first]
        keys: dict[tuple[int, ...], int] = {}
        rows = np.split(pairs[:, 1], np.flatnonzero(np.diff(pairs[:, 0])) + 1)
        same = np.array(
            [
                keys.setdefault((int(heads[at]), *row.tolist()), len(keys))
                for at, row in enumerate(rows if len(tensors) else [])
            ],
            dtype=np.int64,
        )
        total = np.zeros((2, len(keys), layout.groups))
        np.add.at(total[0], same, sent)
        np.add.at(total[1], same, got)
        names = list(keys)
        return cls(
            layout,
            part,
            load / seconds,
            np.array([name[0] for name in names], dtype=np.int64),
            np.array([reader for name in names for reader in name[1:]], dtype=np.int64),
            np.repeat(np.arange(len(names)), [len(name) - 1 for name in names]),
            total[0],
            total[1],
        )

    def summed(self, values: Seconds) -> Seconds:
        """Parts: the values of their units."""
        return np.bincount(self.part, weights=values, minlength=len(self.load)).astype(np.float64)

    def fitted(self, group: int, parts: Ints) -> Ints:
        """These parts if they are a pattern of the group, none if they are not."""
        inside = np.zeros(len(self.load), dtype=bool)
        inside[parts] = True
        out = np.zeros(len(self.source), dtype=bool)
        np.logical_or.at(out, self.read, ~inside[self.reader])
        into = np.zeros(len(self.source), dtype=bool)
        np.logical_or.at(into, self.read, inside[self.reader])
        sent = float(self.sent[out & inside[self.source], group].sum())
        got = float(self.got[into & ~inside[self.source], group].sum())
        work = float(self.load[parts, group].sum())
        moved, channels = self._moved(group)
        fits = work + moved * (sent + got) <= 1 if moved else work <= 1
        return parts if fits and (channels == 0 or sent + got <= channels) else parts[:0]

    def _moved(self, group: int) -> tuple[float, int]:
        """Whether transfers take the device's time, and else how many channels share them."""
        if self.layout.sharing:
            return (0.0 if self.layout.host[group] else 1.0), 0
        return 0.0, self.layout.channels(group)

    def best(self, group: int, values: Seconds, gap: float) -> tuple[float, Ints, int]:
        """No pattern of the group is worth more than this; a good pattern; what it cost to find.

        A part is in or out of the pattern; a tensor is sent if its producer is in and a reader is
        out, received if a reader is in and the producer out; the sums must be within T. As in
        `Choices.whole`, HiGHS's dual bound may be off by its tolerances: 1e-6 for branches cut off,
        and 1e-7 for each reduced cost times the range of its variable, which is 1. Values add up
        to 1. Twice this is added.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array, vstack

        may = self.load[:, group] <= 1
        moved, channels = self._moved(group)
        if not (moved or channels):
            return self._knapsack(group, values, may)
        units, tensors = len(self.load), len(self.source)
        size = units + 2 * tensors
        pairs = len(self.read)
        row, one = np.arange(pairs), np.ones(pairs)
        source = self.source[self.read]
        sends = coo_array(
            (
                np.concatenate([one, -one, one]),
                (np.tile(row, 3), np.concatenate([units + self.read, source, self.reader])),
            ),
            shape=(pairs, size),
        )
        gets = coo_array(
            (
                np.concatenate([one, one, -one]),
                (
                    np.tile(row, 3),
                    np.concatenate([units + tensors + self.read, source, self.reader]),
                ),
            ),
            shape=(pairs, size),
        )
        work = np.zeros(size)
        work[:units] = np.where(may, self.load[:, group], 0.0)
        wires = np.concatenate([np.zeros(units), self.sent[:, group], self.got[:, group]])
        rows = [work + wires] if moved else [work, wires / channels]
        solved = milp(
            np.concatenate([-values, np.zeros(2 * tensors)]),
            integrality=np.concatenate([np.ones(units), np.zeros(2 * tensors)]),
            bounds=Bounds(0.0, np.concatenate([may, np.ones(2 * tensors)]).astype(np.float64)),
            constraints=[
                LinearConstraint(vstack([sends, gets]).tocsr(), 0, np.inf),
                *(LinearConstraint(each[None], -np.inf, 1) for each in rows),
            ],
            options={"node_limit": _NODES, "mip_rel_gap": gap, "presolve": False},
        )
        cost = _EACH + size * (size + 3 * int(solved.mip_node_count or 0))
        parts = np.flatnonzero(solved.x[:units] > 0.5) if solved.x is not None else np.zeros(0, int)
        most = 1.0 if solved.mip_dual_bound is None else -float(solved.mip_dual_bound)
        return min(1.0, most + 2e-6 + 2e-7 * size), self.fitted(group, parts), cost

    def _knapsack(self, group: int, values: Seconds, may: Flags) -> tuple[float, Ints, int]:
        """The best parts, the last of them cut, that one device carries without transfers."""
        load = np.where(may, self.load[:, group], np.inf)
        order = np.flatnonzero(may & (values > 0))
        order = order[np.argsort(-values[order] / np.maximum(load[order], 1e-300), kind="stable")]
        before = np.cumsum(load[order]) - load[order]
        share = np.clip((1 - before) / np.maximum(load[order], 1e-300), 0.0, 1.0)
        whole = order[np.cumsum(load[order]) <= 1]
        return float((values[order] * share).sum()) * (1 + 1e-9), whole, len(values)
