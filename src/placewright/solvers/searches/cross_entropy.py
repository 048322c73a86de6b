"""Cross-entropy search: samples plans from ever sharper distributions.

Rubinstein 1999, "The cross-entropy method for combinatorial and continuous optimization".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.errors import ConfigError
from placewright.solvers.searches.initial_plans import initial_rows
from placewright.solvers.searches.order_polish import OrderPolish
from placewright.solvers.searches.search_space import (
    SearchSpace,
    bounded_grouping,
    check_max_plans,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.problem import Problem
    from placewright.solvers.search import Search
    from placewright.solvers.searches.search_space import Rows
    from placewright.transforms import Grouping

Probabilities = NDArray[np.float64]
"""Groups × devices: the probability that a group is on a device."""

_MAX_GROUPS = 200  # groups without a `grouping`, at most
# How often a group takes the random number of the group before it; a row samples one of these.
_REUSE_RATES = np.array([0.0, 0.8, 0.95, 0.99])
_POLISH_INTERVAL = 5  # batches between two trials of the priority rules
_RESTART_ENTROPY = 0.05  # share of the maximum entropy below which the distribution has converged


@dataclass(frozen=True)
class CrossEntropy:
    """A distribution over the devices of each group, fitted to the best of its samples.

    Two things differ from the textbook. It does not start uniformly, where equal devices make every
    direction as good as any other, but with half of its weight on the best initial plan. And
    neighbours along the graph's order often share their random number: each group keeps its
    distribution, but a sample has long runs on one device, as good plans do. Once the distribution
    has converged, it restarts around the best plan.

    Args:
        grouping: Makes the grouping; by default bundles, coarsened where there are many.
        batch: Plans sampled from one distribution.
        elite: The share of them that the next distribution is fitted to.
        rate: The learning rate of the distribution.
        floor: The share of each distribution that stays uniform while sampling.
        max_plans: Plans to evaluate; by default the stop rule decides, or 4,000 without one.
    """

    grouping: Callable[[Problem], Grouping] | None = None
    batch: int = 100
    elite: float = 0.1
    rate: float = 0.5
    floor: float = 0.01
    max_plans: int | None = None
    name = "cross-entropy"

    def __post_init__(self) -> None:
        if self.batch < 2:
            raise ConfigError(f"CrossEntropy in batches of {self.batch!r}: expected 2 or more")
        check_max_plans("CrossEntropy", self.max_plans)
        for what in ("elite", "rate", "floor"):
            if not 0 < (share := getattr(self, what)) <= 1:
                raise ConfigError(f"CrossEntropy has {what} {share!r}: expected a share up to 1")

    def run(self, search: Search) -> None:
        problem, rng = search.problem, search.rng
        grouping = (
            self.grouping(problem) if self.grouping else bounded_grouping(problem, _MAX_GROUPS)
        )
        space = SearchSpace.of(problem, grouping)
        start = search.best
        rows = initial_rows(search, space)
        verdict = search.judge(space.placements(rows))
        if not len(verdict.value):
            return
        best, key = rows[verdict.best()], verdict.key(verdict.best())
        priority = None  # of the best initial plan, if it is better than the graph's order
        if start is not None and start.priority is not None and not search.over:
            verdict = search.judge(space.placements(rows), start.priority)
            if len(verdict.value) and verdict.key(verdict.best()) < key:
                best, key = rows[verdict.best()], verdict.key(verdict.best())
                priority = start.priority
        uniform = space.legal / space.legal.sum(axis=1, keepdims=True)
        probabilities = 0.5 * uniform + 0.5 * _device_frequencies(space, best[None])
        polish = OrderPolish(search, space)
        end, rounds = search.evaluations + space.plan_budget(search, self.max_plans), 0
        while not search.over and search.evaluations < end:
            rows = sample_rows(
                space, (1 - self.floor) * probabilities + self.floor * uniform, rng, self.batch
            )
            verdict = search.judge(space.placements(rows), priority)
            if not len(verdict.value):
                return
            ranking = np.lexsort((verdict.value, verdict.overflow))
            if verdict.key(ranking[0]) < key:
                best, key = rows[ranking[0]], verdict.key(ranking[0])
            elite = rows[ranking[: max(1, int(self.elite * self.batch))]]
            # The best plan of all is always among those that the next distribution is fitted to.
            target = _device_frequencies(space, np.concatenate([best[None], elite]))
            probabilities += self.rate * (target - probabilities)
            rounds += 1
            if rounds % _POLISH_INTERVAL == 0:
                polish(best, key)
            if mean_entropy(probabilities) <= _RESTART_ENTROPY * mean_entropy(uniform):
                probabilities = 0.2 * uniform + 0.8 * _device_frequencies(space, best[None])


def sample_rows(
    space: SearchSpace, probabilities: Probabilities, rng: np.random.Generator, count: int
) -> Rows:
    """Plans × groups, each group by its own probabilities.

    Neighbours in one of the space's orders take the same random number with the row's probability.
    """
    at = np.arange(count)
    fresh = rng.random((count, len(space)))
    reuse = (
        rng.random((count, len(space)))
        < _REUSE_RATES[rng.integers(0, len(_REUSE_RATES), (count, 1))]
    )
    reuse[:, 0] = False
    # A number that is used again is the last new one before it.
    source = np.maximum.accumulate(np.where(reuse, 0, np.arange(len(space))), axis=1)
    numbers = np.empty_like(fresh)
    order = space.orders[rng.integers(0, len(space.orders), size=count)]
    numbers[at[:, None], order] = fresh[at[:, None], source]
    cumulative = probabilities.cumsum(axis=1)
    rows = (numbers[:, :, None] >= cumulative[None, :, :-1]).sum(axis=2)
    return np.asarray(rows, dtype=np.int32)


def mean_entropy(probabilities: Probabilities) -> float:
    """The mean entropy of the groups' distributions."""
    safe = np.where(probabilities > 0, probabilities, 1.0)
    return float(-(probabilities * np.log(safe)).sum(axis=1).mean())


def _device_frequencies(space: SearchSpace, rows: Rows) -> Probabilities:
    """How often each group is on each device."""
    frequencies: Probabilities = (rows[:, :, None] == np.arange(space.devices)).mean(axis=0)
    return frequencies
