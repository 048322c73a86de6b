"""Cuts: the best contiguous splits of several orders of the graph, by dynamic programming."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.solvers.balanced import Balanced, as_needed
from placewright.solvers.contiguous.coarse_graph import Pieces
from placewright.solvers.contiguous.interval_costs import Prefixes, cheap_marks
from placewright.solvers.contiguous.split_search import judge_splits
from placewright.transforms import by_module_count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.solvers.contiguous.stage_costs import Ints, Room
    from placewright.solvers.search import Search

_MODULES = 100  # groups of the order by modules


@dataclass(frozen=True)
class Cuts:
    """Each order cut into one stretch a device, where that costs least.

    For the period that is the least largest load, transfers included; for the step time the least
    sum of stages and the transfers between them. Within its order a split is the best there is if
    all links are alike and, for the period, transfers do not overlap (or a device hears from one
    other only); for the step time, if the graph is a chain. Otherwise the costs are estimates, and
    the simulator chooses among the best split for each number of devices. Memory is estimated from
    resident bytes; where the simulator finds too much in use, we try again with some kept back.

    It begins with `balanced` splits.

    Args:
        limit: The most places where an order may be cut. If it has more, the cheapest place in each
            of as many stretches of equal work is taken. Time and memory grow with its square.
    """

    limit: int = 1_500
    name = "cuts"

    def run(self, search: Search) -> None:
        pieces = begin(search)
        if pieces is not None:
            judge_cuts(search, pieces, self.limit)


def begin(search: Search) -> Pieces | None:
    """Judge balanced splits; the problem's pieces if there are any and the search goes on."""
    Balanced().run(search)
    if search.over:
        return None
    pieces = Pieces.of(search.problem)
    return pieces if len(pieces) else None


def judge_cuts(search: Search, pieces: Pieces, limit: int = Cuts.limit) -> None:
    """Judge the best splits of every order of these pieces, cut at `limit` places at most."""
    for order in orders(pieces):
        if search.over:
            return
        marks = cheap_marks(pieces, order, limit)

        def costs(room: Room, share: float, order: Ints = order, marks: Ints = marks) -> Prefixes:
            return Prefixes(pieces, order, room, share, marks)

        judge_splits(search, pieces, costs)


def orders(pieces: Pieces) -> list[NDArray[np.int64]]:
    """Orders of the pieces that may be worth cutting, each once.

    The graph's own; the one in which ops stand just before they are needed; by levels, so that
    branches stay side by side; and module by module.
    """
    problem = pieces.problem
    level = np.zeros(len(pieces), dtype=np.int64)
    for source, target in sorted(pieces.before):  # numbers are topological
        level[target] = max(level[target], level[source] + 1)
    module = by_module_count(problem, _MODULES).group
    candidates = [
        np.arange(len(pieces)),
        as_needed(problem)[pieces.first].argsort(kind="stable"),
        level.argsort(kind="stable"),
        module[pieces.first].argsort(kind="stable"),
    ]
    return [np.array(order) for order in dict.fromkeys(tuple(row.tolist()) for row in candidates)]
