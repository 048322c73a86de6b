"""Cross-entropy search: a problem in, plans drawn from ever sharper distributions out.

Rubinstein 1999, "The cross-entropy method for combinatorial and continuous optimization".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.errors import ConfigError
from placewright.solvers.searches.initial_plans import starts
from placewright.solvers.searches.order_polish import Polish
from placewright.solvers.searches.search_space import (
    Space,
    check_most,
    few_groups,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.problem import Problem
    from placewright.solvers.search import Search
    from placewright.solvers.searches.search_space import Rows
    from placewright.transforms import Grouping

Chances = NDArray[np.float64]
"""Groups × devices: how likely each group is on each device."""

_GROUPS = 200  # most groups without a grouping of the caller's own
# How often a group takes the random number of the group before it; a row draws one of these.
_TOGETHER = np.array([0.0, 0.8, 0.95, 0.99])
_RULES = 5  # batches between two looks at the priority rules
_SURE = 0.05  # share of the largest entropy at which the distribution has nothing more to say


@dataclass(frozen=True)
class CrossEntropy:
    """A distribution over the devices of each group, drawn towards the best of its own samples.

    Two things differ from the textbook. It does not begin evenly, where equal devices make every
    direction as good as any other, but half at the best start. And neighbours along the graph's
    order often share their random number: each group keeps its own distribution, but a sample has
    long stretches on one device, as good plans do. Where the distribution is almost certain it
    begins again around the best plan.

    Args:
        group: Makes the grouping; if not given teams, coarsened where there are many.
        batch: Plans drawn from one distribution.
        elite: Share of them that the next one is made of.
        rate: How far the distribution goes towards them.
        floor: Share of each distribution that stays even while sampling.
        most: Plans to judge; if not given the stop rule alone decides, or 4,000 without one.
    """

    group: Callable[[Problem], Grouping] | None = None
    batch: int = 100
    elite: float = 0.1
    rate: float = 0.5
    floor: float = 0.01
    most: int | None = None
    name = "cross-entropy"

    def __post_init__(self) -> None:
        if self.batch < 2:
            raise ConfigError(f"CrossEntropy in batches of {self.batch!r}: expected 2 or more")
        check_most("CrossEntropy", self.most)
        for what in ("elite", "rate", "floor"):
            if not 0 < (share := getattr(self, what)) <= 1:
                raise ConfigError(f"CrossEntropy has {what} {share!r}: expected a share up to 1")

    def run(self, search: Search) -> None:
        problem, rng = search.problem, search.rng
        grouping = self.group(problem) if self.group else few_groups(problem, _GROUPS)
        space = Space.of(problem, grouping)
        start = search.best
        rows = starts(search, space)
        verdict = search.judge(space.placements(rows))
        if not len(verdict.value):
            return
        best, key = rows[verdict.best()], verdict.key(verdict.best())
        order = None  # of the start, if it makes a start better than the graph's order makes any
        if start is not None and start.priority is not None and not search.over:
            verdict = search.judge(space.placements(rows), start.priority)
            if len(verdict.value) and verdict.key(verdict.best()) < key:
                best, key = rows[verdict.best()], verdict.key(verdict.best())
                order = start.priority
        even = space.legal / space.legal.sum(axis=1, keepdims=True)
        chances = 0.5 * even + 0.5 * _shares(space, best[None])
        polish = Polish(search, space)
        end, rounds = search.evaluations + space.plans(search, self.most), 0
        while not search.over and search.evaluations < end:
            rows = draw(space, (1 - self.floor) * chances + self.floor * even, rng, self.batch)
            verdict = search.judge(space.placements(rows), order)
            if not len(verdict.value):
                return
            ranking = np.lexsort((verdict.value, verdict.overflow))
            if verdict.key(ranking[0]) < key:
                best, key = rows[ranking[0]], verdict.key(ranking[0])
            elite = rows[ranking[: max(1, int(self.elite * self.batch))]]
            # The best plan of all is always among those that the next distribution is made of.
            goal = _shares(space, np.concatenate([best[None], elite]))
            chances += self.rate * (goal - chances)
            rounds += 1
            if rounds % _RULES == 0:
                polish(best, key)
            if entropy(chances) <= _SURE * entropy(even):
                chances = 0.2 * even + 0.8 * _shares(space, best[None])


def draw(space: Space, chances: Chances, rng: np.random.Generator, count: int) -> Rows:
    """Plans × groups, each group by its own chances.

    Groups next to each other in one of the space's orders take the same random number as often as
    `_TOGETHER` says, a row at a time.
    """
    at = np.arange(count)
    fresh = rng.random((count, len(space)))
    again = rng.random((count, len(space))) < _TOGETHER[rng.integers(0, len(_TOGETHER), (count, 1))]
    again[:, 0] = False
    # Where a number is used again it is the last fresh one before it.
    last = np.maximum.accumulate(np.where(again, 0, np.arange(len(space))), axis=1)
    numbers = np.empty_like(fresh)
    order = space.orders[rng.integers(0, len(space.orders), size=count)]
    numbers[at[:, None], order] = fresh[at[:, None], last]
    steps = chances.cumsum(axis=1)
    rows = (numbers[:, :, None] >= steps[None, :, :-1]).sum(axis=2)
    return np.asarray(rows, dtype=np.int32)


def entropy(chances: Chances) -> float:
    """The mean entropy of the groups' distributions."""
    safe = np.where(chances > 0, chances, 1.0)
    return float(-(chances * np.log(safe)).sum(axis=1).mean())


def _shares(space: Space, rows: Rows) -> Chances:
    """How often each group is on each device."""
    shares: Chances = (rows[:, :, None] == np.arange(space.devices)).mean(axis=0)
    return shares
