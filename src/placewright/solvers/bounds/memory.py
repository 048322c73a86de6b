"""Memory: what does not fit the fast devices is computed elsewhere or streamed, and both take time.

Every bound here holds for plans that fit only: plans compare by bytes over first, and one that
overflows may well be faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.disjoint_sets import Union
from placewright.solvers.bounds.relaxation import Choices

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from placewright.solvers.bounds.aggregates import Layout

Ints = NDArray[np.int64]
Seconds = NDArray[np.float64]

_LARGE = 20_000_000  # numbers in the loads of all modes, above which there is no bound
_ANY = ((0, np.inf),)  # sizes of the largest weight that is sent, if they are not told apart
_LIKE = 16  # weights of an op that are at least this share of its largest one are looked at as one


def memory(
    layout: Layout, chains: Sequence[Ints], cases: int = 3, nodes: int = 20, tries: int = 4
) -> float:
    """The least time in which weights live somewhere, and ops run there or wait for them.

    Args:
        chains: Ops that follow one another, for the step time.
        cases: The most sizes of the largest streamed weight that are told apart.
        nodes: Of the search tree for choices in whole numbers, at most.
        tries: How many times T are tried for which weights on their way take up room.

    Proof, for plans that fit. Let an *item* be a unit of ops with weights that it reads (each
    weight goes to one reader only; leaving out its other readers makes the bound no higher). In a
    plan an item takes a *mode*: the group of its device, and a group where its weights live; if
    they live in several, it takes each mode in proportion to bytes. A mode loads

    - the memory of the groups, with the bytes that live there. A group holds at most as many bytes
      as its devices have together (rule 8);
    - the time of the ops' group, as in `work`;
    - for weights that live in another group, the time to send them (rules 4 to 6: once, or once
      for each reader): of the channels between the two groups, which serve one transfer at a time
      (rule 5), or, without overlap, of the two devices unless they are hosts. Several weights taken
      as one count with the least seconds a byte of any of them;
    - for the step time, a second of each chain for every second of its ops, as these follow one
      another; and of an issuer, the launch overhead of each op that it starts (rule 1), which are
      at least so far apart; only the last may outlast the step.

    So each plan is a choice of modes, and `Choices.bound` proves the rest.

    *Cases.* A device to which a weight is sent must hold it beside its resident bytes, as staging
    or as a copy (rules 6 and 8). Let M be the size of the largest weight that is sent to the only
    device of a group. Then nothing larger is sent there, and M bytes less are left for residents.
    We take M from intervals, with the smallest of each, and the least bound over all intervals.

    *On the way.* Let a plan's step take T or less. Over the step a device has capacity × T of room
    and time. What lives there takes its bytes × T; a weight that is sent there takes its bytes for
    as long as the transfer lasts and the op that reads it runs (rules 6 and 8), in the staging or
    beside it. Divided by T, the latter loads the memory too. If T' is then a bound for plans of T
    or less, the smaller of T and T' is a bound for all. We look for the best T by halves.

    *Whole numbers.* An item with one weight takes one mode whole: see `Choices.whole`.
    """
    items = _Items.of(layout)
    rows = 3 * layout.groups + layout.groups**2 + len(chains)
    if not _full(layout).any() or len(items.unit) * layout.groups**2 * rows > _LARGE:
        return 0.0
    program = _Program(layout, items, chains)
    best = program.least(np.inf, cases, nodes)
    low, high = best, 2 * best
    for _ in range(tries if layout.problem.objective == "step" and best > 0 else 0):
        middle = (low + high) / 2
        found = program.least(middle, cases, nodes)
        best = max(best, min(middle, found))
        low, high = (middle, high) if found >= middle else (low, middle)
    return layout.rounded_down(best)


def _full(layout: Layout) -> NDArray[np.bool_]:
    """Groups that cannot hold all that may live there."""
    capacity = layout.problem.arrays.capacity[layout.first] * layout.count
    may = np.isfinite(layout.seconds)
    return np.asarray(np.where(may, layout.resident[:, None], 0).sum(axis=0) > capacity)


def _intervals(sizes: Ints, cases: int) -> Iterator[tuple[int, float]]:
    """(smallest, above all) of the sizes of the largest weight that is sent; none is the first."""
    known = np.unique(sizes[sizes > 0])
    yield 0, float(known[0]) if len(known) else np.inf
    if len(known):
        cuts = known[np.unique(np.linspace(0, len(known), cases + 1).astype(int)[:-1])]
        yield from zip(cuts.tolist(), [*map(float, cuts[1:]), np.inf], strict=True)


@dataclass(frozen=True, eq=False)
class _Items:
    """Units, some with weights of other units that they read."""

    unit: Ints  # items: the unit whose ops they are
    own: Ints  # items: bytes that live where the ops run
    bytes: Ints  # items: of weights that may live elsewhere
    rate: Seconds  # items × rows of transfer: the least seconds a byte of these weights
    piece: Ints  # items: the smallest of these weights, as sent
    hold: Seconds  # items × groups: the least time of an op that reads one of these weights
    single: NDArray[np.bool_]  # items: no more than one such weight, so one mode

    @classmethod
    def of(cls, layout: Layout) -> _Items:
        a = layout.problem.arrays
        units, rows = layout.units, len(layout.transfer)
        runs = np.zeros(units, dtype=bool)
        runs[a.unit[a.turn]] = True
        free = ~runs & np.isfinite(layout.seconds).all(axis=1)
        weights = np.ones(units, dtype=bool)
        np.logical_and.at(weights, a.unit, a.weight)
        reader = np.zeros(units, dtype=np.int64)
        reader[a.unit] = a.unit[a.leader]
        # What the reader reads of each weight's unit: seconds by row, and the smallest tensor.
        pair = layout.pair_unit == reader[layout.pair_source]
        source, tensor = layout.pair_source[pair], layout.pair_tensor[pair]
        seconds = np.zeros((units, rows))
        np.add.at(seconds, source, layout.transfer[:, tensor].T)
        piece = np.full(units, np.iinfo(np.int64).max)
        np.minimum.at(piece, source, a.sizes[tensor])
        movable = free & weights & (layout.resident > 0) & (reader != np.arange(units))
        movable[np.setdiff1d(np.arange(units), source)] = False
        largest = np.zeros(units, dtype=np.int64)
        np.maximum.at(largest, reader[movable], layout.resident[movable])
        movable &= layout.resident * _LIKE >= largest[reader]
        moved = np.flatnonzero(movable)
        size, rate = np.zeros(units, dtype=np.int64), np.full((units, rows), np.inf)
        np.add.at(size, reader[moved], layout.resident[moved])
        np.minimum.at(rate, reader[moved], seconds[moved] / layout.resident[moved, None])
        least = np.full(units, np.iinfo(np.int64).max)
        np.minimum.at(least, reader[moved], piece[moved])
        hold = _reading(layout, source, tensor, reader)
        kept = np.flatnonzero(~movable & (runs | (layout.resident > 0)))
        return cls(
            kept,
            layout.resident[kept],
            size[kept],
            np.where(np.isfinite(rate[kept]), rate[kept], 0.0),
            np.where(size[kept] > 0, least[kept], 0),
            np.where(size[kept, None] > 0, hold[kept], 0.0),
            np.bincount(reader[moved], minlength=units)[kept] <= 1,
        )


def _reading(layout: Layout, source: Ints, tensor: Ints, reader: Ints) -> Seconds:
    """Units × groups: the least time of its ops that read one of these tensors from elsewhere."""
    a = layout.problem.arrays
    wanted = np.zeros(len(a.sizes), dtype=bool)
    wanted[tensor] = True
    to = np.zeros(len(a.sizes), dtype=np.int64)
    to[tensor] = reader[source]
    read = np.repeat(np.arange(len(a.sizes)), np.diff(a.first_reader))
    mine = wanted[read] & a.turn[a.readers] & (a.unit[a.readers] == to[read])
    found = np.full((layout.units, layout.groups), np.inf)
    np.minimum.at(found, a.unit[a.readers[mine]], layout.op_seconds[a.readers[mine]])
    return np.where(np.isfinite(found), found, 0.0)


class _Program:
    """The rows of the choice: groups' time and memory, channels, chains, issuers."""

    def __init__(self, layout: Layout, items: _Items, chains: Sequence[Ints]) -> None:
        self.layout, self.items = layout, items
        a, groups = layout.problem.arrays, layout.groups
        self.wire, wires = _wires(layout)
        step = layout.problem.objective == "step"
        self.chains = [self._chain(chain) for chain in chains] if step else []
        issuers = np.unique(a.issuer[layout.first]) if step else np.zeros(0, dtype=np.int64)
        self.issuers = [int(at) for at in issuers if (a.issuer == at).sum() > 1 and at >= 0]
        self.rows = 3 * groups + len(wires) + len(self.chains) + len(self.issuers)
        self.width = np.concatenate(
            [
                layout.count,
                np.zeros(2 * groups),
                wires,
                np.ones(len(self.chains) + len(self.issuers)),
            ]
        ).astype(np.float64)

    def least(self, seconds: float, cases: int, nodes: int) -> float:
        """The bound for plans that take at most so many seconds."""
        layout, items = self.layout, self.items
        tight = np.flatnonzero(_full(layout) & (layout.count == 1) & ~layout.host)
        group = int(tight[0]) if len(tight) else -1
        capacity = layout.problem.arrays.capacity[layout.first]
        found = np.inf
        for low, high in _intervals(items.piece[items.bytes > 0], cases) if group >= 0 else _ANY:
            if group < 0 or low <= capacity[group]:
                choices = self.choices(seconds, group, low, high)
                value = choices.best()[0]
                value = max(value, choices.whole(items.single, value, nodes, most=10 * nodes))
                found = min(found, value)
        return found

    def choices(self, seconds: float, tight: int, least: int, most: float) -> Choices:
        """The modes of plans of at most so many seconds that send such weights to the tight group.

        Args:
            least: The largest weight sent there has at least so many bytes,
            most: and less than these.
        """
        layout, items, a = self.layout, self.items, self.layout.problem.arrays
        groups = layout.groups
        load = np.full((len(items.unit), groups * groups, self.rows), np.inf)
        for runs in range(groups):
            may = np.isfinite(layout.seconds[items.unit, runs])
            for lives in range(groups):
                moves = items.bytes > 0
                may_now = may & (moves if runs != lives else True)
                if runs == tight and lives != tight:
                    may_now &= items.piece < most
                mode = np.zeros((int(may_now.sum()), self.rows))
                units = items.unit[may_now]
                mode[:, runs] += layout.seconds[units, runs]
                for held in (groups, 2 * groups):  # what lives there, and also what passes
                    mode[:, held + runs] += items.own[may_now]
                    mode[:, held + lives] += items.bytes[may_now]
                if runs != lives:
                    row = layout.way[lives, runs]
                    sending = items.bytes[may_now] * items.rate[may_now, row]
                    lasts = sending + items.hold[may_now, runs]
                    mode[:, 2 * groups + runs] += items.bytes[may_now] * (lasts / seconds)
                    if not layout.sharing:
                        mode[:, 3 * groups + self.wire[lives, runs]] += sending
                    for end in (runs, lives) if layout.sharing else ():
                        mode[:, end] += 0.0 if layout.host[end] else sending
                at = self.rows - len(self.chains) - len(self.issuers)
                for chain in self.chains:
                    mode[:, at] = chain[units, runs]
                    at += 1
                for issuer in self.issuers:
                    if a.issuer[layout.first[runs]] == issuer:
                        mode[:, at] = self._starts(runs)[units] * a.launch[layout.first[runs]]
                    at += 1
                load[may_now, runs * groups + lives] = mode
        room = np.zeros(self.rows)
        room[groups : 3 * groups] = np.tile(a.capacity[layout.first] * layout.count, 2)
        if tight >= 0:
            room[groups + tight] -= least
        if self.issuers:
            room[-len(self.issuers) :] = float(a.launch.max())
        return Choices(load, self.width, room)

    def _chain(self, ops: Ints) -> Seconds:
        """Units × groups: seconds of the chain's ops."""
        layout, a = self.layout, self.layout.problem.arrays
        found = np.zeros((layout.units, layout.groups))
        seconds = layout.op_seconds[ops]
        np.add.at(found, a.unit[ops], np.where(np.isfinite(seconds), seconds, 0.0))
        return found

    def _starts(self, group: int) -> Seconds:
        """Units: how many of its ops take time in this group."""
        layout, a = self.layout, self.layout.problem.arrays
        takes = a.turn & (a.compute[:, layout.first[group]] > 0)
        found: Seconds = np.bincount(a.unit[takes], minlength=layout.units).astype(np.float64)
        return found


def _wires(layout: Layout) -> tuple[Ints, Ints]:
    """Groups × groups: the set of channels between them; and how many channels each set has.

    Two pairs of groups that share a channel share the set.
    """
    a, groups = layout.problem.arrays, layout.groups
    union = Union(a.channels)
    first = np.full((groups, groups), -1, dtype=np.int64)
    for one in range(groups):
        for two in range(groups):
            block = a.channel[np.ix_(layout.group == one, layout.group == two)]
            used = np.unique(block[block >= 0]).tolist()
            for channel in used:
                union.join(used[0], channel)
            if used:
                first[one, two] = used[0]
    roots = np.array([union.find(channel) for channel in range(a.channels)], dtype=np.int64)
    known, count = np.unique(roots, return_counts=True)
    wire = np.where(first >= 0, np.searchsorted(known, roots[first] if len(roots) else first), -1)
    return wire.astype(np.int64), count.astype(np.int64)
