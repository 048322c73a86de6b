"""Cuts: the best contiguous splits of several orders of the graph, by dynamic programming."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.solvers.balanced import Balanced, demand_positions
from placewright.solvers.contiguous.coarse_graph import CoarseGraph
from placewright.solvers.contiguous.interval_costs import IntervalCosts, cheap_cut_points
from placewright.solvers.contiguous.split_search import judge_splits
from placewright.transforms import by_module_count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.solvers.contiguous.stage_costs import Ints, StageMemory
    from placewright.solvers.search import Search

_MODULE_GROUPS = 100  # groups of the order by modules


@dataclass(frozen=True)
class Cuts:
    """Each order cut into one contiguous segment per device, where that costs least.

    For the period the cost is the largest load, transfers included; for the step time the sum of
    the stages and the transfers between them. Within its order a split is optimal if all links are
    equal and, for the period, transfers do not overlap (or a device receives from one other only);
    for the step time, if the graph is a chain. Otherwise the costs are estimates, and the simulator
    chooses among the best splits for each number of devices. Memory is estimated from resident
    bytes; where the simulator finds too much in use, we try again with a margin.

    It starts with `balanced` splits.

    Args:
        max_cuts: The maximum number of positions where an order may be cut. If it has more, the
            cheapest position in each of `max_cuts` segments of equal work is taken. Time and memory
            grow with its square.
    """

    max_cuts: int = 1_500
    name = "cuts"

    def run(self, search: Search) -> None:
        coarse = coarsen_after_balanced(search)
        if coarse is not None:
            judge_cuts(search, coarse, self.max_cuts)


def coarsen_after_balanced(search: Search) -> CoarseGraph | None:
    """Evaluate balanced splits; the coarse graph, if it has nodes and the search goes on."""
    Balanced().run(search)
    if search.over:
        return None
    coarse = CoarseGraph.of(search.problem)
    return coarse if len(coarse) else None


def judge_cuts(search: Search, coarse: CoarseGraph, max_cuts: int = Cuts.max_cuts) -> None:
    """Evaluate the best splits of every order of the nodes, cut at `max_cuts` positions."""
    for order in cut_orders(coarse):
        if search.over:
            return
        cut_points = cheap_cut_points(coarse, order, max_cuts)

        def costs(
            memory: StageMemory, share: float, order: Ints = order, points: Ints = cut_points
        ) -> IntervalCosts:
            return IntervalCosts(coarse, order, memory, share, points)

        judge_splits(search, coarse, costs)


def cut_orders(coarse: CoarseGraph) -> list[NDArray[np.int64]]:
    """Distinct orders of the nodes that may be worth cutting.

    The graph's; one in which ops come just before they are needed; by levels, so that branches
    stay side by side; and module by module.
    """
    problem = coarse.problem
    level = np.zeros(len(coarse), dtype=np.int64)
    for source, target in sorted(coarse.precedence):  # numbers are topological
        level[target] = max(level[target], level[source] + 1)
    module = by_module_count(problem, _MODULE_GROUPS).group
    candidates = [
        np.arange(len(coarse)),
        demand_positions(problem)[coarse.first_op].argsort(kind="stable"),
        level.argsort(kind="stable"),
        module[coarse.first_op].argsort(kind="stable"),
    ]
    return [np.array(order) for order in dict.fromkeys(tuple(row.tolist()) for row in candidates)]
