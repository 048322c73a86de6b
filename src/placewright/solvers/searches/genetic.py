"""Genetic search: a problem in, plans bred from better plans out.

Crossover along the graph's order, with an elite parent in every pair and random keys for the order
as in BRKGA (Gonçalves and Resende 2011, J. Heuristics 17); moves of local search on the best, and a
penalty for bytes over that adapts itself as in hybrid genetic search (Vidal et al. 2012, Oper. Res.
60(3)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.errors import ConfigError
from placewright.scheduling.ranks import upward_ranks
from placewright.solvers.searches.crossover import (
    aligned,
    alike,
    crossed,
)
from placewright.solvers.searches.initial_plans import (
    distinct,
    scattered,
    starts,
)
from placewright.solvers.searches.moves import neighbours
from placewright.solvers.searches.order_polish import Polish
from placewright.solvers.searches.search_space import (
    Space,
    check_most,
    few_groups,
)
from placewright.transforms.bundles import accelerators

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.problem import Problem
    from placewright.simulator import Verdict
    from placewright.solvers.search import Search
    from placewright.solvers.searches.search_space import Rows
    from placewright.transforms import Grouping

Scores = NDArray[np.float64]

_TEAMS, _GROUPS = 300, 200  # most teams that are groups of their own; groups if there are more
_ELITE = 0.25  # share of the population that one parent comes from
_NEAR = 0.4  # share of the children that are a move away from an elite plan
_FIT = (0.3, 0.7)  # the penalty grows while fewer of the children fit, and falls while more do
_PENALTY = (1e-2, 1e6)  # its limits; 1 doubles the time of a plan that is a device's memory over
_RULES = 10  # generations between two looks at the priority rules


@dataclass(frozen=True)
class Genetic:
    """A population of placements of whole groups, with an order for each, bred for better ones.

    It begins with the best plan so far, single devices, balanced splits and random stretches. Some
    children are crossed from two plans (whose equal devices are matched first, as their numbers
    mean nothing), some are a move away from one of the best. Plans over memory live on for a while
    under a penalty that grows until enough plans fit.

    Args:
        group: Makes the grouping; if not given teams, coarsened where there are many.
        population: Plans alive at a time, and children of a generation.
        most: Plans to judge; if not given the stop rule alone decides, or 4,000 without one.
        ordered: Whether plans have an order of their own, or all the graph's.
    """

    group: Callable[[Problem], Grouping] | None = None
    population: int = 48
    most: int | None = None
    ordered: bool = True
    name = "genetic"

    def __post_init__(self) -> None:
        if self.population < 4:
            raise ConfigError(f"Genetic with {self.population!r} plans alive: expected 4 or more")
        check_most("Genetic", self.most)

    def run(self, search: Search) -> None:
        problem = search.problem
        grouping = self.group(problem) if self.group else few_groups(problem, _TEAMS, _GROUPS)
        herd = _Herd(search, Space.of(problem, grouping), self.population, self.ordered)
        if not herd.begin():
            return
        end, generation = search.evaluations + herd.space.plans(search, self.most), 0
        while not search.over and search.evaluations < end:
            herd.breed()
            generation += 1
            if generation % _RULES == 0:
                herd.polish(*herd.best())


class _Herd:
    """A population: rows, keys for the order, and how good each plan is."""

    def __init__(self, search: Search, space: Space, size: int, ordered: bool) -> None:
        problem = search.problem
        self.search, self.space, self.size = search, space, size
        self.ordering = ordered and problem.objective == "step"
        self.alike = alike(problem)
        self.penalty = 1.0
        self.room = max(1.0, float(problem.arrays.capacity[accelerators(problem)].mean()))
        self.bases = _bases(search)
        self.polish = Polish(search, space, ordered)
        groups = len(space)
        self.rows: Rows = np.zeros((0, groups), dtype=np.int32)
        self.keys: NDArray[np.float64] = np.zeros((0, groups))
        self.base: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.over: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.value: Scores = np.zeros(0)

    def begin(self) -> bool:
        """Judge the first plans; false if the search is over."""
        search, rng = self.search, self.search.rng
        rows = starts(search, self.space)
        missing = max(self.size - len(rows), self.size // 3)
        rows = np.concatenate([rows, scattered(self.space, rng, missing)])
        rows = distinct(rows)
        # The start has its own order; the others take all orders in turn.
        base = (np.arange(len(rows)) + len(self.bases) - 1) % len(self.bases)
        self._judge(rows, np.zeros(rows.shape), base)
        return len(self.rows) > 0 and not search.over

    def breed(self) -> None:
        """One generation: children, their verdicts, and who lives on."""
        space, rng = self.space, self.search.rng
        order = np.argsort(self._scores(), kind="stable")
        elite = order[: max(2, int(len(order) * _ELITE))]
        count = self.size
        one = elite[(rng.random(count) ** 2 * len(elite)).astype(np.int64)]
        two = order[rng.integers(0, len(order), size=count)]
        near = rng.random(count) < _NEAR
        rows, keys = self.rows[one].copy(), self.keys[one].copy()
        base = self.base[one].copy()
        pairs = np.flatnonzero(~near)
        mates = aligned(space, self.rows[one[pairs]], self.rows[two[pairs]], self.alike)
        of_mate = crossed(space, rng, len(pairs))
        rows[pairs] = np.where(of_mate, mates, rows[pairs])
        keys[pairs] = np.where(of_mate, self.keys[two[pairs]], keys[pairs])
        # A move for all that stayed next to a parent, and for some of those that were crossed.
        moved = near | (rows == self.rows[one]).all(axis=1) | (rng.random(count) < 0.5)
        for _ in range(3):
            rows[moved], _ = neighbours(space, rows[moved], rng)
            moved &= rng.random(count) < 0.3
        if self.ordering:
            changed = rng.random(count) < 0.2
            some = rng.random(keys.shape) < rng.uniform(0.0, 0.1, size=(count, 1))
            nudged = keys + rng.normal(0.0, 0.1, size=keys.shape)
            keys = np.where(changed[:, None] & some, nudged, keys)
            other = rng.integers(0, len(self.bases), size=count)
            base = np.where(rng.random(count) < 0.05, other, base)
        self._judge(rows, keys, base)

    def best(self) -> tuple[Rows, tuple[int, float]]:
        """The best plan alive, by bytes over and objective."""
        at = int(np.lexsort((self.value, self.over))[0])
        return self.rows[at], (int(self.over[at]), float(self.value[at]))

    def _scores(self) -> Scores:
        return self.value * (1.0 + self.penalty * self.over / self.room)

    def _judge(self, rows: Rows, keys: NDArray[np.float64], base: NDArray[np.int64]) -> None:
        """Judge plans, and keep the best of them and those alive."""
        priority = None
        if self.ordering:
            priority = self.bases[base] + self.space.grouping.expand(keys)
        verdict = self.search.judge(self.space.placements(rows), priority)
        count = len(verdict.value)
        self.rows = np.concatenate([self.rows, rows[:count]])
        self.keys = np.concatenate([self.keys, keys[:count]])
        self.base = np.concatenate([self.base, base[:count]])
        self.over = np.concatenate([self.over, verdict.overflow])
        self.value = np.concatenate([self.value, verdict.value])
        self._live_on(verdict)

    def _live_on(self, verdict: Verdict) -> None:
        if not len(self.value):
            return
        fit = float((verdict.overflow == 0).mean()) if len(verdict.value) else 0.5
        change = 1.3 if fit < _FIT[0] else 0.8 if fit > _FIT[1] else 1.0
        self.penalty = min(max(self.penalty * change, _PENALTY[0]), _PENALTY[1])
        order = np.argsort(self._scores(), kind="stable")
        first = int(np.lexsort((self.value, self.over))[0])  # the best lives on in any case
        order = np.concatenate([[first], order[order != first]])
        # Of plans that are equally good only one: copies and symmetric twins crowd out the rest.
        worth = np.stack([self.value[order], self.over[order].astype(np.float64)])
        unique = np.unique(worth, axis=1, return_index=True)[1]
        kept = order[np.sort(unique)][: self.size]
        self.rows, self.keys, self.base = self.rows[kept], self.keys[kept], self.base[kept]
        self.over, self.value = self.over[kept], self.value[kept]


def _bases(search: Search) -> NDArray[np.float64]:
    """The orders that keys are added to, from 0 to 1: the graph's, HEFT's, and the start's."""
    orders = [np.arange(len(search.problem.graph)), -upward_ranks(search.problem)]
    if search.best is not None and search.best.priority is not None:
        orders.append(search.best.priority)
    ranks = [order.argsort(kind="stable").argsort(kind="stable") for order in orders]
    return np.stack(ranks) / len(search.problem.graph)
