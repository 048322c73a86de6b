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

    from placewright.solvers.contiguous.device_order import (
        Fleet,
        Seat,
        Used,
    )

    Ints = NDArray[np.int64]
    Seconds = NDArray[np.float64]

_SOURCES, _TARGETS = 512, 2048  # points looked at together: a few megabytes
ROUNDING = 1e-9  # sums of the same seconds in another order differ by less


class Points(Protocol):
    """Sets of pieces, by the work in them; the first is empty, the last is everything."""

    work: Seconds

    def seconds(self, seat: Seat, sources: Ints, targets: Ints, bound: float) -> Seconds:
        """Targets × sources: what the stage between the two costs on a device.

        Infinite where there is no such stage and where it may not be on this device; may be so
        where its ops alone take longer than the bound. Targets are a stretch of all points.
        """
        ...


@dataclass(frozen=True)
class Walk:
    """A way from the first point to the last: (device, from, to) for each stage."""

    value: float
    stages: tuple[tuple[int, int, int], ...]


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
    table = _Table(points, Reach(points.work, fleet, longest, bound))
    for used in fleet.states:
        if over():
            break
        table.fill(used, over)
    found = [table.trace(used) for used in table.columns if table.reached(used)]
    return sorted(found, key=lambda walk: walk.value)


class Reach:
    """Which stages are worth a look, from the work in each point alone."""

    def __init__(self, work: Seconds, fleet: Fleet, longest: bool, bound: float) -> None:
        self.work, self.fleet, self.longest = work, fleet, longest
        self.limit = bound * (1 + ROUNDING)
        self._slack = ROUNDING * float(work[-1])
        self._narrow = longest and bool(np.isfinite(self.limit))

    def window(self, used: Used) -> tuple[int, int]:
        """The points that may be done with these devices, as a stretch of all points."""
        if not self._narrow:
            return 0, len(self.work)
        here, rest = (self.limit * work for work in self.fleet.reach(used))
        low = np.searchsorted(self.work, float(self.work[-1]) - rest - self._slack)
        return int(low), int(np.searchsorted(self.work, here + self._slack, side="right"))

    def targets(self, sources: Ints, device: int, window: tuple[int, int]) -> tuple[Ints, Ints]:
        """For each source where the targets begin and end that a stage on a device may lead to."""
        work = self.work[sources]
        begin = np.searchsorted(self.work, work - self._slack)
        end = np.full(len(sources), window[1])
        if self._narrow:
            far = work + self.limit * self.fleet.worth[device] + self._slack
            end = np.minimum(end, np.searchsorted(self.work, far, side="right"))
        return np.maximum(begin, window[0]), end

    def pairs(self) -> int:
        """How many stages that is."""
        count = 0
        for used in self.fleet.states:
            window = self.window(used)
            for _, device, earlier in self.fleet.steps(used):
                low, high = self.window(earlier) if any(earlier) else (0, 1)
                begin, end = self.targets(np.arange(low, high), device, window)
                count += int(np.maximum(end - begin, 0).sum())
        return count


@dataclass
class _Column:
    """For one number of devices in use, the best way to each point."""

    value: Seconds
    source: NDArray[np.int32]
    kind: NDArray[np.int16]  # class of the last device, or -1 where it was left out

    @classmethod
    def empty(cls, size: int) -> _Column:
        return cls(np.full(size, np.inf), np.full(size, -1, np.int32), np.full(size, -1, np.int16))


class _Table:
    def __init__(self, points: Points, reach: Reach) -> None:
        self.points, self.reach, self.fleet = points, reach, reach.fleet
        self.columns: dict[Used, _Column] = {}

    def reached(self, used: Used) -> bool:
        return bool(np.isfinite(self.columns[used].value[-1]))

    def fill(self, used: Used, over: Callable[[], bool]) -> None:
        column = _Column.empty(len(self.points.work))
        self.columns[used] = column
        if not any(used):
            column.value[0] = 0.0
            return
        for kind, device, earlier in self.fleet.steps(used):
            self._extend(used, kind, device, self.columns[earlier], column, over)

    def _extend(
        self,
        used: Used,
        kind: int,
        device: int,
        earlier: _Column,
        column: _Column,
        over: Callable[[], bool],
    ) -> None:
        """Give one more stage to the last device used of a class."""
        limit, seat = self.reach.limit, self.fleet.seat(used, kind)
        known = np.flatnonzero(np.isfinite(earlier.value))
        if self.fleet.row:  # the device may be left out
            column.value[known], column.source[known] = earlier.value[known], known
        for sources, targets in self._blocks(known, device, used):
            if over():
                return
            cost = self.points.seconds(seat, sources, targets, limit)
            join = np.maximum if self.reach.longest else np.add
            value = join(cost, earlier.value[sources], out=cost)
            at = value.argmin(axis=1)
            best = value[np.arange(len(targets)), at]
            better = np.flatnonzero((best < column.value[targets]) & (best <= limit))
            column.value[targets[better]] = best[better]
            column.source[targets[better]] = sources[at[better]]
            column.kind[targets[better]] = kind

    def _blocks(self, known: Ints, device: int, used: Used) -> Iterator[tuple[Ints, Ints]]:
        """Sources and the targets that they may lead to, some of each at a time."""
        window = self.reach.window(used)
        for start in range(0, len(known), _SOURCES):
            sources = known[start : start + _SOURCES]
            begin, end = self.reach.targets(sources, device, window)
            for left in range(int(begin[0]), int(end[-1]), _TARGETS):
                yield sources, np.arange(left, min(left + _TARGETS, int(end[-1])))

    def trace(self, used: Used) -> Walk:
        """The way to the last point, from its end."""
        value, stages = float(self.columns[used].value[-1]), []
        point = len(self.points.work) - 1
        while any(used):
            column = self.columns[used]
            kind, source = int(column.kind[point]), int(column.source[point])
            if kind >= 0:
                stages.append((self.fleet.classes[kind][used[kind] - 1], source, point))
            used, point = self.fleet.without(used, max(kind, 0)), source
        return Walk(value, tuple(reversed(stages)))
