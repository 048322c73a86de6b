"""Movable groups of a placement, and the bytes each holds at its device's peak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.timeline import Timeline

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Bytes = NDArray[np.int64]
Seconds = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MovableGroups:
    """What moves as one: the ops of a team that share a device and what they are allowed.

    In most placements a piece is a team; a weight that lives apart from its reader is one too.
    """

    problem: Problem
    group_of: Ints  # ops: the piece of each
    leader: Ints  # pieces: the op that leads its team
    initial_device: Ints  # pieces: the device it is on at first
    allowed: Flags  # pieces × devices
    seconds: Seconds  # pieces × devices
    resident: Bytes  # pieces
    storage_root: Ints  # tensors: the one whose memory each is

    @classmethod
    def of(
        cls,
        problem: Problem,
        device: NDArray[np.int32],
        staging: NDArray[np.int64] | None = None,
    ) -> MovableGroups:
        a = problem.arrays
        permission = np.unique(np.packbits(a.allowed, axis=1), axis=0, return_inverse=True)[
            1
        ].ravel()
        key = (a.leader.astype(np.int64) * a.devices + device) * (
            int(permission.max()) + 1
        ) + permission
        _, first_op, group_of = np.unique(key, return_index=True, return_inverse=True)
        group_of, count = group_of.ravel().astype(np.int64), len(first_op)
        op_seconds = np.where(a.scheduled[:, None], a.compute, 0.0)
        allowed = a.allowed[first_op]
        if staging is not None:
            allowed = allowed & _staging_allows(problem, device, group_of, count, staging)
        return cls(
            problem,
            group_of,
            a.leader[first_op].astype(np.int64),
            device[first_op].astype(np.int64),
            allowed,
            np.stack(
                [np.bincount(group_of, weights=column, minlength=count) for column in op_seconds.T],
                axis=1,
            ),
            np.bincount(group_of, weights=a.resident, minlength=count).astype(np.int64),
            a.storage_root,
        )

    def __len__(self) -> int:
        return len(self.leader)

    def held_bytes(self, timeline: Timeline) -> Seconds:
        """The bytes of each piece when its device is fullest.

        That is its resident bytes, and a share in each tensor that is there then because of it: it
        reads it later on, is just making it or still sending it, or it is an output of the graph.
        Several pieces that hold the same tensor share its bytes, which go once all of them go.
        """
        a, plan = self.problem.arrays, timeline.plan
        device = plan.placement.astype(np.int64)
        peak_time = _peak_times(timeline)
        now = peak_time[device]  # ops: when the op's device is fullest
        has_started = ~a.scheduled | (timeline.start <= now)
        running = a.scheduled & has_started & (timeline.end > now)
        transfers = timeline.transfers
        sends = np.flatnonzero(transfers.reader < 0)
        tensor, source, target = (
            column[sends].astype(np.int64)
            for column in (transfers.tensor, transfers.source, transfers.target)
        )
        # Readers that have not ended, of what is there: made there, or sent before.
        inputs = a.inputs.astype(np.int64)
        local = device[a.producer[inputs]] == device[a.reader]
        arrival = np.full(len(a.sizes) * a.devices, np.inf)
        arrival[tensor * a.devices + target] = transfers.start[sends]
        has_arrived = arrival[inputs * a.devices + device[a.reader]] <= now[a.reader]
        still_reads = a.scheduled[a.reader] & (timeline.end[a.reader] > now[a.reader])
        still_reads &= np.where(local, has_started[a.producer[inputs]], has_arrived)
        # Producers: what they make now, what leaves the graph, what is not sent yet.
        producer = a.producer.astype(np.int64)
        running_outputs = np.flatnonzero(running[producer])
        graph_outputs = np.flatnonzero(a.is_output & has_started[producer])
        unsent = has_started[producer[tensor]] & (transfers.end[sends] > peak_time[source])
        tensors = np.concatenate(
            [inputs[still_reads], running_outputs, graph_outputs, tensor[unsent]]
        )
        holders = np.concatenate(
            [
                a.reader[still_reads],
                producer[running_outputs],
                producer[graph_outputs],
                producer[tensor[unsent]],
            ]
        )
        return self._shared_bytes(
            self.storage_root[tensors], self.group_of[holders], device[holders], running, device
        )

    def _shared_bytes(
        self, tensor: Ints, group: Ints, holder_device: Ints, running: Flags, device: Ints
    ) -> Seconds:
        """Resident bytes, workspace, and each held tensor's bytes shared out over its holders."""
        a = self.problem.arrays
        resident = a.is_resident[a.producer[tensor]] & (device[a.producer[tensor]] == holder_device)
        tensor, group, holder_device = tensor[~resident], group[~resident], holder_device[~resident]
        pair = np.unique(
            (tensor * a.devices + holder_device) * len(self) + group
        )  # a piece is at one place
        storage, group = pair // len(self), pair % len(self)
        _, index, holders = np.unique(storage, return_inverse=True, return_counts=True)
        share = a.sizes[storage // a.devices] / holders[index]
        workspace = np.bincount(self.group_of, weights=a.workspace * running, minlength=len(self))
        shares = np.bincount(group, weights=share, minlength=len(self))
        return np.asarray(self.resident + workspace + shares, dtype=np.float64)


def _peak_times(timeline: Timeline) -> Seconds:
    """When each device first holds its peak."""
    memory, devices = timeline.memory, len(timeline.peak)
    times = np.zeros(devices)
    for device in range(devices):
        is_device = memory.device == device
        if is_device.any():
            times[device] = memory.time[is_device][memory.used[is_device].argmax()]
    return times


def _staging_allows(
    problem: Problem,
    device: NDArray[np.int32],
    group_of: Ints,
    count: int,
    staging: NDArray[np.int64],
) -> Flags:
    """Pieces × devices: where a piece may go without overfilling a staging room.

    We stay on the safe side: a room must hold all weights of an op that may come to be streamed
    there, wherever these weights are now.
    """
    a = problem.arrays
    source = a.producer[a.inputs]
    reads = a.is_weight[source] & a.scheduled[a.reader]
    reader, source, size = a.reader[reads], source[reads], a.sizes[a.inputs[reads]]
    need = np.bincount(reader, weights=size, minlength=a.ops)
    fits: Flags = np.asarray((need[:, None] <= staging) | (staging < 0))  # ops × devices
    crosses = group_of[reader] != group_of[source]
    allowed = np.ones((count, a.devices), dtype=bool)
    # A weight may leave only if its readers can have it streamed wherever they are.
    everywhere = np.repeat(fits.min(axis=1), a.devices).reshape(fits.shape)
    np.logical_and.at(allowed, group_of[source[crosses]], everywhere[reader[crosses]])
    # What is streamed now would be held for long on a device without a room, but for its home.
    weight_device, reader_device = device[source], device[reader]
    streamed = np.flatnonzero((weight_device != reader_device) & (staging[reader_device] >= 0))
    fits[reader[streamed]] &= staging >= 0
    streamed = streamed[staging[weight_device[streamed]] < 0]
    fits[reader[streamed], weight_device[streamed]] = True
    np.logical_and.at(allowed, group_of[reader[crosses]], fits[reader[crosses]])
    return allowed
