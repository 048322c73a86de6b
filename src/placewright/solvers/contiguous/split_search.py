"""Splits: pieces and a family of points in, the best ways through it judged as plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.solvers.contiguous.device_order import fleets as fleets_of
from placewright.solvers.contiguous.stage_costs import Room
from placewright.solvers.contiguous.stages import ROUNDING, walks

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from placewright.solvers.contiguous.coarse_graph import Pieces
    from placewright.solvers.contiguous.device_order import Fleet
    from placewright.solvers.contiguous.stage_costs import StageCosts
    from placewright.solvers.contiguous.stages import Walk
    from placewright.solvers.search import Search

_TRIES = 5  # to make a split fit whose estimate of memory was too low
_WORK = 4e9  # states × points² above which devices stand in a row
_FEWEST = 64  # states that are always affordable
_MOST = 32  # splits of one table that are judged
_GUESSES = (1.1, 1.4, 2.5)  # times the least conceivable period


def judge_splits(
    search: Search, pieces: Pieces, costs: Callable[[Room, float], StageCosts]
) -> float:
    """Judge the best splits of a family, one for each number of devices of each kind.

    Where a split does not fit, since more than resident bytes are in use, we try again as if every
    output were held for good, and then with as much kept back as was lacking. With overlap, what a
    stage receives first counts as if it came evenly from all other devices, then as if it all came
    over one channel: the truth lies between.

    Args:
        costs: Makes the family's costs for what stages may hold and the share of transfers.

    Returns:
        Seconds that the period of no split of this family is below; 0 if we do not know.
    """
    problem, a = search.problem, search.problem.arrays
    pipelined = problem.objective == "period"
    alone = pieces.piece < 0
    beside = np.bincount(pieces.stand, np.where(alone, a.resident, 0), a.devices).astype(np.int64)
    # Costs are the true ones or less if links are alike and no weight is barred from its reader.
    true = bool(
        (a.transfer == a.transfer[:1]).all()
        and (a.allowed | ~pieces.allowed[pieces.piece])[~alone].all()
    )
    floor = 0.0
    for share in (1 / a.devices, 1.0) if pipelined and problem.overlap else (1.0,):
        if floor and known(search) <= floor * (1 + ROUNDING):
            break
        kept_back = np.zeros(a.devices, dtype=np.int64)
        for attempt in range(_TRIES):
            room = Room(pieces.resident, a.capacity - beside - kept_back)
            if attempt == 1:
                room = Room(pieces.held, a.capacity - beside)
            points = costs(room, share)
            fleets = fleets_for(pieces, len(points.work))
            bound = known(search)
            found = _best(search, points, fleets, bound)
            verdict = search.judge(_plans(pieces, points, found)) if found else None
            if search.over:
                return 0.0
            if not floor and attempt == 0 and pipelined and true and not fleets[0].row:
                floor = found[0].value if found else bound
            if attempt == 1:
                continue
            if verdict is None or not verdict.overflow[0]:
                break
            over = np.maximum(verdict.peak[0] - a.capacity, 0)
            kept_back = 2 * kept_back + np.where(over, np.maximum(over, a.capacity // 64), 0)
            for members in (list(kind) for kind in fleets[0].classes if not fleets[0].row):
                kept_back[members] = kept_back[members].max()
    return max(floor, float(pieces.apart.max())) if floor else 0.0


def known(search: Search) -> float:
    """The period of the best plan so far, if that is what is asked for and the plan fits."""
    return search.key[1] if search.key[0] == 0 and search.problem.objective == "period" else np.inf


def fleets_for(pieces: Pieces, points: int) -> list[Fleet]:
    """The fleets to split over, with as many states as so many points allow."""
    return fleets_of(pieces, max(_FEWEST, int(_WORK / points**2)))


def _best(search: Search, points: StageCosts, fleets: list[Fleet], bound: float) -> list[Walk]:
    """The best ways, with a bound as tight as we can guess, since that is much faster."""
    pipelined = search.problem.objective == "period"
    least = max(
        float(points.work[-1]) / max(float(fleets[0].worth.sum()), 1e-300),
        float(points.pieces.least.max()),
    )
    guesses = [least * times for times in _GUESSES if pipelined and 0 < least * times < bound]
    for guess in (*guesses, bound):
        found = [
            walk
            for fleet in fleets
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
    different = {row.tobytes(): at for at, row in reversed(list(enumerate(rows)))}
    return pieces.placement(rows[sorted(different.values())])
