"""Splits: pieces and a family of points in, the best ways through it judged as plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.solvers.fleet import fleets
from placewright.solvers.stage_costs import Room
from placewright.solvers.stages import walks

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from placewright.solvers.fleet import Fleet
    from placewright.solvers.pieces import Pieces
    from placewright.solvers.search import Search
    from placewright.solvers.stage_costs import StageCosts
    from placewright.solvers.stages import Walk

_TRIES = 4  # to make a split fit whose estimate of memory was too low
_WORK = 4e9  # states × points² above which devices stand in a row
_FEWEST = 64  # states that are always affordable
_MOST = 32  # splits of one table that are judged
_GUESSES = (1.1, 1.3, 1.7, 2.5, 4.0, 10.0)  # times the least conceivable period
_HIDDEN = 1e-3  # share of the transfers that counts if they hide behind the ops: breaks ties


def judge_splits(
    search: Search, pieces: Pieces, costs: Callable[[Room, float], StageCosts]
) -> None:
    """Judge the best splits of a family, one for each number of devices of each kind.

    Where the simulator finds more memory in use than a piece's resident bytes, we try again with
    that much kept back. With overlap, what a stage receives is counted in full and then not at all,
    as the truth lies between.

    Args:
        costs: Makes the family's costs for what stages may hold and the share of transfers.
    """
    problem, a = search.problem, search.problem.arrays
    pipelined = problem.objective == "period"
    beside = np.bincount(
        a.allowed.argmax(axis=1), np.where(pieces.piece < 0, a.resident, 0), a.devices
    ).astype(np.int64)
    for share in (1.0, _HIDDEN) if pipelined and problem.overlap else (1.0,):
        kept_back = np.zeros(a.devices, dtype=np.int64)
        for _ in range(_TRIES):
            points = costs(Room(pieces.resident, a.capacity - beside - kept_back), share)
            groups = fleets(pieces, max(_FEWEST, int(_WORK / len(points.work) ** 2)))
            found = _best(search, points, groups, pipelined)
            if search.over or not found:
                return
            verdict = search.judge(_plans(pieces, points, found))
            if search.over or not verdict.overflow[0]:
                break
            over = np.maximum(verdict.peak[0] - a.capacity, 0)
            kept_back = 2 * kept_back + np.where(over, np.maximum(over, a.capacity // 64), 0)
            for members in (list(kind) for kind in groups[0].classes if not groups[0].row):
                kept_back[members] = kept_back[members].max()


def _best(
    search: Search, points: StageCosts, groups: list[Fleet], pipelined: bool
) -> list[Walk]:
    """The best ways, with a bound as tight as we can guess, since that is much faster."""
    known = search.key[1] if search.key[0] == 0 and pipelined else np.inf
    least = max(
        float(points.work[-1]) / max(float(groups[0].worth.sum()), 1e-300),
        float(points.pieces.least.max()),
    )
    guesses = [least * times for times in _GUESSES if pipelined and 0 < least * times < known]
    for guess in (*guesses, known):
        found = [
            walk
            for fleet in groups
            for walk in walks(points, fleet, pipelined, guess, lambda: search.over)
        ]
        if found or search.over:
            return sorted(found, key=lambda walk: walk.value)
    return []


def _plans(pieces: Pieces, points: StageCosts, found: list[Walk]) -> NDArray[np.int32]:
    rows = np.zeros((min(len(found), _MOST), len(pieces)), dtype=np.int64)
    for row, walk in zip(rows, found, strict=False):
        for device, source, target in walk.stages:
            row[points.members(source, target)] = device
    placements = pieces.placement(rows)
    first = np.unique(placements, axis=0, return_index=True)[1]
    return placements[np.sort(first)]
