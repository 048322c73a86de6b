"""Ideals: the best contiguous split of the whole graph, by dynamic programming over its ideals.

Tarnawski, Phanishayee, Devanur, Mahajan and Nina Paravecino 2020, "Efficient Algorithms for Device
Placement of DNN Graph Operators", NeurIPS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.solvers.contiguous.cuts import coarsen_after_balanced, judge_cuts
from placewright.solvers.contiguous.ideal_sets import IdealCosts, enumerate_ideals
from placewright.solvers.contiguous.split_search import (
    device_orders_for,
    judge_splits,
    known_period,
)
from placewright.solvers.contiguous.stages import ROUNDING, StageWindow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.solvers.contiguous.coarse_graph import CoarseGraph
    from placewright.solvers.search import Search

_EFFORT = 5e9  # stages × tensors for the period: about five seconds
_MAX_STEP_IDEALS = 2_000  # ideals for the step time, where no bound prunes any
_MAX_NODES = 2_000  # nodes above which heavy edges are merged first
_TRIVIAL_SHARE = 1e-5  # of all work: nodes up to this are merged first if there are too many ideals
_SHRINK_FACTOR = 0.7  # factor for the number of nodes, until there are few enough ideals


@dataclass(frozen=True)
class Ideals:
    """Every contiguous split of the graph, not only those of one order.

    An ideal is a set of ops that holds all predecessors of its ops. A contiguous split goes from
    ideal to larger ideal, one device after the other, so the best one is found by dynamic
    programming over (ideal, devices in use of each kind). The paper considers any two ideals; we
    consider only pairs that a split better than the best known one can use, and `cuts` provide a
    first one. As in the paper, only the forward half of a training graph must be contiguous.

    For the period the split is the best contiguous one if the graph has few enough ideals, all
    links are equal, the first attempt fits, and transfers do not overlap ops; with overlap, if it
    reaches the bound by ops alone. `prove` says whether that was so. For the step time, where
    stages are assumed to run one after the other, it is a heuristic.

    Args:
        max_ideals: The maximum number of ideals. If there are more, or if they would take too long,
            heavy edges are merged until there are few enough, and optimality is not proved.
    """

    max_ideals: int = 50_000
    name = "ideals"

    def run(self, search: Search) -> None:
        self.prove(search)

    def prove(self, search: Search) -> bool:
        """Run; returns whether no contiguous split is better than the best plan found."""
        full = coarsen_after_balanced(search)
        if full is None:
            return False
        judge_cuts(search, full)
        if search.over:
            return False
        full = full.without_trivial_nodes()
        coarse, membership, is_complete = self._affordable(search, full)
        floor = judge_splits(
            search, coarse, lambda memory, share: IdealCosts(coarse, membership, memory, share)
        )
        overflow, value = search.key
        return is_complete and overflow == 0 and value <= floor * (1 + ROUNDING)

    def _affordable(
        self, search: Search, full: CoarseGraph
    ) -> tuple[CoarseGraph, NDArray[np.bool_], bool]:
        """The finest coarse graph whose ideals are affordable, these, and whether they are all."""
        pipelined = search.problem.objective == "period"
        limit = self.max_ideals if pipelined else min(self.max_ideals, _MAX_STEP_IDEALS)
        coarse = full.coarsen(_MAX_NODES) if len(full) > _MAX_NODES else full
        while len(coarse) > 2 and not search.over:
            membership = enumerate_ideals(coarse, limit)
            if membership is not None:
                work = np.maximum.accumulate(membership @ coarse.fastest_seconds)
                stages = sum(
                    StageWindow(work, device_order, True, known_period(search)).count_stages()
                    if pipelined
                    else 0
                    for device_order in device_orders_for(coarse, len(work))
                )
                if stages * (16 + len(coarse.boundary)) <= _EFFORT:
                    return coarse, membership, coarse is full
            coarser = coarse.without_trivial_nodes(_TRIVIAL_SHARE) if coarse is full else coarse
            if len(coarser) == len(coarse):
                coarser = coarse.coarsen(max(2, int(_SHRINK_FACTOR * len(coarse))))
            if len(coarser) == len(coarse):  # no two have a device in common
                break
            coarse = coarser
        membership = enumerate_ideals(coarse, limit)
        if membership is not None:
            return coarse, membership, coarse is full
        # One order is used where there is nothing left to merge, or no time.
        return coarse, _order_ideals(len(coarse)), False


def _order_ideals(count: int) -> NDArray[np.bool_]:
    """The ideals of a chain."""
    return np.tri(count + 1, count, -1, dtype=bool)
