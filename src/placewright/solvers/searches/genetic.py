"""Genetic search: a population of plans, improved by crossover and local moves.

Crossover along the graph's order, with an elite parent in every pair and random keys for the order
as in BRKGA (Gonçalves and Resende 2011, J. Heuristics 17); moves of local search on the best, and
an adaptive penalty for overflow as in hybrid genetic search (Vidal et al. 2012, Oper. Res. 60(3)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.errors import ConfigError
from placewright.scheduling.ranks import upward_ranks
from placewright.solvers.searches.crossover import (
    align_devices,
    crossover_mask,
    equal_devices,
)
from placewright.solvers.searches.initial_plans import (
    distinct_rows,
    initial_rows,
    random_rows,
)
from placewright.solvers.searches.moves import neighbours
from placewright.solvers.searches.order_polish import OrderPolish
from placewright.solvers.searches.search_space import (
    SearchSpace,
    bounded_grouping,
    check_max_plans,
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

_MAX_BUNDLES, _MAX_GROUPS = (
    300,
    200,
)  # bundles up to which each is a group; the number of groups if there are more
_ELITE = 0.25  # share of the population from which one parent comes
_MOVE_SHARE = 0.4  # share of the children that are one move away from an elite plan
_FIT_RANGE = (
    0.3,
    0.7,
)  # the penalty grows while a smaller share of the children fits, and falls while a larger does
_PENALTY_RANGE = (
    1e-2,
    1e6,
)  # its limits; 1 doubles the time of a plan with an overflow of one device's memory
_POLISH_INTERVAL = 10  # generations between two trials of the priority rules


@dataclass(frozen=True)
class Genetic:
    """A population of placements of whole groups, each with an order.

    It starts with the best plan so far, single devices, balanced splits and random runs. Some
    children are crossovers of two plans (whose equal devices are matched first, as their numbers
    mean nothing), some are one move away from one of the best. Plans with overflow survive under a
    penalty that grows until enough plans fit.

    Args:
        grouping: Makes the grouping; by default bundles, coarsened where there are many.
        population: The size of the population, and the children of a generation.
        max_plans: Plans to evaluate; by default the stop rule decides, or 4,000 without one.
        with_priorities: Whether each plan has its own order, or all have the graph's.
    """

    grouping: Callable[[Problem], Grouping] | None = None
    population: int = 48
    max_plans: int | None = None
    with_priorities: bool = True
    name = "genetic"

    def __post_init__(self) -> None:
        if self.population < 4:
            raise ConfigError(
                f"Genetic with a population of {self.population!r}: expected 4 or more"
            )
        check_max_plans("Genetic", self.max_plans)

    def run(self, search: Search) -> None:
        problem = search.problem
        grouping = (
            self.grouping(problem)
            if self.grouping
            else bounded_grouping(problem, _MAX_BUNDLES, _MAX_GROUPS)
        )
        population = _Population(
            search, SearchSpace.of(problem, grouping), self.population, self.with_priorities
        )
        if not population.begin():
            return
        end, generation = (
            search.evaluations + population.space.plan_budget(search, self.max_plans),
            0,
        )
        while not search.over and search.evaluations < end:
            population.breed()
            generation += 1
            if generation % _POLISH_INTERVAL == 0:
                population.polish(*population.best())


class _Population:
    """A population: rows, keys for the order, and the quality of each plan."""

    def __init__(
        self, search: Search, space: SearchSpace, size: int, with_priorities: bool
    ) -> None:
        problem = search.problem
        self.search, self.space, self.size = search, space, size
        self.with_priorities = with_priorities and problem.objective == "step"
        self.equal = equal_devices(problem)
        self.penalty = 1.0
        self.mean_capacity = max(1.0, float(problem.arrays.capacity[accelerators(problem)].mean()))
        self.base_orders = _base_orders(search)
        self.polish = OrderPolish(search, space, with_priorities)
        groups = len(space)
        self.rows: Rows = np.zeros((0, groups), dtype=np.int32)
        self.keys: NDArray[np.float64] = np.zeros((0, groups))
        self.base_order: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.overflow: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.value: Scores = np.zeros(0)

    def begin(self) -> bool:
        """Evaluate the initial plans; false if the search is over."""
        search, rng = self.search, self.search.rng
        rows = initial_rows(search, self.space)
        shortfall = max(self.size - len(rows), self.size // 3)
        rows = np.concatenate([rows, random_rows(self.space, rng, shortfall)])
        rows = distinct_rows(rows)
        # The first plan has its own order; the others take all orders round robin.
        base_order = (np.arange(len(rows)) + len(self.base_orders) - 1) % len(self.base_orders)
        self._judge(rows, np.zeros(rows.shape), base_order)
        return len(self.rows) > 0 and not search.over

    def breed(self) -> None:
        """One generation: children, their verdicts, and the survivors."""
        space, rng = self.space, self.search.rng
        order = np.argsort(self._scores(), kind="stable")
        elite = order[: max(2, int(len(order) * _ELITE))]
        count = self.size
        first_parent = elite[(rng.random(count) ** 2 * len(elite)).astype(np.int64)]
        second_parent = order[rng.integers(0, len(order), size=count)]
        by_move = rng.random(count) < _MOVE_SHARE
        rows, keys = self.rows[first_parent].copy(), self.keys[first_parent].copy()
        base_order = self.base_order[first_parent].copy()
        pairs = np.flatnonzero(~by_move)
        mates = align_devices(
            space, self.rows[first_parent[pairs]], self.rows[second_parent[pairs]], self.equal
        )
        from_mate = crossover_mask(space, rng, len(pairs))
        rows[pairs] = np.where(from_mate, mates, rows[pairs])
        keys[pairs] = np.where(from_mate, self.keys[second_parent[pairs]], keys[pairs])
        # A move for all children of one parent, and for some of the crossovers.
        to_move = (
            by_move | (rows == self.rows[first_parent]).all(axis=1) | (rng.random(count) < 0.5)
        )
        for _ in range(3):
            rows[to_move], _ = neighbours(space, rows[to_move], rng)
            to_move &= rng.random(count) < 0.3
        if self.with_priorities:
            reorder = rng.random(count) < 0.2
            mask = rng.random(keys.shape) < rng.uniform(0.0, 0.1, size=(count, 1))
            shifted = keys + rng.normal(0.0, 0.1, size=keys.shape)
            keys = np.where(reorder[:, None] & mask, shifted, keys)
            other_order = rng.integers(0, len(self.base_orders), size=count)
            base_order = np.where(rng.random(count) < 0.05, other_order, base_order)
        self._judge(rows, keys, base_order)

    def best(self) -> tuple[Rows, tuple[int, float]]:
        """The best plan of the population, by overflow and objective."""
        at = int(np.lexsort((self.value, self.overflow))[0])
        return self.rows[at], (int(self.overflow[at]), float(self.value[at]))

    def _scores(self) -> Scores:
        return self.value * (1.0 + self.penalty * self.overflow / self.mean_capacity)

    def _judge(self, rows: Rows, keys: NDArray[np.float64], base_order: NDArray[np.int64]) -> None:
        """Evaluate plans, and keep the best of them and of the population."""
        priority = None
        if self.with_priorities:
            priority = self.base_orders[base_order] + self.space.grouping.expand(keys)
        verdict = self.search.judge(self.space.placements(rows), priority)
        count = len(verdict.value)
        self.rows = np.concatenate([self.rows, rows[:count]])
        self.keys = np.concatenate([self.keys, keys[:count]])
        self.base_order = np.concatenate([self.base_order, base_order[:count]])
        self.overflow = np.concatenate([self.overflow, verdict.overflow])
        self.value = np.concatenate([self.value, verdict.value])
        self._select_survivors(verdict)

    def _select_survivors(self, verdict: Verdict) -> None:
        if not len(self.value):
            return
        fit = float((verdict.overflow == 0).mean()) if len(verdict.value) else 0.5
        factor = 1.3 if fit < _FIT_RANGE[0] else 0.8 if fit > _FIT_RANGE[1] else 1.0
        self.penalty = min(max(self.penalty * factor, _PENALTY_RANGE[0]), _PENALTY_RANGE[1])
        order = np.argsort(self._scores(), kind="stable")
        best = int(np.lexsort((self.value, self.overflow))[0])  # the best always survives
        order = np.concatenate([[best], order[order != best]])
        # Of equally good plans only one: copies and symmetric plans would crowd out the rest.
        scores = np.stack([self.value[order], self.overflow[order].astype(np.float64)])
        unique = np.unique(scores, axis=1, return_index=True)[1]
        survivors = order[np.sort(unique)][: self.size]
        self.rows, self.keys, self.base_order = (
            self.rows[survivors],
            self.keys[survivors],
            self.base_order[survivors],
        )
        self.overflow, self.value = self.overflow[survivors], self.value[survivors]


def _base_orders(search: Search) -> NDArray[np.float64]:
    """The orders that keys are added to, from 0 to 1: the graph's, HEFT's, the best plan's."""
    orders = [np.arange(len(search.problem.graph)), -upward_ranks(search.problem.arrays)]
    if search.best is not None and search.best.priority is not None:
        orders.append(search.best.priority)
    ranks = [order.argsort(kind="stable").argsort(kind="stable") for order in orders]
    return np.stack(ranks) / len(search.problem.graph)
