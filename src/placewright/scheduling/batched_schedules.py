"""Builds the list schedules of a batch of episodes side by side, op by op.

The arithmetic of `scheduling/list_scheduler.py` for a batch: transfers wait for their channel, and
tensors live until their last reader has been added. All episodes take the ops in one order, so
everything but devices, times and bytes in use is computed once per problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.scheduling.ranks import mean_transfer, upward_ranks

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.problem_arrays import Arrays
    from placewright.transforms import Grouping

Seconds = NDArray[np.float64]
Ints = NDArray[np.int64]

_MAX_NEIGHBOURS = 16  # neighbours of a group that count


@dataclass(frozen=True, eq=False)
class RankedOp:
    """One op of the order.

    Args:
        group: The group that is decided at this op, or -1 if its group has a device already.
        inputs, sources: Tensors it reads whose device is known by then, and their producers.
        outputs: Tensors it makes.
        dead_tensors: Tensors whose memory is freed once it has been added.
        group_inputs, group_sources: Tensors that its whole group reads and whose device is known
            by then, and their producers.
        neighbours, saved_seconds: Ops that are worth being with, and the seconds of transfers
            saved: readers that have a device, and producers of its readers' other inputs.
    """

    op: int
    group: int
    inputs: Ints
    sources: Ints
    outputs: Ints
    dead_tensors: Ints
    group_inputs: Ints
    group_sources: Ints
    neighbours: Ints
    saved_seconds: Seconds


@dataclass(frozen=True, eq=False)
class ScheduleOrder:
    """The order in which ops are added, and what is known of each beforehand.

    Args:
        device_table: Ops × devices: where `legalize` puts each op if its group has this device.
        decision_groups: Decisions: the groups, in the order in which they are decided.
        legal: Groups × devices: where at least one op of a group may be.
        rank: Ops: upward ranks in seconds.
    """

    problem: Problem
    grouping: Grouping
    members: list[Ints]
    ranked_ops: tuple[RankedOp, ...]
    device_table: NDArray[np.int32]
    decision_groups: Ints
    legal: NDArray[np.bool_]
    rank: Seconds
    transfer: Seconds  # link classes + 1 × tensors; the last row is within a device
    mean_transfer: Seconds  # tensors
    storage_root: Ints  # tensors: the tensor that owns its memory
    allocated_bytes: Ints  # tensors: bytes that it allocates where it is made, 0 for an alias

    @classmethod
    def of(cls, problem: Problem, grouping: Grouping, legal: NDArray[np.bool_]) -> ScheduleOrder:
        """Ops by falling rank (HEFT's order), equal ranks by position."""
        a = problem.arrays
        device_table = problem.single_device_placements().T.copy()
        rank, transfer_seconds = upward_ranks(a), mean_transfer(a)
        order = np.argsort(-rank, kind="stable")
        order = order[a.scheduled[order]]
        fixed = (device_table == device_table[:, :1]).all(
            axis=1
        )  # e.g. graph inputs, which are on the host
        members = grouping.members()
        ranked_ops, decided = _rank_ops(a, grouping, order, fixed, transfer_seconds)
        unscheduled = np.setdiff1d(np.arange(len(grouping)), decided)  # unread weights
        return cls(
            problem,
            grouping,
            [ops[~fixed[ops]] for ops in members],
            ranked_ops,
            device_table,
            np.concatenate([decided, unscheduled]).astype(np.int64),
            legal,
            rank,
            np.vstack([a.transfer, np.zeros((1, len(a.sizes)))]),
            transfer_seconds,
            a.storage_root,
            np.where(a.alias < 0, a.sizes, 0).astype(np.int64),
        )


def _rank_ops(
    a: Arrays, grouping: Grouping, order: Ints, fixed: NDArray[np.bool_], transfer: Seconds
) -> tuple[tuple[RankedOp, ...], list[int]]:
    storage_root = a.storage_root
    remaining_uses = np.bincount(
        storage_root, weights=np.diff(a.first_reader) + a.is_output, minlength=len(a.sizes)
    )
    has_device, members = fixed.copy(), grouping.members()
    is_decided = np.zeros(len(grouping), dtype=bool)
    ranked_ops, decided = [], []
    empty = np.zeros(0, dtype=np.int64)
    for op in order.tolist():
        group = int(grouping.group[op])
        is_first = not is_decided[group]
        tensors = a.inputs[a.first_input[op] : a.first_input[op + 1]].astype(np.int64)
        # Inputs that are placed together with this op are neither sent nor waited for.
        inputs = tensors[has_device[a.producer[tensors]]]
        group_inputs, neighbours, saved_seconds = empty, empty, np.zeros(0)
        if is_first:
            group_ops = members[group]
            group_inputs = _tensors_read(a, group_ops)
            group_inputs = group_inputs[has_device[a.producer[group_inputs]]]
            neighbours, saved_seconds = _neighbours(a, group_ops, has_device, transfer)
            is_decided[group] = True
            decided.append(group)
            has_device[group_ops] = True
        outputs = np.arange(a.first_tensor[op], a.first_tensor[op + 1], dtype=np.int64)
        np.subtract.at(remaining_uses, storage_root[tensors], 1)
        roots = np.unique(np.concatenate([storage_root[tensors], storage_root[outputs]]))
        dead_tensors = roots[remaining_uses[roots] <= 0].astype(np.int64)
        remaining_uses[dead_tensors] = np.inf  # freed once
        ranked_ops.append(
            RankedOp(
                op,
                group if is_first else -1,
                inputs,
                a.producer[inputs].astype(np.int64),
                outputs,
                dead_tensors,
                group_inputs,
                a.producer[group_inputs].astype(np.int64),
                neighbours,
                saved_seconds,
            )
        )
    return tuple(ranked_ops), decided


def _tensors_read(a: Arrays, ops: Ints) -> Ints:
    """The tensors that ops read, each once."""
    inputs = [a.inputs[a.first_input[op] : a.first_input[op + 1]] for op in ops.tolist()]
    return np.unique(np.concatenate([*inputs, np.zeros(0, dtype=np.int32)])).astype(np.int64)


def _neighbours(
    a: Arrays, ops: Ints, has_device: NDArray[np.bool_], transfer: Seconds
) -> tuple[Ints, Seconds]:
    """Placed ops that a group gains by being with, the largest gain first, and the seconds gained.

    With a placed reader the tensor's transfer is saved. A reader without a device needs the tensor
    and its other inputs in one place: being with their producer saves the shorter transfer.
    """
    group_ops = set(ops.tolist())
    gain: dict[int, float] = {}
    for op in ops[a.scheduled[ops]].tolist():
        for tensor in range(a.first_tensor[op], a.first_tensor[op + 1]):
            transfer_seconds = float(transfer[tensor])
            for reader in a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]].tolist():
                if reader in group_ops:
                    continue
                if has_device[reader]:
                    gain[reader] = max(gain.get(reader, 0.0), transfer_seconds)
                    continue
                for other in a.inputs[a.first_input[reader] : a.first_input[reader + 1]].tolist():
                    source = int(a.producer[other])
                    if source not in group_ops and has_device[source]:
                        gain[source] = gain.get(source, 0.0) + min(
                            transfer_seconds, float(transfer[other])
                        )
    best_gains = sorted(gain.items(), key=lambda item: (-item[1], item[0]))[:_MAX_NEIGHBOURS]
    neighbours = np.array([op for op, _ in best_gains], dtype=np.int64)
    return neighbours, np.array([seconds for _, seconds in best_gains])


class BatchedSchedule:
    """`count` schedules under construction, all at the same op."""

    def __init__(self, order: ScheduleOrder, count: int) -> None:
        a = order.problem.arrays
        self.order, self.arrays, self.count = order, a, count
        self.rows = np.arange(count)
        self.placement = np.full((count, a.ops), -1, dtype=np.int64)
        self.end = np.zeros((count, a.ops))
        self.start = np.zeros((count, a.ops))
        self.device_free = np.zeros((count, a.devices))
        self.busy_seconds = np.zeros((count, a.devices))
        self.used_bytes = np.zeros((count, a.devices))
        self._channel = np.where(a.channel < 0, a.channels, a.channel).astype(np.int64)
        self._link = np.where(a.link_class < 0, len(a.transfer), a.link_class).astype(np.int64)
        self._channel_free = np.zeros((count, a.channels + 1))
        groups = len(order.grouping)
        self.occupancy = np.zeros(
            (count, a.devices, groups), dtype=np.float32
        )  # 1 where a group is
        self.arrival = np.full((len(a.sizes), count, a.devices), np.inf)
        self._live_bytes = np.zeros((len(a.sizes), count, a.devices))
        fixed = (order.device_table == order.device_table[:, :1]).all(axis=1)
        self._place_ops(
            np.flatnonzero(fixed), order.device_table[fixed, 0][None].repeat(count, axis=0)
        )

    def place_group(self, group: int, choice: Ints) -> None:
        """Give a group a device in each episode."""
        members = self.order.members[group]
        self.occupancy[:, :, group] = 0.0
        self.occupancy[self.rows, choice, group] = 1.0
        self._place_ops(members, self.order.device_table[members][:, choice].T)

    def arrival_times(self, tensors: Ints, sources: Ints) -> tuple[Seconds, Seconds, Seconds]:
        """When tensors could be on each device, and the transfers that this needs.

        Returns:
            Episodes × devices: the time of arrival; seconds of the transfers; their bytes.
        """
        if not len(tensors):
            zeros = np.zeros((self.count, self.arrays.devices))
            return zeros, zeros, zeros
        source_device = self.placement[:, sources]
        sent_from = self.end[:, sources][:, :, None]
        channel_free = self._channel_free[self.rows[:, None, None], self._channel[source_device]]
        transfer_seconds = self.order.transfer[self._link[source_device], tensors[:, None]]
        arrival = self.arrival[tensors].transpose(1, 0, 2)
        is_absent = np.isinf(arrival)
        ready = np.where(
            is_absent, np.maximum(sent_from, channel_free) + transfer_seconds, arrival
        ).max(axis=1)
        is_local = source_device[:, :, None] == np.arange(self.arrays.devices)
        is_sent = is_absent & ~is_local
        return (
            ready,
            (transfer_seconds * is_sent).sum(axis=1),
            (self.arrays.sizes[tensors][:, None] * is_sent).sum(axis=1, dtype=np.float64),
        )

    def add_op(self, ranked_op: RankedOp) -> None:
        """Add an op, whose group has its device, behind the device's other ops."""
        a, op = self.arrays, ranked_op.op
        device = self.placement[:, op]
        start = self._receive_inputs(ranked_op, device)
        start = np.maximum(start, self.device_free[self.rows, device])
        seconds = a.compute[op][device]
        end = start + seconds
        self.start[:, op], self.end[:, op] = start, end
        self.device_free[self.rows, device] = end
        self.busy_seconds[self.rows, device] += seconds
        for tensor in ranked_op.outputs.tolist():
            if self.order.allocated_bytes[tensor]:
                self._allocate(tensor, device, self.order.allocated_bytes[tensor])
        for root in ranked_op.dead_tensors.tolist():
            self.used_bytes -= self._live_bytes[root]
            self._live_bytes[root] = 0.0

    def _receive_inputs(self, ranked_op: RankedOp, device: Ints) -> Seconds:
        a, rows, ready = self.arrays, self.rows, np.zeros(self.count)
        local_channel = a.channels
        for tensor, source in zip(
            ranked_op.inputs.tolist(), ranked_op.sources.tolist(), strict=True
        ):
            source_device = self.placement[:, source]
            arrival = self.arrival[tensor, rows, device]
            is_absent = np.isinf(arrival)
            if is_absent.any():
                channel = self._channel[source_device, device]
                channel_free = self._channel_free[rows, channel]
                transfer_seconds = self.order.transfer[self._link[source_device, device], tensor]
                new_arrival = np.maximum(self.end[:, source], channel_free) + transfer_seconds
                arrival = np.where(is_absent, new_arrival, arrival)
                self.arrival[tensor, rows, device] = arrival
                is_sent = is_absent & (channel != local_channel)
                self._channel_free[rows, channel] = np.where(is_sent, arrival, channel_free)
                if is_sent.any():
                    self._allocate(tensor, device, a.sizes[tensor] * is_sent)
            ready = np.maximum(ready, arrival)
        return ready

    def _allocate(self, tensor: int, device: Ints, size: Ints | int) -> None:
        self._live_bytes[self.order.storage_root[tensor], self.rows, device] += size
        self.used_bytes[self.rows, device] += size

    def _place_ops(self, ops: Ints, devices: NDArray[np.integer]) -> None:
        """Set devices of ops (episodes × ops); allocate resident bytes and graph inputs."""
        a = self.arrays
        self.placement[:, ops] = devices
        for at, op in enumerate(ops.tolist()):
            if a.resident[op]:
                self.used_bytes[self.rows, devices[:, at]] += a.resident[op]
            if not a.scheduled[op] and not a.is_resident[op]:
                for tensor in range(a.first_tensor[op], a.first_tensor[op + 1]):
                    self._allocate(tensor, devices[:, at].astype(np.int64), a.sizes[tensor])
