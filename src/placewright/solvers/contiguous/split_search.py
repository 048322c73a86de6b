"""Split search: evaluates the best paths through a family of points as plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.solvers.contiguous.device_order import device_orders
from placewright.solvers.contiguous.stage_costs import StageMemory
from placewright.solvers.contiguous.stages import ROUNDING, stage_paths
from placewright.solvers.memory_retry import raise_margin

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from placewright.solvers.contiguous.coarse_graph import CoarseGraph
    from placewright.solvers.contiguous.device_order import DeviceOrder
    from placewright.solvers.contiguous.stage_costs import StageCosts
    from placewright.solvers.contiguous.stages import StagePath
    from placewright.solvers.search import Search

_TRIES = 5  # to make a split fit whose estimate of memory was too low
_WORK = 4e9  # states × points² above which devices are used in sequence
_MIN_STATES = 64  # states that are always affordable
_MAX_SPLITS = 32  # splits of one table that are evaluated
_BOUND_GUESSES = (1.1, 1.4, 2.5)  # times a lower bound of the period


def judge_splits(
    search: Search, coarse: CoarseGraph, costs: Callable[[StageMemory, float], StageCosts]
) -> float:
    """Evaluate the best splits of a family, one for each number of devices of each kind.

    Where a split does not fit, since more than resident bytes are in use, we try again as if every
    output stayed in memory, and then with a memory margin. With overlap, the tensors that a stage
    receives count first as if they came evenly from all other devices, then as if they all came
    over one channel: the truth lies between.

    Args:
        costs: Makes the family's costs for the memory of stages and the share of transfers.

    Returns:
        A lower bound on the period of any split of this family; 0 if there is none.
    """
    problem, a = search.problem, search.problem.arrays
    pipelined = problem.objective == "period"
    fixed = coarse.node_of < 0
    fixed_bytes = np.bincount(
        coarse.fixed_device, np.where(fixed, a.resident, 0), a.devices
    ).astype(np.int64)
    # Costs are exact or too low if links are equal and each weight may be with its reader.
    is_lower_bound = bool(
        (a.transfer == a.transfer[:1]).all()
        and (a.allowed | ~coarse.allowed[coarse.node_of])[~fixed].all()
    )
    floor = 0.0
    for share in (1 / a.devices, 1.0) if pipelined and problem.overlap else (1.0,):
        if floor and known_period(search) <= floor * (1 + ROUNDING):
            break
        memory_margin = np.zeros(a.devices, dtype=np.int64)
        for attempt in range(_TRIES):
            memory = StageMemory(coarse.resident, a.capacity - fixed_bytes - memory_margin)
            if attempt == 1:
                memory = StageMemory(coarse.max_bytes, a.capacity - fixed_bytes)
            points = costs(memory, share)
            orders = device_orders_for(coarse, len(points.work))
            bound = known_period(search)
            paths = _best_paths(search, points, orders, bound)
            verdict = search.judge(_path_placements(coarse, points, paths)) if paths else None
            if search.over:
                return 0.0
            if (
                not floor
                and attempt == 0
                and pipelined
                and is_lower_bound
                and not orders[0].is_sequence
            ):
                floor = paths[0].value if paths else bound
            if attempt == 1:
                continue
            if verdict is None or not verdict.overflow[0]:
                break
            memory_margin = raise_margin(memory_margin, verdict.excess[0], a.capacity)
            for members in (list(kind) for kind in orders[0].classes if not orders[0].is_sequence):
                memory_margin[members] = memory_margin[members].max()
    return max(floor, float(coarse.fixed_seconds.max())) if floor else 0.0


def known_period(search: Search) -> float:
    """The period of the best plan so far, if it is the objective and the plan fits."""
    return search.key[1] if search.key[0] == 0 and search.problem.objective == "period" else np.inf


def device_orders_for(coarse: CoarseGraph, points: int) -> list[DeviceOrder]:
    """The device orders to split over, with as many states as this many points allow."""
    return device_orders(coarse, max(_MIN_STATES, int(_WORK / points**2)))


def _best_paths(
    search: Search, points: StageCosts, orders: list[DeviceOrder], bound: float
) -> list[StagePath]:
    """The best paths; a tight guess of the bound is tried first, which is much faster."""
    pipelined = search.problem.objective == "period"
    lower_bound = max(
        float(points.work[-1]) / max(float(orders[0].throughput.sum()), 1e-300),
        float(points.coarse.fastest_seconds.max()),
    )
    guesses = [
        lower_bound * times
        for times in _BOUND_GUESSES
        if pipelined and 0 < lower_bound * times < bound
    ]
    for guess in (*guesses, bound):
        paths = [
            path
            for order in orders
            for path in stage_paths(points, order, pipelined, guess, lambda: search.over)
        ]
        if paths or search.over:
            return sorted(paths, key=lambda path: path.value)
    return []


def _path_placements(
    coarse: CoarseGraph, points: StageCosts, paths: list[StagePath]
) -> NDArray[np.int32]:
    rows = np.zeros((min(len(paths), _MAX_SPLITS), len(coarse)), dtype=np.int64)
    for row, path in zip(rows, paths, strict=False):
        for device, source, target in path.stages:
            row[points.stage_nodes(source, target)] = device
    unique = {row.tobytes(): index for index, row in reversed(list(enumerate(rows)))}
    return coarse.placement(rows[sorted(unique.values())])
