"""Dynamic programming over stages: the best paths from the empty point to the full one.

A point is a set of nodes that are done; a stage leads from a point to a larger one and runs on one
device. This holds for any family of points: the prefixes of an order, or all ideals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from placewright.solvers.contiguous.device_order import (
        DeviceOrder,
        StageDevice,
        UsedCounts,
    )

    Ints = NDArray[np.int64]
    Seconds = NDArray[np.float64]

_SOURCE_BATCH, _TARGET_BATCH = 512, 2048  # points per batch: a few megabytes
ROUNDING = 1e-9  # sums of the same seconds in another order differ by less


class StagePoints(Protocol):
    """Sets of nodes, by their work; the first is empty, the last is everything."""

    work: Seconds

    def seconds(
        self, stage_device: StageDevice, sources: Ints, targets: Ints, bound: float
    ) -> Seconds:
        """Targets × sources: the cost of the stage between the two on a device.

        Infinite where there is no such stage or where it may not be on this device; possibly also
        where its ops alone take longer than the bound. Targets are consecutive points.
        """
        ...


@dataclass(frozen=True)
class StagePath:
    """A path from the first point to the last: (device, from, to) for each stage."""

    value: float
    stages: tuple[tuple[int, int, int], ...]


def stage_paths(
    points: StagePoints,
    order: DeviceOrder,
    bottleneck: bool,
    bound: float,
    is_over: Callable[[], bool],
) -> list[StagePath]:
    """The best path for each number of devices of each class, best first.

    Args:
        bottleneck: Whether a path's value is its longest stage, or else the sum of its stages.
        bound: Paths of a larger value are pruned. If the value is the longest stage, this excludes
            most points: done nodes must fit the devices in use, and the others the other devices.
        is_over: Called now and then; once it is true, only the paths found so far are returned.
    """
    table = _PathTable(points, StageWindow(points.work, order, bottleneck, bound))
    for used in order.states:
        if is_over():
            break
        table.fill(used, is_over)
    paths = [table.trace(used) for used in table.columns if table.is_reachable(used)]
    return sorted(paths, key=lambda path: path.value)


class StageWindow:
    """The stages that are not pruned by the work in their points."""

    def __init__(self, work: Seconds, order: DeviceOrder, bottleneck: bool, bound: float) -> None:
        self.work, self.order, self.bottleneck = work, order, bottleneck
        self.limit = bound * (1 + ROUNDING)
        self._tolerance = ROUNDING * float(work[-1])
        self._is_bounded = bottleneck and bool(np.isfinite(self.limit))

    def window(self, used: UsedCounts) -> tuple[int, int]:
        """The consecutive points that may be done with these devices."""
        if not self._is_bounded:
            return 0, len(self.work)
        used_work, unused_work = (self.limit * work for work in self.order.throughput_split(used))
        low = np.searchsorted(self.work, float(self.work[-1]) - unused_work - self._tolerance)
        return int(low), int(np.searchsorted(self.work, used_work + self._tolerance, side="right"))

    def target_range(
        self, sources: Ints, device: int, window: tuple[int, int]
    ) -> tuple[Ints, Ints]:
        """For each source the range of targets of a stage on a device."""
        work = self.work[sources]
        begin = np.searchsorted(self.work, work - self._tolerance)
        end = np.full(len(sources), window[1])
        if self._is_bounded:
            farthest = work + self.limit * self.order.throughput[device] + self._tolerance
            end = np.minimum(end, np.searchsorted(self.work, farthest, side="right"))
        return np.maximum(begin, window[0]), end

    def count_stages(self) -> int:
        """The number of these stages."""
        count = 0
        for used in self.order.states:
            window = self.window(used)
            for _, device, earlier in self.order.last_devices(used):
                low, high = self.window(earlier) if any(earlier) else (0, 1)
                begin, end = self.target_range(np.arange(low, high), device, window)
                count += int(np.maximum(end - begin, 0).sum())
        return count


@dataclass
class _Column:
    """For one number of devices in use, the best path to each point."""

    value: Seconds
    source: NDArray[np.int32]
    kind: NDArray[np.int16]  # class of the last device, or -1 where it was skipped

    @classmethod
    def empty(cls, size: int) -> _Column:
        return cls(np.full(size, np.inf), np.full(size, -1, np.int32), np.full(size, -1, np.int16))


class _PathTable:
    def __init__(self, points: StagePoints, stage_window: StageWindow) -> None:
        self.points, self.stage_window, self.order = points, stage_window, stage_window.order
        self.columns: dict[UsedCounts, _Column] = {}

    def is_reachable(self, used: UsedCounts) -> bool:
        return bool(np.isfinite(self.columns[used].value[-1]))

    def fill(self, used: UsedCounts, is_over: Callable[[], bool]) -> None:
        column = _Column.empty(len(self.points.work))
        self.columns[used] = column
        if not any(used):
            column.value[0] = 0.0
            return
        for kind, device, earlier in self.order.last_devices(used):
            self._extend(used, kind, device, self.columns[earlier], column, is_over)

    def _extend(
        self,
        used: UsedCounts,
        kind: int,
        device: int,
        earlier: _Column,
        column: _Column,
        is_over: Callable[[], bool],
    ) -> None:
        """Add a stage on the last used device of a class."""
        limit, stage_device = self.stage_window.limit, self.order.stage_device(used, kind)
        reachable = np.flatnonzero(np.isfinite(earlier.value))
        if self.order.is_sequence:  # the device may be skipped
            column.value[reachable], column.source[reachable] = earlier.value[reachable], reachable
        for sources, targets in self._batches(reachable, device, used):
            if is_over():
                return
            cost = self.points.seconds(stage_device, sources, targets, limit)
            combine = np.maximum if self.stage_window.bottleneck else np.add
            value = combine(cost, earlier.value[sources], out=cost)
            at = value.argmin(axis=1)
            best = value[np.arange(len(targets)), at]
            better = np.flatnonzero((best < column.value[targets]) & (best <= limit))
            column.value[targets[better]] = best[better]
            column.source[targets[better]] = sources[at[better]]
            column.kind[targets[better]] = kind

    def _batches(
        self, reachable: Ints, device: int, used: UsedCounts
    ) -> Iterator[tuple[Ints, Ints]]:
        """Sources and their targets, in batches."""
        window = self.stage_window.window(used)
        for start in range(0, len(reachable), _SOURCE_BATCH):
            sources = reachable[start : start + _SOURCE_BATCH]
            begin, end = self.stage_window.target_range(sources, device, window)
            for low in range(int(begin[0]), int(end[-1]), _TARGET_BATCH):
                yield sources, np.arange(low, min(low + _TARGET_BATCH, int(end[-1])))

    def trace(self, used: UsedCounts) -> StagePath:
        """The path to the last point, traced from its end."""
        value, stages = float(self.columns[used].value[-1]), []
        point = len(self.points.work) - 1
        while any(used):
            column = self.columns[used]
            kind, source = int(column.kind[point]), int(column.source[point])
            if kind >= 0:
                stages.append((self.order.classes[kind][used[kind] - 1], source, point))
            used, point = self.order.decrement(used, max(kind, 0)), source
        return StagePath(value, tuple(reversed(stages)))
