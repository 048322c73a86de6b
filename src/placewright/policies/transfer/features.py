"""Features of (group, device) pairs, from a list schedule under construction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.scheduling.batched_schedules import (
        BatchedSchedule,
        RankedOp,
        ScheduleOrder,
    )

_MAX_DELAY = 4.0  # the limit of a delay, relative to the group's own scale
_NEGLIGIBLE = 1e-3  # the share of other times that counts as no time

FEATURES = (
    "end",  # how much later it ends than on the device where it ends first
    "end, own scale",  # the same, relative to its own scale
    "start, own scale",  # how much later it starts than where it starts first
    "end, critical",  # as `end`, times the length of the path to the end of the graph
    "bring",  # transfer seconds of its inputs that are on other devices
    "bring, own scale",
    "with",  # transfers that its readers save, as a share of all that may be saved
    "load",  # the device's work with it, relative to an equal share of all work
    "slow",  # its time relative to that on its fastest device, logarithmic
    "unused",  # the device has no work yet
    "full",  # memory in use with it, beyond half
    "over",  # memory overflow
)
"""Features of a pair by name; times are relative to a mean group's scale, or to its own."""


@dataclass(frozen=True, eq=False)
class PairFeatures:
    """Features of a problem's groups on its devices.

    Args:
        seconds: Groups × devices: all work of a group.
        fastest: Groups: the same on its fastest device.
        scale: Groups: its time and the mean transfers of its inputs: the scale of its delays.
        mean_scale: The mean of those: the scale of all delays.
        memory_bytes: Groups: resident bytes, and outputs and workspace of its largest op.
        fair_share: Devices: an equal share of all work.
        criticality: Groups: its first op's rank, as a share of the largest.
    """

    order: ScheduleOrder
    seconds: NDArray[np.float64]
    fastest: NDArray[np.float64]
    scale: NDArray[np.float64]
    mean_scale: float
    memory_bytes: NDArray[np.float64]
    fair_share: NDArray[np.float64]
    criticality: NDArray[np.float64]

    @classmethod
    def of(cls, order: ScheduleOrder) -> PairFeatures:
        a, group = order.problem.arrays, order.grouping.group
        count = len(order.grouping)
        # Where a device is illegal for an op, its work is done where the problem puts it.
        compute = np.where(a.scheduled[:, None], a.compute, 0.0)
        compute = np.take_along_axis(compute, order.device_table.astype(np.int64), axis=1)
        columns = [np.bincount(group, column, count).astype(float) for column in compute.T]
        seconds = np.stack(columns, axis=1)
        fastest = np.where(order.legal, seconds, np.inf).min(axis=1)
        input_seconds = np.zeros(count)
        rank = np.zeros(count)
        for ranked_op in order.ranked_ops:
            if ranked_op.group >= 0:
                input_seconds[ranked_op.group] = order.mean_transfer[ranked_op.group_inputs].sum()
                rank[ranked_op.group] = order.rank[ranked_op.op]
        scale = fastest + input_seconds
        # Where some device takes no time for any work, the other devices give the scale.
        mean_scale = max(float(scale.mean()) or _NEGLIGIBLE * float(seconds.mean()), 1e-30)
        scale = np.maximum(scale, 1e-3 * mean_scale)
        output_bytes = np.bincount(a.producer, order.allocated_bytes, minlength=a.ops)
        peak_bytes = np.zeros(count)
        np.maximum.at(peak_bytes, group[a.scheduled], (output_bytes + a.workspace)[a.scheduled])
        resident = np.bincount(group, a.resident, count)
        # An equal share: every device is busy for the same seconds.
        device_seconds = seconds.sum(axis=0)
        speed = 1 / np.maximum(
            np.where(device_seconds > 0, device_seconds, _NEGLIGIBLE * device_seconds.mean()), 1e-30
        )
        fair_share = np.full(a.devices, 1 / speed.sum())
        max_rank = max(float(rank.max(initial=0.0)), 1e-30)
        return cls(
            order,
            seconds,
            fastest,
            scale,
            mean_scale,
            resident + peak_bytes,
            fair_share,
            rank / max_rank,
        )

    @property
    def width(self) -> int:
        """The number of features."""
        return len(FEATURES)

    def prepare(self, schedule: BatchedSchedule) -> None:
        """Start with no group placed."""

    def features(self, schedule: BatchedSchedule, ranked_op: RankedOp) -> NDArray[np.float64]:
        """Episodes × devices × features of the group that is decided at this op."""
        a, group = schedule.arrays, ranked_op.group
        legal = self.order.legal[group]
        ready, transfer_seconds, transfer_bytes = schedule.arrival_times(
            ranked_op.inputs, ranked_op.sources
        )
        if len(ranked_op.group_inputs) > len(ranked_op.inputs):
            _, transfer_seconds, transfer_bytes = schedule.arrival_times(
                ranked_op.group_inputs, ranked_op.group_sources
            )
        scale, mean_scale = self.scale[group], self.mean_scale
        start = np.maximum(ready, schedule.device_free)
        end = start + self.seconds[group]
        end_delay = end - np.where(legal, end, np.inf).min(axis=1, keepdims=True)
        start_delay = start - np.where(legal, start, np.inf).min(axis=1, keepdims=True)
        transfer_seconds = transfer_seconds - np.where(legal, transfer_seconds, np.inf).min(
            axis=1, keepdims=True
        )
        saved_share = np.zeros_like(end)
        if len(ranked_op.neighbours):
            neighbour_device = schedule.placement[:, ranked_op.neighbours]
            is_local = neighbour_device[:, :, None] == np.arange(a.devices)
            saved_share = (ranked_op.saved_seconds[:, None] * is_local).sum(axis=1) / scale
        load = (schedule.busy_seconds + self.seconds[group]) / self.fair_share
        memory_share = (
            schedule.used_bytes + transfer_bytes + self.memory_bytes[group]
        ) / np.maximum(a.capacity, 1)
        slowdown = self.seconds[group] / max(self.fastest[group], 1e-3 * mean_scale)
        columns = (
            end_delay / mean_scale,
            np.minimum(end_delay / scale, _MAX_DELAY),
            np.minimum(start_delay / scale, _MAX_DELAY),
            end_delay / mean_scale * self.criticality[group],
            transfer_seconds / mean_scale,
            np.minimum(transfer_seconds / scale, _MAX_DELAY),
            np.minimum(saved_share, _MAX_DELAY),
            load,
            np.broadcast_to(np.log(np.maximum(slowdown, 1e-3)), end.shape),
            (schedule.busy_seconds == 0).astype(float),
            np.clip(memory_share - 0.5, 0.0, 0.5),
            np.minimum(np.maximum(memory_share - 1.0, 0.0) * 10 + (memory_share > 1.0), _MAX_DELAY),
        )
        features: NDArray[np.float64] = np.stack(columns, axis=2)
        return features
