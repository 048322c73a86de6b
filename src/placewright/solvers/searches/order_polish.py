"""Order polish: tries the priority rules on a placement that a search found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.solvers.ordering.priority_rules import rule_priorities
from placewright.transforms.path_lengths import PathLengths

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.solvers.search import Search
    from placewright.solvers.searches.search_space import Rows, SearchSpace


class OrderPolish:
    """Tries the priority rules on rows, except rows that are no better than the last one.

    Searches over placements evaluate all rows in one order, since neighbours are best compared in
    an order that was not made for one of them; the rules then show a row's value in its own order.

    Args:
        enabled: Whether to try them at all. For the period, which no order changes, never.
    """

    def __init__(self, search: Search, space: SearchSpace, enabled: bool = True) -> None:
        self.search, self.space = search, space
        self.enabled = enabled and search.problem.objective == "step"
        self._flow = PathLengths(search.problem.arrays)
        self._last_key: tuple[float, float] = (np.inf, np.inf)

    def __call__(
        self, row: Rows, key: tuple[int, float]
    ) -> tuple[NDArray[np.float64], tuple[int, float]] | None:
        """The best rule's priorities and the row's key with them; None if it was not tried."""
        if not self.enabled or self.search.over or key >= self._last_key:
            return None
        self._last_key = key
        problem = self.search.problem
        device = self.space.placements(row)[0]
        rules = np.stack(list(rule_priorities(problem, device, flow=self._flow).values()))
        verdict = self.search.judge(np.repeat(device[None], len(rules), axis=0), rules)
        if not len(verdict.value):
            return None
        return rules[verdict.best()], verdict.key(verdict.best())
