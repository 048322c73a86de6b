"""A timeline: when and where each op and transfer of one step ran, and memory over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from placewright.plan import Plan

Ints = NDArray[np.int32]
Bytes = NDArray[np.int64]
Seconds = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Transfers:
    """Every stretch of time in which a tensor or a streamed weight was under way.

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
class Memory:
    """Bytes in use on each device from `time` on, in order of time; changes only."""

    device: Ints
    time: Seconds
    used: Bytes


@dataclass(frozen=True, eq=False)
class Timeline:
    """What one step of a plan looks like. Times are seconds from the start of the step.

    Args:
        start, end: When each op ran; ops that take no turn start and end at 0.
        peak: The most bytes each device held at once.
        capacity: The bytes it may hold.
        period: Seconds between steps when steps are pipelined.
    """

    plan: Plan
    step_time: float
    period: float
    start: Seconds
    end: Seconds
    transfers: Transfers
    memory: Memory
    peak: Bytes
    capacity: Bytes

    @property
    def overflow(self) -> int:
        """Bytes over capacity, all devices together."""
        return int(np.maximum(self.peak - self.capacity, 0).sum())

    @property
    def fits(self) -> bool:
        return self.overflow == 0

    @property
    def busy(self) -> Seconds:
        """Seconds each device spends on ops."""
        return np.bincount(self.plan.device, weights=self.end - self.start, minlength=len(self.peak))

    def __repr__(self) -> str:
        return f"Timeline({self.step_time:.6g} s, {len(self.transfers):,} transfers, fits={self.fits})"
