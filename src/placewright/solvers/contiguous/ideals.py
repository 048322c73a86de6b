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

_EFFORT = 5e9  # stages × tensors to look at for the period: some five seconds
_MAX_STEP_IDEALS = 2_000  # ideals for the step time, where no bound leaves any out
_MAX_NODES = 2_000  # above which heavy edges are merged at once
_TRIVIAL_SHARE = 1e-5  # of all work: what is joined first if there are too many ideals
_SHRINK_FACTOR = 0.7  # times the pieces, until there are few enough ideals


@dataclass(frozen=True)
class Ideals:
    """Every contiguous split of the graph, not only those of one order.

    An ideal is a set of ops that holds with each op all those before it. A contiguous split goes
    from ideal to larger ideal, one device after the other, so the best one is found by dynamic
    programming over (ideal, devices in use of each kind). The paper allows any two ideals; we look
    only at those between which a split that beats the best known one can pass, which `cuts` provide
    first. As in the paper, only the forward half of a training graph must be contiguous.

    For the period the split is the best contiguous one if the graph has few enough ideals, all
    links are alike, it fits as it is, and transfers do not overlap ops; with overlap, if it reaches
    what ops alone allow. `prove` says whether that was so. For the step time, where stages are
    taken to run one after the other, it is a heuristic.

    Args:
        max_ideals: The most ideals. Above it, or if looking at them would take too long, heavy edges are
            merged until there are few enough, and the split is not proved to be the best.
    """

    max_ideals: int = 50_000
    name = "ideals"

    def run(self, search: Search) -> None:
        self.prove(search)

    def prove(self, search: Search) -> bool:
        """Run, and say whether no contiguous split is better than the best plan found."""
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
        """The finest pieces whose ideals can be looked at, these, and whether they are all."""
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
        # One order must do where there is nothing left to merge, or no time.
        return coarse, _order_ideals(len(coarse)), False


def _order_ideals(count: int) -> NDArray[np.bool_]:
    """The ideals of a mere row."""
    return np.tri(count + 1, count, -1, dtype=bool)
