"""The search space: placements of whole groups, their legal devices and neighbours.

A row is a device for each group. A space says which devices a group may take, which groups are
neighbours, and which sets of groups are worth moving as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.errors import ConfigError, ProblemError
from placewright.solvers.balanced import demand_positions, folded_positions
from placewright.transforms import Grouping, by_heavy_edges, by_module

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.problem import Problem
    from placewright.solvers.search import Search

Rows = NDArray[np.int32]
"""Plans × groups: the device of each group."""

COARSE_SIZES = (4, 8, 16, 32, 64, 128, 256)
"""Numbers of groups of the coarsenings whose groups are moved as one."""

DEFAULT_PLANS = 4_000
"""Plans that a search evaluates without a stop rule."""

_SAMPLES_PER_ROW = (
    50  # times the number of rows: evaluations after which a random search has seen nearly all
)
_LARGE_GRAPH = 5_000  # ops above which only some coarsenings are made: one takes 0.3 s
_HUGE_GRAPH = 20_000  # ops above which none are made: one takes 2 s


@dataclass(frozen=True, eq=False)
class Ragged:
    """Lists of groups of unequal length, end to end."""

    offsets: NDArray[np.int64]
    values: NDArray[np.int64]

    @classmethod
    def of(cls, lists: Sequence[NDArray[np.int64]]) -> Ragged:
        sizes = [len(items) for items in lists]
        values = np.concatenate([*lists, np.zeros(0, dtype=np.int64)]).astype(np.int64)
        return cls(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), values)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, at: int) -> NDArray[np.int64]:
        return self.values[self.offsets[at] : self.offsets[at + 1]]

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)


@dataclass(frozen=True, eq=False)
class SearchSpace:
    """The placements of a problem's groups.

    Args:
        legal: Groups × devices: where at least one of a group's ops may be.
        movable: The groups that have a choice.
        orders: Permutations of all groups along the graph; runs are taken from these.
        adjacency: The groups that each group shares a tensor with.
        group_sets: Groups that belong together: modules at every depth, and coarser groups.
        work: Groups × devices: seconds of each group's ops there.
    """

    problem: Problem
    grouping: Grouping
    legal: NDArray[np.bool_]
    movable: NDArray[np.int64]
    orders: NDArray[np.int64]
    adjacency: Ragged
    group_sets: Ragged
    work: NDArray[np.float64]

    @classmethod
    def of(cls, problem: Problem, grouping: Grouping) -> SearchSpace:
        a, group, count = problem.arrays, grouping.group, len(grouping)
        counts = a.scheduled if a.scheduled.any() else np.ones(a.ops, dtype=bool)
        legal = np.zeros((count, a.devices), dtype=bool)
        np.logical_or.at(legal, group[counts], a.allowed[counts])
        unscheduled = ~legal.any(axis=1)  # a group of unscheduled ops: unread weights
        legal[unscheduled] = a.allowed[np.unique(group, return_index=True)[1][unscheduled]]
        seconds = np.where(a.allowed & a.scheduled[:, None], a.compute, 0.0)
        work = np.zeros((count, a.devices))
        np.add.at(work, group, seconds)
        return cls(
            problem,
            grouping,
            legal,
            np.flatnonzero(legal.sum(axis=1) > 1),
            group_orders(problem, grouping),
            _adjacency(problem, grouping),
            _group_sets(problem, grouping),
            work,
        )

    def __len__(self) -> int:
        return len(self.legal)

    @property
    def devices(self) -> int:
        return int(self.legal.shape[1])

    def plan_budget(self, search: Search, max_plans: int | None) -> float:
        """As `plan_budget` says."""
        return plan_budget(search, self.legal, max_plans)

    def placements(self, rows: Rows) -> NDArray[np.int32]:
        """Legal placements, plans × ops, from plans × groups."""
        return self.problem.legalize(self.grouping.expand(np.atleast_2d(rows)))

    def rows(self, placements: NDArray[np.integer]) -> Rows:
        """Plans × groups from plans × ops: the device of most of a group's work."""
        a, group = self.problem.arrays, self.grouping.group
        placements = np.atleast_2d(placements)
        # Ops without cost count a little, so that groups of such ops have a device too.
        weight = np.where(a.scheduled, np.where(a.allowed, a.compute, 0.0).max(axis=1), 0.0)
        weight = weight + 1e-9 * (weight.max(initial=0.0) or 1.0) * (1e-3 + a.scheduled)
        cells = len(self) * self.devices
        votes = np.stack(
            [
                np.bincount(group * self.devices + placement, weight, cells)
                for placement in placements.astype(np.int64)
            ]
        )
        majority: Rows = votes.reshape(-1, len(self), self.devices).argmax(axis=2).astype(np.int32)
        return majority


def plan_budget(search: Search, legal: NDArray[np.bool_], max_plans: int | None) -> float:
    """The number of plans that a random search should evaluate.

    Args:
        legal: Groups × devices: where groups may be.
        max_plans: The caller's limit. None leaves it to the search's stop rule, or to
            `DEFAULT_PLANS` if that may never end the search.
    """
    if max_plans is None:
        max_plans = None if search.stop.certain else DEFAULT_PLANS
    rows = np.exp(np.minimum(np.log(legal.sum(axis=1)).sum(), 700.0))  # within a float
    return min(np.inf if max_plans is None else max_plans, _SAMPLES_PER_ROW * round(float(rows)))


def check_max_plans(solver: str, max_plans: int | None) -> None:
    """Raise ConfigError unless a search may evaluate a plan."""
    if max_plans is not None and max_plans < 1:
        raise ConfigError(f"{solver} of {max_plans!r} plans: expected 1 or more")


def bundle_grouping(problem: Problem) -> Grouping:
    """The finest grouping: a group for each bundle (`transforms/bundles.py`)."""
    return Grouping.of("bundles", problem, problem.arrays.leader.tolist())


def bounded_grouping(problem: Problem, max_groups: int, count: int | None = None) -> Grouping:
    """Bundles if there are at most `max_groups`, else `count` (or `max_groups`) groups."""
    grouping = bundle_grouping(problem)
    return (
        grouping
        if len(grouping) <= max_groups
        else coarser_grouping(problem, grouping, count or max_groups)
    )


def coarser_grouping(problem: Problem, fine: Grouping, count: int) -> Grouping:
    """Convex groups by heavy edges; where units make that impossible, or in very large graphs,
    segments of the graph's order with equal numbers of the finer groups."""
    if len(problem.graph) <= _HUGE_GRAPH:
        try:
            return by_heavy_edges(problem, count)
        except ProblemError:  # units that are not convex
            pass
    run = fine.group.astype(np.int64) * count // len(fine)
    return Grouping.of(f"segments:{count}", problem, run.tolist())


def group_orders(problem: Problem, grouping: Grouping) -> NDArray[np.int64]:
    """Groups by their first op in graph order, in demand order, and in folded order."""
    positions = [np.arange(len(problem.graph)), demand_positions(problem)]
    if any(op.phase != "forward" for op in problem.graph.ops):
        positions.append(folded_positions(problem))
    orders = []
    for position in positions:
        first_position = np.full(len(grouping), len(position))
        np.minimum.at(first_position, grouping.group, position)
        orders.append(first_position.argsort(kind="stable"))
    return np.unique(np.stack(orders), axis=0)


def _adjacency(problem: Problem, grouping: Grouping) -> Ragged:
    a, group = problem.arrays, grouping.group.astype(np.int64)
    source = a.producer[a.inputs]
    crossing = a.scheduled[source] & a.scheduled[a.reader] & (group[source] != group[a.reader])
    source_group, reader_group = group[source[crossing]], group[a.reader[crossing]]
    count = len(grouping)
    pairs = np.unique(
        np.concatenate([source_group * count + reader_group, reader_group * count + source_group])
    )
    offsets = np.searchsorted(pairs, np.arange(count + 1) * count)
    return Ragged(offsets.astype(np.int64), pairs % count)


def _group_sets(problem: Problem, grouping: Grouping) -> Ragged:
    """Distinct sets of two or more groups, but not of all."""
    modules = [op.module for op in problem.graph.ops]
    depth = max(name.count(".") + 1 for name in modules) if any(modules) else 0
    labels = [by_module(problem, level).group for level in range(1, depth + 1)]
    coarse_sizes = COARSE_SIZES if len(modules) <= _LARGE_GRAPH else COARSE_SIZES[-3::2]
    sizes = [size for size in coarse_sizes if size < len(grouping)]
    labels += [coarser_grouping(problem, grouping, size).group for size in sizes]
    first_op = np.unique(grouping.group, return_index=True)[1]
    sets: dict[bytes, NDArray[np.int64]] = {}
    for label in labels:
        of_group = label[first_op]
        order = np.argsort(of_group, kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(of_group[order])) + 1):
            if 1 < len(members) < len(grouping):
                sets.setdefault(members.tobytes(), members)
    return Ragged.of(list(sets.values()))
