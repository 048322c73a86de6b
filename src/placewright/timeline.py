"""A timeline: when and where each op and transfer of one step ran, and memory over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.html_tables import (
    OP_COLOUR,
    TRANSFER_COLOUR,
    html_card,
    html_lanes,
    html_table,
)
from placewright.units import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from placewright.plan import Plan
    from placewright.problem_arrays import Arrays

Ints = NDArray[np.int32]
Bytes = NDArray[np.int64]
Seconds = NDArray[np.float64]

MAX_LANES = 16  # devices, and links, that a notebook's chart shows
_CHART_STEPS = 500  # a gap of less than this part of the step is not drawn


@dataclass(frozen=True, eq=False)
class Transfers:
    """Every interval in which a tensor or a streamed weight was transferred.

    A streamed weight that a tensor interrupted has several rows.
    """

    tensor: Ints  # as numbered in `Arrays`
    source: Ints  # devices
    target: Ints
    channel: Ints
    reader: Ints  # the op that a streamed weight is for, -1 for a tensor
    start: Seconds
    end: Seconds

    def __len__(self) -> int:
        return len(self.tensor)


@dataclass(frozen=True, eq=False)
class MemoryTrace:
    """Bytes in use on each device from `time` on, in order of time; changes only."""

    device: Ints
    time: Seconds
    used: Bytes


@dataclass(frozen=True, eq=False)
class Timeline:
    """One step of a plan. Times are seconds from the start of the step.

    Args:
        start: When each op began (a fused op with its group); 0 for unscheduled ops.
        end: When each op ended, likewise.
        peak: Bytes: the memory peak of each device.
        capacity: Bytes that a plan may use on each device.
        period: Seconds between steps when steps are pipelined.
    """

    plan: Plan
    step_time: float
    period: float
    start: Seconds
    end: Seconds
    transfers: Transfers
    memory: MemoryTrace
    peak: Bytes
    capacity: Bytes

    @property
    def overflow(self) -> int:
        """Bytes over capacity, summed over devices."""
        return int(np.maximum(self.peak - self.capacity, 0).sum())

    @property
    def fits(self) -> bool:
        return self.overflow == 0

    @property
    def busy(self) -> Seconds:
        """Seconds each device spends on ops; a fused group runs once."""
        op_seconds = self.end - self.start
        if self.plan.fusion is not None:
            groups = self.plan.fusion
            first_member = np.unique(groups, return_index=True)[1]
            repeated = (groups >= 0) & ~np.isin(np.arange(len(groups)), first_member)
            op_seconds = np.where(repeated, 0.0, op_seconds)
        busy: Seconds = np.bincount(self.plan.placement, op_seconds, len(self.peak)).astype(
            np.float64
        )
        return busy

    def computing(self, a: Arrays) -> list[int]:
        """The devices that run ops."""
        devices: list[int] = np.unique(self.plan.placement[a.scheduled]).tolist()
        return devices

    def bytes_sent(self, a: Arrays) -> tuple[int, int]:
        """Bytes of tensors and of streamed weights that go between devices in one step."""
        transfers = self.transfers
        # An interrupted copy has several rows.
        rows = np.unique(np.stack([transfers.tensor, transfers.target, transfers.reader]), axis=1)
        sizes, streamed = a.sizes[rows[0]], rows[2] >= 0
        return int(sizes[~streamed].sum()), int(sizes[streamed].sum())

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        names, total = self.plan.device_names, max(self.step_time, 1e-30)
        lanes = [
            (name, OP_COLOUR, _busy_intervals(self.start[ops], self.end[ops], total))
            for device, name in enumerate(names[:MAX_LANES])
            for ops in [(self.plan.placement == device) & (self.end > self.start)]
        ]
        pairs = zip(self.transfers.source.tolist(), self.transfers.target.tolist(), strict=True)
        for source, target in list(dict.fromkeys(pairs))[:MAX_LANES]:
            rows = (self.transfers.source == source) & (self.transfers.target == target)
            intervals = _busy_intervals(self.transfers.start[rows], self.transfers.end[rows], total)
            lanes.append((f"{names[source]}→{names[target]}", TRANSFER_COLOUR, intervals))
        memory = zip(names, self.busy.tolist(), self.peak.tolist(), strict=True)
        table = html_table(
            ("device", "busy", "of step time", "peak memory"),
            [
                (name, format_seconds(busy), format_percent(busy / total), format_bytes(peak))
                for name, busy, peak in memory
            ],
        )
        fits = "fits" if self.fits else f"out of memory by {format_bytes(self.overflow)}"
        line = f"period {format_seconds(self.period)}, {len(self.transfers):,} transfers, {fits}"
        title = f"step time {format_seconds(self.step_time)}"
        return html_card(title, [line], html_lanes(lanes), table)

    def __repr__(self) -> str:
        return (
            f"Timeline({self.step_time:.6g} s, {len(self.transfers):,} transfers, fits={self.fits})"
        )


def _busy_intervals(start: Seconds, end: Seconds, total: float) -> list[tuple[float, float]]:
    """Intervals as shares of the whole, those next to each other as one."""
    merged: list[tuple[float, float]] = []
    order = np.argsort(start, kind="stable")
    for begin, finish in zip((start[order] / total), (end[order] / total), strict=True):
        if merged and begin - merged[-1][1] < 1 / _CHART_STEPS:
            merged[-1] = merged[-1][0], max(merged[-1][1], float(finish))
        else:
            merged.append((float(begin), float(finish)))
    return merged
