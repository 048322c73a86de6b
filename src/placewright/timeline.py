"""A timeline: when and where each op and transfer of one step ran, and memory over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from placewright.plan import Plan
    from placewright.problem_arrays import Arrays

Ints = NDArray[np.int32]
Bytes = NDArray[np.int64]
Seconds = NDArray[np.float64]


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

    def __repr__(self) -> str:
        return (
            f"Timeline({self.step_time:.6g} s, {len(self.transfers):,} transfers, fits={self.fits})"
        )
