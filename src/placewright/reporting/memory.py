"""Memory of each device over time, split into weights, staging, copies and activations.

The simulator records only how many bytes are in use. Weights and staging buffers stay for the whole
step; how long a received copy lives follows from rule 8; activations (outputs, graph inputs and
workspace) are the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.simulator.reference import readers_of

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.timeline import Timeline

Bytes = NDArray[np.int64]
Seconds = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MemoryCurve:
    """One device's memory over time, from each `time` to the next; times do not go back."""

    time: Seconds
    activations: Bytes
    copies: Bytes


@dataclass(frozen=True, eq=False)
class MemoryBreakdown:
    """What the memory of each device holds.

    Args:
        weights: Bytes by device that stay for the whole step: weights, states, optimizer state.
        staging: Bytes of staging buffers by device.
        curves: What comes and goes, for each device.
    """

    weights: Bytes
    staging: Bytes
    curves: tuple[MemoryCurve, ...]


def memory_breakdown(problem: Problem, timeline: Timeline) -> MemoryBreakdown:
    """The memory of each device, for a timeline without fused groups."""
    a, plan, memory = problem.arrays, timeline.plan, timeline.memory
    weights = np.bincount(plan.placement, a.resident, a.devices).astype(np.int64)
    staging = np.zeros(a.devices, dtype=np.int64)
    if plan.staging is not None:
        staging = np.maximum(plan.staging, 0)
    copy_intervals = _CopyLiveness(problem, timeline).copies()
    curves = []
    for device in range(a.devices):
        rows = memory.device == device
        time, used = memory.time[rows], memory.used[rows]
        intervals = np.array(copy_intervals[device], dtype=np.float64).reshape(-1, 3)
        copies = _live_bytes(intervals, time)
        # Several rounds of one instant have a row each, and a copy may come and go within it.
        transient = used - weights[device] - staging[device]
        copies = np.minimum(copies, transient)
        curves.append(MemoryCurve(time, transient - copies, copies))
    return MemoryBreakdown(weights, staging, tuple(curves))


def _live_bytes(intervals: Seconds, time: Seconds) -> Bytes:
    """Bytes of the copies (from, until, bytes) that are alive at each time."""
    total = np.zeros(len(time))
    for column, sign in ((0, 1.0), (1, -1.0)):
        order = np.argsort(intervals[:, column], kind="stable")
        sums = np.concatenate([[0.0], np.cumsum(intervals[order, 2])])
        total += sign * sums[np.searchsorted(intervals[order, column], time, side="right")]
    return np.rint(total).astype(np.int64)


class _CopyLiveness:
    """How long the memory of a tensor on a device is kept (rule 8)."""

    def __init__(self, problem: Problem, timeline: Timeline) -> None:
        self.a, self.end = problem.arrays, timeline.end.tolist()
        self.device = timeline.plan.placement.tolist()
        transfers = timeline.transfers
        is_send = transfers.reader < 0
        self.sends: list[tuple[int, int, float, float]] = list(
            zip(
                transfers.tensor[is_send].tolist(),
                transfers.target[is_send].tolist(),
                transfers.start[is_send].tolist(),
                transfers.end[is_send].tolist(),
                strict=True,
            )
        )
        self.last_send_end: dict[int, float] = {}  # tensor → when its last send has ended
        for tensor, _, _, end in self.sends:
            self.last_send_end[tensor] = max(end, self.last_send_end.get(tensor, 0.0))
        self.last_uses: dict[tuple[int, int], float] = {}
        streamed = transfers.tensor[~is_send].tolist(), transfers.reader[~is_send].tolist()
        self.streamed = set(zip(*streamed, strict=True))

    def copies(self) -> list[list[tuple[float, float, float]]]:
        """For each device the received copies: from when, until when, bytes."""
        copy_intervals: list[list[tuple[float, float, float]]] = [[] for _ in range(self.a.devices)]
        for tensor, target, start, end in self.sends:
            last_use = max(end, self._storage_end(tensor, target))
            copy_intervals[target].append((start, last_use, float(self.a.sizes[tensor])))
        return copy_intervals

    def _storage_end(self, tensor: int, device: int) -> float:
        """When the last use of a tensor's memory on a device has ended."""
        stack = [(tensor, device)]
        while stack:  # an output that is an alias keeps its input's memory: deepest first
            storage = stack[-1]
            unresolved = [alias for alias in self._aliases(*storage) if alias not in self.last_uses]
            if unresolved:
                stack += unresolved
                continue
            stack.pop()
            self.last_uses[storage] = self._last_use(*storage)
        return self.last_uses[tensor, device]

    def _last_use(self, tensor: int, device: int) -> float:
        a, source = self.a, int(self.a.producer[tensor])
        ends = [self.end[op] for op in self._readers(tensor, device)]
        if self.device[source] == device:
            ends += [self.end[source], self.last_send_end.get(tensor, 0.0)]
            ends += [np.inf] if a.is_output[tensor] else []
        ends += [self.last_uses[alias] for alias in self._aliases(tensor, device)]
        return max(ends, default=0.0)

    def _readers(self, tensor: int, device: int) -> list[int]:
        readers = readers_of(self.a, tensor)
        return [op for op in readers if self.device[op] == device and self.a.scheduled[op]]

    def _aliases(self, tensor: int, device: int) -> list[tuple[int, int]]:
        """Outputs made here that are this tensor's own memory."""
        a = self.a
        return [
            (output, device)
            for op in self._readers(tensor, device)
            for output in range(a.first_tensor[op], a.first_tensor[op + 1])
            if a.alias[output] == tensor and (tensor, op) not in self.streamed
        ]
