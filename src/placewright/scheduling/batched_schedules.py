"""Estimates: a problem in, list schedules of many episodes side by side out, op by op.

The list scheduler's own arithmetic (`scheduling/list_scheduler.py`) for a batch: transfers wait for their
channel, bytes are held until their last reader has been added. All episodes take the ops in one
order, so everything but devices, times and bytes in use is known once per problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from placewright.arrays import Arrays
    from placewright.problem import Problem
    from placewright.transforms import Grouping

Seconds = NDArray[np.float64]
Ints = NDArray[np.int64]

_NEAR = 16  # neighbours of a group that are looked at


@dataclass(frozen=True, eq=False)
class Turn:
    """One op of the order.

    Args:
        group: The group that is decided at this op, or -1 if its group has a device already.
        inputs: Tensors it reads whose device is known by then.
        gone: Tensors whose memory is let go once it has been added.
        pulled, pullers: Tensors that the whole group reads from elsewhere, known by then.
        near, weight: Ops that it would save transfers to be with, and the seconds saved: readers
            that have a device, and whatever else its readers read.
    """

    op: int
    group: int
    inputs: Ints
    sources: Ints
    outputs: Ints
    gone: Ints
    pulled: Ints
    pullers: Ints
    near: Ints
    weight: Seconds


@dataclass(frozen=True, eq=False)
class Course:
    """The order in which ops are added and what is known of each before any is.

    Args:
        table: Ops × devices: where the problem settles each op if its group is given a device.
        decided: Decisions: the groups, in the order in which they are decided.
        legal: Groups × devices: where at least one op of a group may be.
        rank: Ops: the mean way to the end of the graph in seconds.
    """

    problem: Problem
    grouping: Grouping
    members: list[Ints]
    turns: tuple[Turn, ...]
    table: NDArray[np.int32]
    decided: Ints
    legal: NDArray[np.bool_]
    rank: Seconds
    transfer: Seconds  # link classes + 1 × tensors; the last row is a device's way to itself
    mean_transfer: Seconds  # tensors
    family: Ints  # tensors: whose memory it is in the end
    held: Ints  # tensors: bytes that it adds where it is made, nothing for an alias

    @classmethod
    def of(cls, problem: Problem, grouping: Grouping, legal: NDArray[np.bool_]) -> Course:
        """Ops by falling rank (HEFT's order), equal ranks by position."""
        a = problem.arrays
        constant = np.repeat(np.arange(a.devices, dtype=np.int32)[:, None], a.ops, axis=1)
        table = problem.settle(constant).T.copy()
        mean = _mean_transfer(a)
        rank = _ranks(a, mean)
        order = np.argsort(-rank, kind="stable")
        order = order[a.turn[order]]
        fixed = (table == table[:, :1]).all(axis=1)  # such as graph inputs, which are on the host
        members = grouping.members()
        turns, decided = _turns(a, grouping, order, fixed, mean)
        missing = np.setdiff1d(np.arange(len(grouping)), decided)  # weights that nobody reads
        return cls(
            problem,
            grouping,
            [own[~fixed[own]] for own in members],
            turns,
            table,
            np.concatenate([decided, missing]).astype(np.int64),
            legal,
            rank,
            np.vstack([a.transfer, np.zeros((1, len(a.sizes)))]),
            mean,
            a.family,
            np.where(a.alias < 0, a.sizes, 0).astype(np.int64),
        )


def _turns(
    a: Arrays, grouping: Grouping, order: Ints, fixed: NDArray[np.bool_], mean: Seconds
) -> tuple[tuple[Turn, ...], list[int]]:
    family = a.family
    left = np.bincount(family, weights=np.diff(a.first_reader) + a.kept, minlength=len(a.sizes))
    known, members = fixed.copy(), grouping.members()
    seen = np.zeros(len(grouping), dtype=bool)
    turns, decided = [], []
    nothing = np.zeros(0, dtype=np.int64)
    for op in order.tolist():
        group = int(grouping.group[op])
        fresh = not seen[group]
        read = a.inputs[a.first_input[op] : a.first_input[op + 1]].astype(np.int64)
        # What goes with this very op is there: it is sent nowhere and waited for by nobody.
        reads = read[known[a.producer[read]]]
        pulled, near, weight = nothing, nothing, np.zeros(0)
        if fresh:
            mine = members[group]
            pulled = _read_by(a, mine)
            pulled = pulled[known[a.producer[pulled]]]
            near, weight = _near(a, mine, known, mean)
            seen[group] = True
            decided.append(group)
            known[mine] = True
        outputs = np.arange(a.first_tensor[op], a.first_tensor[op + 1], dtype=np.int64)
        np.subtract.at(left, family[read], 1)
        touched = np.unique(np.concatenate([family[read], family[outputs]]))
        gone = touched[left[touched] <= 0].astype(np.int64)
        left[gone] = np.inf  # let go once
        turns.append(
            Turn(
                op,
                group if fresh else -1,
                reads,
                a.producer[reads].astype(np.int64),
                outputs,
                gone,
                pulled,
                a.producer[pulled].astype(np.int64),
                near,
                weight,
            )
        )
    return tuple(turns), decided


def _read_by(a: Arrays, ops: Ints) -> Ints:
    """The tensors that ops read, each once."""
    read = [a.inputs[a.first_input[op] : a.first_input[op + 1]] for op in ops.tolist()]
    return np.unique(np.concatenate([*read, np.zeros(0, dtype=np.int32)])).astype(np.int64)


def _near(a: Arrays, ops: Ints, known: NDArray[np.bool_], mean: Seconds) -> tuple[Ints, Seconds]:
    """Ops with a device that a group gains by being with, the most first, and the seconds gained.

    A reader that has a device saves the tensor's transfer. For one that has none, the tensor or
    what else it reads must be sent: being together saves the lesser of both.
    """
    own = set(ops.tolist())
    gain: dict[int, float] = {}
    for op in ops[a.turn[ops]].tolist():
        for tensor in range(a.first_tensor[op], a.first_tensor[op + 1]):
            sent = float(mean[tensor])
            for reader in a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]].tolist():
                if reader in own:
                    continue
                if known[reader]:
                    gain[reader] = max(gain.get(reader, 0.0), sent)
                    continue
                for other in a.inputs[a.first_input[reader] : a.first_input[reader + 1]].tolist():
                    source = int(a.producer[other])
                    if source not in own and known[source]:
                        gain[source] = gain.get(source, 0.0) + min(sent, float(mean[other]))
    best = sorted(gain.items(), key=lambda item: (-item[1], item[0]))[:_NEAR]
    near = np.array([op for op, _ in best], dtype=np.int64)
    return near, np.array([seconds for _, seconds in best])


class Lists:
    """So many schedules under construction, all at the same op."""

    def __init__(self, course: Course, count: int) -> None:
        a = course.problem.arrays
        self.course, self.a, self.count = course, a, count
        self.rows = np.arange(count)
        self.device = np.full((count, a.ops), -1, dtype=np.int64)
        self.end = np.zeros((count, a.ops))
        self.start = np.zeros((count, a.ops))
        self.free = np.zeros((count, a.devices))
        self.busy = np.zeros((count, a.devices))
        self.used = np.zeros((count, a.devices))
        self._channel = np.where(a.channel < 0, a.channels, a.channel).astype(np.int64)
        self._link = np.where(a.link_class < 0, len(a.transfer), a.link_class).astype(np.int64)
        self._channel_free = np.zeros((count, a.channels + 1))
        groups = len(course.grouping)
        self.here = np.zeros((count, a.devices, groups), dtype=np.float32)  # 1 where a group is
        self.arrival = np.full((len(a.sizes), count, a.devices), np.inf)
        self._held = np.zeros((len(a.sizes), count, a.devices))
        fixed = (course.table == course.table[:, :1]).all(axis=1)
        self._settle(np.flatnonzero(fixed), course.table[fixed, 0][None].repeat(count, axis=0))

    def decide(self, group: int, choice: Ints) -> None:
        """Give a group a device in each episode."""
        members = self.course.members[group]
        self.here[:, :, group] = 0.0
        self.here[self.rows, choice, group] = 1.0
        self._settle(members, self.course.table[members][:, choice].T)

    def reach(self, tensors: Ints, sources: Ints) -> tuple[Seconds, Seconds, Seconds]:
        """When tensors could be on each device, and what it takes to bring them there.

        Returns:
            Episodes × devices: seconds; seconds on links for what is not there yet; its bytes.
        """
        if not len(tensors):
            nothing = np.zeros((self.count, self.a.devices))
            return nothing, nothing, nothing
        place = self.device[:, sources]
        begin = self.end[:, sources][:, :, None]
        waits = self._channel_free[self.rows[:, None, None], self._channel[place]]
        taken = self.course.transfer[self._link[place], tensors[:, None]]
        there = self.arrival[tensors].transpose(1, 0, 2)
        fresh = np.isinf(there)
        ready = np.where(fresh, np.maximum(begin, waits) + taken, there).max(axis=1)
        here = place[:, :, None] == np.arange(self.a.devices)
        send = fresh & ~here
        return (
            ready,
            (taken * send).sum(axis=1),
            (self.a.sizes[tensors][:, None] * send).sum(axis=1, dtype=np.float64),
        )

    def add(self, turn: Turn) -> None:
        """Run an op, whose group has its device, after all that is there."""
        a, op = self.a, turn.op
        device = self.device[:, op]
        begin = self._send(turn, device)
        begin = np.maximum(begin, self.free[self.rows, device])
        seconds = a.compute[op][device]
        end = begin + seconds
        self.start[:, op], self.end[:, op] = begin, end
        self.free[self.rows, device] = end
        self.busy[self.rows, device] += seconds
        for tensor in turn.outputs.tolist():
            if self.course.held[tensor]:
                self._hold(tensor, device, self.course.held[tensor])
        for family in turn.gone.tolist():
            self.used -= self._held[family]
            self._held[family] = 0.0

    def _send(self, turn: Turn, device: Ints) -> Seconds:
        a, rows, last = self.a, self.rows, np.zeros(self.count)
        own = a.channels
        for tensor, source in zip(turn.inputs.tolist(), turn.sources.tolist(), strict=True):
            place = self.device[:, source]
            there = self.arrival[tensor, rows, device]
            fresh = np.isinf(there)
            if fresh.any():
                channel = self._channel[place, device]
                before = self._channel_free[rows, channel]
                taken = self.course.transfer[self._link[place, device], tensor]
                arrived = np.maximum(self.end[:, source], before) + taken
                there = np.where(fresh, arrived, there)
                self.arrival[tensor, rows, device] = there
                sent = fresh & (channel != own)
                self._channel_free[rows, channel] = np.where(sent, there, before)
                if sent.any():
                    self._hold(tensor, device, a.sizes[tensor] * sent)
            last = np.maximum(last, there)
        return last

    def _hold(self, tensor: int, device: Ints, size: Ints | int) -> None:
        self._held[self.course.family[tensor], self.rows, device] += size
        self.used[self.rows, device] += size

    def _settle(self, ops: Ints, device: NDArray[np.integer]) -> None:
        """Ops have their devices (episodes × ops): resident bytes are there, and graph inputs."""
        a = self.a
        self.device[:, ops] = device
        for at, op in enumerate(ops.tolist()):
            if a.resident[op]:
                self.used[self.rows, device[:, at]] += a.resident[op]
            if not a.turn[op] and not a.stored[op]:
                for tensor in range(a.first_tensor[op], a.first_tensor[op + 1]):
                    self._hold(tensor, device[:, at].astype(np.int64), a.sizes[tensor])


def _mean_transfer(a: Arrays) -> Seconds:
    classes = a.link_class[a.link_class >= 0]
    if not len(classes):
        return np.zeros(len(a.sizes))
    share = np.bincount(classes, minlength=len(a.transfer)) / len(classes)
    mean: Seconds = share @ a.transfer
    return mean


def _ranks(a: Arrays, transfer: Seconds) -> Seconds:
    """Upward ranks (Topcuoglu et al. 2002, Eq. 8)."""
    mean = np.where(a.allowed, a.compute, 0.0).sum(axis=1) / a.allowed.sum(axis=1)
    seconds, sent = np.where(a.turn, mean, 0.0).tolist(), transfer.tolist()
    first, readers, tensors = a.first_reader.tolist(), a.readers.tolist(), a.first_tensor.tolist()
    ranks = [0.0] * a.ops
    for op in range(a.ops - 1, -1, -1):
        longest = 0.0
        for tensor in range(tensors[op], tensors[op + 1]):
            for reader in readers[first[tensor] : first[tensor + 1]]:
                longest = max(longest, sent[tensor] + ranks[reader])
        ranks[op] = seconds[op] + longest
    return np.array(ranks)
