"""Ideals: the best contiguous split of the whole graph, by dynamic programming over its ideals.

Tarnawski, Phanishayee, Devanur, Mahajan and Nina Paravecino 2020, "Efficient Algorithms for Device
Placement of DNN Graph Operators", NeurIPS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.solvers.contiguous.cuts import begin, judge_cuts
from placewright.solvers.contiguous.ideal_sets import IdealCosts, ideals
from placewright.solvers.contiguous.split_search import (
    fleets_for,
    judge_splits,
    known,
)
from placewright.solvers.contiguous.stages import ROUNDING, Reach

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.solvers.contiguous.coarse_graph import Pieces
    from placewright.solvers.search import Search

_EFFORT = 5e9  # stages × tensors to look at for the period: some five seconds
_SERIAL = 2_000  # ideals for the step time, where no bound leaves any out
_PIECES = 2_000  # above which heavy edges are merged at once
_TRIFLE = 1e-5  # of all work: what is joined first if there are too many ideals
_FEWER = 0.7  # times the pieces, until there are few enough ideals


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
        limit: The most ideals. Above it, or if looking at them would take too long, heavy edges are
            merged until there are few enough, and the split is not proved to be the best.
    """

    limit: int = 50_000
    name = "ideals"

    def run(self, search: Search) -> None:
        self.prove(search)

    def prove(self, search: Search) -> bool:
        """Run, and say whether no contiguous split is better than the best plan found."""
        whole = begin(search)
        if whole is None:
            return False
        judge_cuts(search, whole)
        if search.over:
            return False
        whole = whole.without_trifles()
        pieces, inside, every = self._affordable(search, whole)
        floor = judge_splits(
            search, pieces, lambda room, share: IdealCosts(pieces, inside, room, share)
        )
        overflow, value = search.key
        return every and overflow == 0 and value <= floor * (1 + ROUNDING)

    def _affordable(self, search: Search, whole: Pieces) -> tuple[Pieces, NDArray[np.bool_], bool]:
        """The finest pieces whose ideals can be looked at, these, and whether they are all."""
        pipelined = search.problem.objective == "period"
        limit = self.limit if pipelined else min(self.limit, _SERIAL)
        pieces = whole.coarser(_PIECES) if len(whole) > _PIECES else whole
        while len(pieces) > 2 and not search.over:
            inside = ideals(pieces, limit)
            if inside is not None:
                work = np.maximum.accumulate(inside @ pieces.least)
                stages = sum(
                    Reach(work, fleet, True, known(search)).pairs() if pipelined else 0
                    for fleet in fleets_for(pieces, len(work))
                )
                if stages * (16 + len(pieces.handed)) <= _EFFORT:
                    return pieces, inside, pieces is whole
            fewer = pieces.without_trifles(_TRIFLE) if pieces is whole else pieces
            if len(fewer) == len(pieces):
                fewer = pieces.coarser(max(2, int(_FEWER * len(pieces))))
            if len(fewer) == len(pieces):  # no two have a device in common
                break
            pieces = fewer
        inside = ideals(pieces, limit)
        if inside is not None:
            return pieces, inside, pieces is whole
        # One order must do where there is nothing left to merge, or no time.
        return pieces, _prefixes(len(pieces)), False


def _prefixes(count: int) -> NDArray[np.bool_]:
    """The ideals of a mere row."""
    return np.tri(count + 1, count, -1, dtype=bool)
