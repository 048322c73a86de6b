"""Iterated local search: descend to a plan that no small move improves, perturb, repeat.

Lourenço, Martin and Stützle 2003, "Iterated local search".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import ConfigError
from placewright.solvers.searches.initial_plans import initial_rows
from placewright.solvers.searches.moves import MOVES, neighbours
from placewright.solvers.searches.order_polish import OrderPolish
from placewright.solvers.searches.search_space import (
    SearchSpace,
    bounded_grouping,
    bundle_grouping,
    check_max_plans,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.simulator import Verdict
    from placewright.solvers.search import Search
    from placewright.solvers.searches.search_space import Rows
    from placewright.transforms import Grouping

Key = tuple[int, float]
"""Overflow and objective, by which plans are compared."""

_MAX_BUNDLES, _MAX_GROUPS = (
    300,
    200,
)  # bundles up to which they are moved from the start; else this many groups first
_MAX_STALLED = (
    6  # rounds without a gain before the search goes on in another order, or with smaller groups
)
_POLISH_AFTER = 3  # batches without a better neighbour before the priority rules are tried
_SUCCESS_DECAY = 0.9  # decay per batch of a move's past success


@dataclass(frozen=True)
class LocalSearch:
    """From the best initial plan, move a few groups at a time while that helps; perturb, repeat.

    Neighbours are evaluated in batches (`moves.py`); kinds of moves that helped are tried
    more often. The best neighbour is accepted if it is better, and moves of one batch that each
    helped are tried together in the next. Where no neighbour is better, the priority rules are
    tried on the placement; after some rounds without a gain the search goes on in their best order.

    Args:
        grouping: Makes the grouping whose groups are moved; by default bundles, and where there are
            many of them coarser groups first.
        batch: Neighbours per batch.
        max_plans: Plans to evaluate; by default the stop rule decides, or 4,000 without one.
        with_priorities: Whether to try priorities too.
    """

    grouping: Callable[[Problem], Grouping] | None = None
    batch: int = 32
    max_plans: int | None = None
    with_priorities: bool = True
    name = "local-search"

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ConfigError(f"LocalSearch in batches of {self.batch!r}: expected 1 or more")
        check_max_plans("LocalSearch", self.max_plans)

    def run(self, search: Search) -> None:
        problem = search.problem
        if self.grouping is not None:
            groupings = [self.grouping(problem)]
        else:
            groupings = [
                bounded_grouping(problem, _MAX_BUNDLES, _MAX_GROUPS),
                bundle_grouping(problem),
            ]
            if len(groupings[0]) == len(groupings[1]):
                groupings.pop()
        start = search.evaluations
        while groupings and not search.over:
            space = SearchSpace.of(problem, groupings.pop(0))
            end = start + space.plan_budget(search, self.max_plans)
            descent = _Descent(search, space, self.batch, self.with_priorities)
            if descent.begin(skip=bool(groupings)):
                descent.run_rounds(end, is_last=not groupings)


@dataclass(frozen=True, eq=False)
class _SearchState:
    row: Rows  # groups
    priority: NDArray[np.float64] | None  # ops
    key: Key


class _Descent:
    """The state of a local search on one grouping."""

    def __init__(
        self, search: Search, space: SearchSpace, batch: int, with_priorities: bool
    ) -> None:
        self.search, self.space, self.batch = search, space, batch
        self.polish = OrderPolish(search, space, with_priorities)
        self.success = np.ones(len(MOVES))
        # Long enough to try a good part of the moves of one group.
        choices = int(space.legal.sum()) - len(space)
        self.patience = int(np.clip(choices // (4 * batch), 4, 40))
        self.state: _SearchState
        self.polished_state: _SearchState | None = None

    def begin(self, skip: bool) -> bool:
        """Evaluate the initial plans and take the best; false if it is not worth going on.

        Args:
            skip: Whether to give up if the search knows a better plan, which this grouping
                cannot express.
        """
        best = self.search.best
        priority = None if best is None else best.priority
        rows = initial_rows(self.search, self.space)
        verdict = self._judge(rows, None)
        if not len(verdict.value):
            return False
        self.state = _SearchState(rows[verdict.best()], None, verdict.key(verdict.best()))
        if priority is not None and not self.search.over:
            self._move_if_better(rows, self._judge(rows, priority), priority)
        return not (skip and self.search.key < self.state.key)

    def run_rounds(self, end: float, is_last: bool) -> None:
        """Descend and perturb, until `end` plans are evaluated or, if not last, without gain."""
        incumbent, stalled = self.state, 0
        while not self.search.over and self.search.evaluations < end:
            self.descend(end)
            stalled += 1
            if self.state.key < incumbent.key:
                incumbent, stalled = self.state, 0
            if stalled >= _MAX_STALLED and not is_last:
                return
            if stalled >= _MAX_STALLED and self.polished_state is not None:
                incumbent, self.polished_state, stalled = self.polished_state, incumbent, 0
            self.state = incumbent
            self.perturb()

    def descend(self, end: float) -> None:
        """Accept better neighbours until there was none for a while."""
        search, space = self.search, self.space
        idle = 0
        combined = np.zeros((0, len(space)), dtype=np.int32)
        while not search.over and search.evaluations < end:
            row = self.state.row
            candidates = np.repeat(row[None], self.batch, axis=0)
            candidates, kinds = neighbours(
                space, candidates, search.rng, self.success / self.success.sum()
            )
            candidates[: len(combined)] = combined
            verdict = self._judge(candidates, self.state.priority)
            previous = self.state
            better = _better_plans(verdict, previous.key)
            self.success *= _SUCCESS_DECAY
            fresh = better[better >= len(combined)]
            np.add.at(self.success, kinds[fresh], 1.0 - _SUCCESS_DECAY)
            self.success = np.maximum(self.success, 0.02 * self.success.max())
            self._move_if_better(candidates, verdict, previous.priority)
            combined = _combined_moves(self.state.row, candidates[better[1:]], row)
            idle = 0 if len(better) else idle + 1
            if idle == _POLISH_AFTER and (ordering := self.polish(self.state.row, self.state.key)):
                polished = _SearchState(self.state.row, *ordering)
                if self.polished_state is None or polished.key < self.polished_state.key:
                    self.polished_state = polished
            if idle >= self.patience:
                return

    def perturb(self) -> None:
        """Take the best of some rows that differ by several moves at once."""
        space, rng = self.space, self.search.rng
        rows = np.repeat(self.state.row[None], max(2, self.batch // 4), axis=0)
        for _ in range(int(rng.integers(2, 9))):
            rows, _ = neighbours(space, rows, rng)
        if self.search.over:
            return
        verdict = self._judge(rows, self.state.priority)
        if len(verdict.value):
            at = verdict.best()
            self.state = _SearchState(rows[at], self.state.priority, verdict.key(at))

    def _judge(self, rows: Rows, priority: NDArray[np.float64] | None) -> Verdict:
        return self.search.judge(self.space.placements(rows), priority)

    def _move_if_better(
        self, rows: Rows, verdict: Verdict, priority: NDArray[np.float64] | None
    ) -> None:
        """Accept the best row, if it is better."""
        if len(verdict.value) and verdict.key(verdict.best()) < self.state.key:
            at = verdict.best()
            self.state = _SearchState(rows[at], priority, verdict.key(at))


def _better_plans(verdict: Verdict, key: Key) -> NDArray[np.int64]:
    """The plans that are better than this, best first."""
    overflow, value = verdict.overflow, verdict.value
    is_better = (overflow < key[0]) | ((overflow == key[0]) & (value < key[1]))
    order = np.lexsort((value, overflow))
    better: NDArray[np.int64] = order[is_better[order]]
    return better


def _combined_moves(base: Rows, others: Rows, previous: Rows) -> Rows:
    """The accepted row with the moves of 1, 2, 4, … of the other better rows on top."""
    combined, row = [], base.copy()
    for count, other in enumerate(others, start=1):
        row = np.where(other != previous, other, row)
        if count & (count - 1) == 0 or count == len(others):
            combined.append(row)
    return np.stack(combined) if combined else np.zeros((0, len(base)), dtype=np.int32)
