"""Polish: a placement that a search found in, the same in the best order that rules know out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.solvers.ordering.priority_rules import priority_rules
from placewright.transforms.path_lengths import Flow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.solvers.search import Search
    from placewright.solvers.searches.search_space import Rows, Space


class Polish:
    """Tries the priority rules on rows, those not better than the last one left out.

    Searches over placements judge all rows in one order, since neighbours are best compared in an
    order that was not made for one of them; the rules then show what a row is worth in its own.

    Args:
        wanted: Whether to do it at all. For the period order means nothing, and it never does.
    """

    def __init__(self, search: Search, space: Space, wanted: bool = True) -> None:
        self.search, self.space = search, space
        self.wanted = wanted and search.problem.objective == "step"
        self._flow = Flow(search.problem.arrays)
        self._last: tuple[float, float] = (np.inf, np.inf)

    def __call__(
        self, row: Rows, key: tuple[int, float]
    ) -> tuple[NDArray[np.float64], tuple[int, float]] | None:
        """The best rule's priorities and what they make of the row; None if it was not tried."""
        if not self.wanted or self.search.over or key >= self._last:
            return None
        self._last = key
        problem = self.search.problem
        device = self.space.placements(row)[0]
        rules = np.stack(list(priority_rules(problem, device, flow=self._flow).values()))
        verdict = self.search.judge(np.repeat(device[None], len(rules), axis=0), rules)
        if not len(verdict.value):
            return None
        return rules[verdict.best()], verdict.key(verdict.best())
