"""Dynamic programming over stages: points and a fleet in, the best ways from first to last out.

A point is a set of pieces that is done; a stage leads from a point to a larger one and is given to
one device. This holds for any family of points: the prefixes of an order, or all ideals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from placewright.solvers.fleet import Fleet, Seat, Used

Ints = NDArray[np.int64] if TYPE_CHECKING else object

_SOURCES, _TARGETS = 512, 2048  # points looked at together: a few megabytes
_ROUNDING = 1e-9


class Points(Protocol):
    """Sets of pieces, by the work in them; the first is empty, the last is everything."""

    work: NDArray[np.float64]

    def seconds(
        self, seat: Seat, sources: Ints, targets: Ints, bound: float
    ) -> NDArray[np.float64]:
        """Targets × sources: what the stage between the two costs on a device.

        Infinite where there is no such stage and where it may not be on this device; may be so
        where its ops alone take longer than the bound.
        """
        ...


@dataclass(frozen=True)
class Walk:
    """A way from the first point to the last: (device, from, to) for each stage."""

    value: float
    stages: tuple[tuple[int, int, int], ...]


@dataclass
class _Column:
    """For one number of devices in use, the best way to each point."""

    value: NDArray[np.float64]
    source: NDArray[np.int32]
    kind: NDArray[np.int16]  # class of the last device, or -1 where it was left out


def walks(
    points: Points, fleet: Fleet, longest: bool, bound: float, over: Callable[[], bool]
) -> list[Walk]:
    """The best way for each number of devices of each class, best first.

    Args:
        longest: Whether a way's value is its longest stage, or else the sum of its stages.
        bound: Ways that are worth more are of no interest. If the value is the longest stage, most
            points then cannot be on any way: what is done must fit the devices in use, and what is
            left must fit the others.
        over: Asked now and then; once it says so, only what was found is returned.
    """
    table: dict[Used, _Column] = {}
    size, total = len(points.work), float(points.work[-1])
    limit = bound * (1 + _ROUNDING)
    for used in fleet.states:
        if over():
            break
        column = _Column(np.full(size, np.inf), np.full(size, -1, np.int32), np.full(size, -1, np.int16))
        table[used] = column
        if not any(used):
            column.value[0] = 0.0
            continue
        low, high = 0, size
        if longest and np.isfinite(limit):
            here, rest = (limit * work for work in fleet.reach(used))
            slack = _ROUNDING * total
            low = int(np.searchsorted(points.work, total - rest - slack))
            high = int(np.searchsorted(points.work, here + slack, side="right"))
        for kind, count in enumerate(used):
            if count and low < high:
                earlier = table.get((*used[:kind], count - 1, *used[kind + 1 :]))
                if earlier is not None:
                    _extend(points, fleet, used, kind, earlier, column, (low, high), longest, limit, over)
    found = [_trace(fleet, table, used) for used, column in table.items() if column.value[-1] <= limit]
    return sorted(found, key=lambda walk: walk.value)


def _extend(
    points: Points,
    fleet: Fleet,
    used: Used,
    kind: int,
    earlier: _Column,
    column: _Column,
    window: tuple[int, int],
    longest: bool,
    limit: float,
    over: Callable[[], bool],
) -> None:
    """Give one more stage to the last device used of a class."""
    device = fleet.classes[kind][used[kind] - 1]
    seat = fleet.seat(used, kind)
    known = np.flatnonzero(earlier.value <= limit)
    if fleet.row:
        inside = known[(known >= window[0]) & (known < window[1])]
        column.value[inside], column.source[inside] = earlier.value[inside], inside
    farthest = limit * fleet.worth[device] if longest else np.inf
    for sources, targets in _blocks(points.work, known, window, farthest):
        if over():
            return
        cost = points.seconds(seat, sources, targets, limit)
        behind = earlier.value[sources]
        value = np.maximum(cost, behind, out=cost) if longest else np.add(cost, behind, out=cost)
        at = value.argmin(axis=1)
        best = value[np.arange(len(targets)), at]
        better = np.flatnonzero((best < column.value[targets]) & (best <= limit))
        column.value[targets[better]] = best[better]
        column.source[targets[better]] = sources[at[better]]
        column.kind[targets[better]] = kind


def _blocks(
    work: NDArray[np.float64], known: Ints, window: tuple[int, int], farthest: float
) -> Iterator[tuple[Ints, Ints]]:
    """Sources and the targets that they may lead to, some of each at a time."""
    slack = _ROUNDING * float(work[-1])
    for start in range(0, len(known), _SOURCES):
        sources = known[start : start + _SOURCES]
        low, high = float(work[sources[0]]), float(work[sources[-1]])
        begin = max(window[0], int(np.searchsorted(work, low - slack)))
        end = window[1]
        if np.isfinite(farthest):
            end = min(end, int(np.searchsorted(work, high + farthest + slack, side="right")))
        for left in range(begin, end, _TARGETS):
            yield sources, np.arange(left, min(left + _TARGETS, end))


def _trace(fleet: Fleet, table: dict[Used, _Column], used: Used) -> Walk:
    value, stages = float(table[used].value[-1]), []
    point = len(table[used].value) - 1
    while any(used):
        column = table[used]
        kind, source = int(column.kind[point]), int(column.source[point])
        left_out = kind < 0
        kind = max(kind, 0)
        if not left_out:
            stages.append((fleet.classes[kind][used[kind] - 1], source, point))
        used = (*used[:kind], used[kind] - 1, *used[kind + 1 :])
        point = source
    return Walk(value, tuple(reversed(stages)))
