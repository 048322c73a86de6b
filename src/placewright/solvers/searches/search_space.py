"""A space: a problem and a grouping in, the placements of whole groups that a search walks out.

A row is a device for each group. A space says which devices a group may take, which groups are
neighbours, and which sets of groups are worth moving as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.errors import ConfigError, ProblemError
from placewright.solvers.balanced import as_needed, folded
from placewright.transforms import Grouping, by_heavy_edges, by_module

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.problem import Problem
    from placewright.solvers.search import Search

Rows = NDArray[np.int32]
"""Plans × groups: the device of each group."""

SIZES = (4, 8, 16, 32, 64, 128, 256)
"""How many groups the coarsenings make whose groups are moved as one."""

ENOUGH = 4_000
"""Plans that a search judges if nobody says when to stop."""

_TIMES = 50  # a random search sees nearly all rows if it judges so many times their number
_MIDDLE = 5_000  # ops above which only some of these are made: one takes 0.3 s
_LARGE = 20_000  # ops above which none is: one takes 2 s


@dataclass(frozen=True, eq=False)
class Lists:
    """Lists of groups of unequal length, end to end."""

    first: NDArray[np.int64]
    values: NDArray[np.int64]

    @classmethod
    def of(cls, lists: Sequence[NDArray[np.int64]]) -> Lists:
        sizes = [len(each) for each in lists]
        values = np.concatenate([*lists, np.zeros(0, dtype=np.int64)]).astype(np.int64)
        return cls(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), values)

    def __len__(self) -> int:
        return len(self.first) - 1

    def __getitem__(self, at: int) -> NDArray[np.int64]:
        return self.values[self.first[at] : self.first[at + 1]]

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.first)


@dataclass(frozen=True, eq=False)
class Space:
    """The placements of a problem's groups.

    Args:
        legal: Groups × devices: where at least one of a group's ops may be.
        free: The groups that have a choice.
        orders: Each a permutation of all groups along the graph; stretches are cut from these.
        near: For each group those that it shares a tensor with.
        sets: Groups that belong together: modules at every depth, and coarser groups.
        work: Groups × devices: seconds of each group's ops there.
    """

    problem: Problem
    grouping: Grouping
    legal: NDArray[np.bool_]
    free: NDArray[np.int64]
    orders: NDArray[np.int64]
    near: Lists
    sets: Lists
    work: NDArray[np.float64]

    @classmethod
    def of(cls, problem: Problem, grouping: Grouping) -> Space:
        a, group, count = problem.arrays, grouping.group, len(grouping)
        moves = a.turn if a.turn.any() else np.ones(a.ops, dtype=bool)
        legal = np.zeros((count, a.devices), dtype=bool)
        np.logical_or.at(legal, group[moves], a.allowed[moves])
        silent = ~legal.any(axis=1)  # a group of nothing that takes a turn: weights nobody reads
        legal[silent] = a.allowed[np.unique(group, return_index=True)[1][silent]]
        seconds = np.where(a.allowed & a.turn[:, None], a.compute, 0.0)
        work = np.zeros((count, a.devices))
        np.add.at(work, group, seconds)
        return cls(
            problem,
            grouping,
            legal,
            np.flatnonzero(legal.sum(axis=1) > 1),
            _orders(problem, grouping),
            _near(problem, grouping),
            _sets(problem, grouping),
            work,
        )

    def __len__(self) -> int:
        return len(self.legal)

    @property
    def devices(self) -> int:
        return int(self.legal.shape[1])

    def plans(self, search: Search, most: int | None) -> float:
        """How many plans a random search should judge.

        Args:
            most: What its caller allows. None leaves it to the search's stop rule; without one
                that is sure to stop it is `ENOUGH`.
        """
        if most is None:
            most = None if search.stop.certain else ENOUGH
        rows = np.exp(np.minimum(np.log(self.legal.sum(axis=1)).sum(), 700.0))  # within a float
        return min(np.inf if most is None else most, _TIMES * round(float(rows)))

    def placements(self, rows: Rows) -> NDArray[np.int32]:
        """Plans × ops from plans × groups, lawful."""
        return self.problem.settle(self.grouping.expand(np.atleast_2d(rows)))

    def rows(self, placements: NDArray[np.integer]) -> Rows:
        """Plans × groups from plans × ops: where most of a group's work is."""
        a, group = self.problem.arrays, self.grouping.group
        placements = np.atleast_2d(placements)
        # Ops of no cost count a little, so that groups of nothing else have a device too.
        weight = np.where(a.turn, np.where(a.allowed, a.compute, 0.0).max(axis=1), 0.0)
        weight = weight + 1e-9 * (weight.max(initial=0.0) or 1.0) * (1e-3 + a.turn)
        cells = len(self) * self.devices
        votes = np.stack(
            [
                np.bincount(group * self.devices + placement, weight, cells)
                for placement in placements.astype(np.int64)
            ]
        )
        most: Rows = votes.reshape(-1, len(self), self.devices).argmax(axis=2).astype(np.int32)
        return most


def check_most(what: str, most: int | None) -> None:
    """Raise ConfigError unless a search may judge a plan."""
    if most is not None and most < 1:
        raise ConfigError(f"{what} of {most!r} plans: expected 1 or more")


def teams(problem: Problem) -> Grouping:
    """The finest grouping: a group for each team (`transforms/bundles.py`)."""
    return Grouping.of("teams", problem, problem.arrays.leader.tolist())


def few_groups(problem: Problem, most: int, count: int | None = None) -> Grouping:
    """Teams if there are at most so many, otherwise coarsened to `count` groups (or `most`)."""
    grouping = teams(problem)
    return grouping if len(grouping) <= most else coarser(problem, grouping, count or most)


def coarser(problem: Problem, fine: Grouping, count: int) -> Grouping:
    """Convex groups by heavy edges; where units make that impossible, or in very large graphs,
    stretches of the graph's order with equal numbers of the finer groups."""
    if len(problem.graph) <= _LARGE:
        try:
            return by_heavy_edges(problem, count)
        except ProblemError:  # units that are not convex
            pass
    stretch = fine.group.astype(np.int64) * count // len(fine)
    return Grouping.of(f"stretches:{count}", problem, stretch.tolist())


def _orders(problem: Problem, grouping: Grouping) -> NDArray[np.int64]:
    """Groups by their first op in graph order, just before they are needed, and folded."""
    places = [np.arange(len(problem.graph)), as_needed(problem)]
    if any(op.phase != "forward" for op in problem.graph.ops):
        places.append(folded(problem))
    orders = []
    for place in places:
        first = np.full(len(grouping), len(place))
        np.minimum.at(first, grouping.group, place)
        orders.append(first.argsort(kind="stable"))
    return np.unique(np.stack(orders), axis=0)


def _near(problem: Problem, grouping: Grouping) -> Lists:
    a, group = problem.arrays, grouping.group.astype(np.int64)
    reader = np.repeat(np.arange(a.ops), np.diff(a.first_input))
    source = a.producer[a.inputs]
    real = a.turn[source] & a.turn[reader] & (group[source] != group[reader])
    one, other = group[source[real]], group[reader[real]]
    count = len(grouping)
    pairs = np.unique(np.concatenate([one * count + other, other * count + one]))
    first = np.searchsorted(pairs, np.arange(count + 1) * count)
    return Lists(first.astype(np.int64), pairs % count)


def _sets(problem: Problem, grouping: Grouping) -> Lists:
    """Sets of two groups and more, not all of them, each once."""
    modules = [op.module for op in problem.graph.ops]
    depth = max(name.count(".") + 1 for name in modules) if any(modules) else 0
    labels = [by_module(problem, level).group for level in range(1, depth + 1)]
    wanted = SIZES if len(modules) <= _MIDDLE else SIZES[-3::2]
    sizes = [size for size in wanted if size < len(grouping)]
    labels += [coarser(problem, grouping, size).group for size in sizes]
    first = np.unique(grouping.group, return_index=True)[1]
    found: dict[bytes, NDArray[np.int64]] = {}
    for label in labels:
        of_group = label[first]
        order = np.argsort(of_group, kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(of_group[order])) + 1):
            if 1 < len(members) < len(grouping):
                found.setdefault(members.tobytes(), members)
    return Lists.of(list(found.values()))
