"""Local search: a problem in, plans out that no small change makes better, over and over.

Iterated local search (Lourenço, Martin and Stützle 2003): go downhill, shake, go downhill again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import ConfigError
from placewright.solvers.searches.initial_plans import starts
from placewright.solvers.searches.moves import MOVES, neighbours
from placewright.solvers.searches.order_polish import Polish
from placewright.solvers.searches.search_space import (
    Space,
    check_most,
    few_groups,
    teams,
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
"""Bytes over and objective: what plans are compared by."""

_TEAMS, _GROUPS = 300, 200  # most teams that are moved from the beginning; groups before them
_ROUNDS = 6  # in vain, after which the search goes on in another order, or with smaller groups
_PAUSE = 3  # batches without a better neighbour before the order is looked at
_MEMORY = 0.9  # how much of a move's past success still counts after a batch


@dataclass(frozen=True)
class LocalSearch:
    """From the best start, change a few groups at a time while that helps; then shake, and again.

    A batch of neighbours is judged at a time (`solvers/moves.py`); kinds of moves that helped are
    tried more often. The best neighbour is taken if it is better, and moves of one batch that each
    helped are tried together in the next. Where no neighbour is better, the priority rules are
    tried on the placement; after some rounds in vain the search goes on in the order they found.

    Args:
        group: Makes the grouping whose groups are moved. If not given teams are, and where there
            are many of them coarser groups before.
        batch: Neighbours judged at a time.
        most: Plans to judge; if not given the stop rule alone decides, or 4,000 without one.
        ordered: Whether to try priorities too.
    """

    group: Callable[[Problem], Grouping] | None = None
    batch: int = 32
    most: int | None = None
    ordered: bool = True
    name = "local-search"

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ConfigError(f"LocalSearch in batches of {self.batch!r}: expected 1 or more")
        check_most("LocalSearch", self.most)

    def run(self, search: Search) -> None:
        problem = search.problem
        if self.group is not None:
            groupings = [self.group(problem)]
        else:
            groupings = [few_groups(problem, _TEAMS, _GROUPS), teams(problem)]
            if len(groupings[0]) == len(groupings[1]):
                groupings.pop()
        begun = search.evaluations
        while groupings and not search.over:
            space = Space.of(problem, groupings.pop(0))
            end = begun + space.plans(search, self.most)
            walk = _Walk(search, space, self.batch, self.ordered)
            if walk.begin(skip=bool(groupings)):
                walk.rounds(end, last=not groupings)


@dataclass(frozen=True, eq=False)
class _State:
    row: Rows  # groups
    priority: NDArray[np.float64] | None  # ops
    key: Key


class _Walk:
    """Where a local search stands."""

    def __init__(self, search: Search, space: Space, batch: int, ordered: bool) -> None:
        self.search, self.space, self.batch = search, space, batch
        self.polish = Polish(search, space, ordered)
        self.success = np.ones(len(MOVES))
        # Long enough to see a good part of the moves of one group.
        choices = int(space.legal.sum()) - len(space)
        self.patience = int(np.clip(choices // (4 * batch), 4, 40))
        self.state: _State
        self.polished: _State | None = None

    def begin(self, skip: bool) -> bool:
        """Judge the starts and stand on the best; false if there is no use in going on.

        Args:
            skip: Whether not to go on if the search knows a better plan, which this grouping
                cannot express.
        """
        best = self.search.best
        priority = None if best is None else best.priority
        rows = starts(self.search, self.space)
        verdict = self._judge(rows, None)
        if not len(verdict.value):
            return False
        self.state = _State(rows[verdict.best()], None, verdict.key(verdict.best()))
        if priority is not None and not self.search.over:
            self._take(rows, self._judge(rows, priority), priority)
        return not (skip and self.search.key < self.state.key)

    def rounds(self, end: float, last: bool) -> None:
        """Go downhill and shake, until so many plans are judged or, if not last, in vain."""
        home, vain = self.state, 0
        while not self.search.over and self.search.evaluations < end:
            self.descend(end)
            vain += 1
            if self.state.key < home.key:
                home, vain = self.state, 0
            if vain >= _ROUNDS and not last:
                return
            if vain >= _ROUNDS and self.polished is not None:
                home, self.polished, vain = self.polished, home, 0
            self.state = home
            self.shake()

    def descend(self, end: float) -> None:
        """Take better neighbours until there was none for a while."""
        search, space = self.search, self.space
        idle = 0
        together = np.zeros((0, len(space)), dtype=np.int32)
        while not search.over and search.evaluations < end:
            row = self.state.row
            near = np.repeat(row[None], self.batch, axis=0)
            near, kinds = neighbours(space, near, search.rng, self.success / self.success.sum())
            near[: len(together)] = together
            verdict = self._judge(near, self.state.priority)
            before = self.state
            better = _better(verdict, before.key)
            self.success *= _MEMORY
            fresh = better[better >= len(together)]
            np.add.at(self.success, kinds[fresh], 1.0 - _MEMORY)
            self.success = np.maximum(self.success, 0.02 * self.success.max())
            self._take(near, verdict, before.priority)
            together = _joined(self.state.row, near[better[1:]], row)
            idle = 0 if len(better) else idle + 1
            if idle == _PAUSE and (found := self.polish(self.state.row, self.state.key)):
                polished = _State(self.state.row, *found)
                if self.polished is None or polished.key < self.polished.key:
                    self.polished = polished
            if idle >= self.patience:
                return

    def shake(self) -> None:
        """Stand on the best of some rows that differ by several moves at once."""
        space, rng = self.space, self.search.rng
        rows = np.repeat(self.state.row[None], max(2, self.batch // 4), axis=0)
        for _ in range(int(rng.integers(2, 9))):
            rows, _ = neighbours(space, rows, rng)
        if self.search.over:
            return
        verdict = self._judge(rows, self.state.priority)
        if len(verdict.value):
            at = verdict.best()
            self.state = _State(rows[at], self.state.priority, verdict.key(at))

    def _judge(self, rows: Rows, priority: NDArray[np.float64] | None) -> Verdict:
        return self.search.judge(self.space.placements(rows), priority)

    def _take(self, rows: Rows, verdict: Verdict, priority: NDArray[np.float64] | None) -> None:
        """Go to the best row, if it is better."""
        if len(verdict.value) and verdict.key(verdict.best()) < self.state.key:
            at = verdict.best()
            self.state = _State(rows[at], priority, verdict.key(at))


def _better(verdict: Verdict, than: Key) -> NDArray[np.int64]:
    """The plans that are better than this, best first."""
    over, value = verdict.overflow, verdict.value
    mark = (over < than[0]) | ((over == than[0]) & (value < than[1]))
    order = np.lexsort((value, over))
    found: NDArray[np.int64] = order[mark[order]]
    return found


def _joined(taken: Rows, others: Rows, before: Rows) -> Rows:
    """The taken row with the changes of 1, 2, 4, … of the other better rows on top."""
    joined, row = [], taken.copy()
    for count, other in enumerate(others, start=1):
        row = np.where(other != before, other, row)
        if count & (count - 1) == 0 or count == len(others):
            joined.append(row)
    return np.stack(joined) if joined else np.zeros((0, len(taken)), dtype=np.int32)
