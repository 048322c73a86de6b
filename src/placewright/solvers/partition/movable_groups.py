"""Pieces: a placement in, what of it can move, and the bytes each piece holds at a peak, out."""

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
class Pieces:
    """What moves as one: the ops of a team that share a device and what they are allowed.

    In most placements a piece is a team; a weight that lives apart from its reader is one too.
    """

    problem: Problem
    of_op: Ints  # ops: the piece of each
    leader: Ints  # pieces: the op that leads its team
    start: Ints  # pieces: the device it is on at first
    allowed: Flags  # pieces × devices
    seconds: Seconds  # pieces × devices
    resident: Bytes  # pieces
    family: Ints  # tensors: the one whose memory each is

    @classmethod
    def of(
        cls,
        problem: Problem,
        device: NDArray[np.int32],
        staging: NDArray[np.int64] | None = None,
    ) -> Pieces:
        a = problem.arrays
        kind = np.unique(np.packbits(a.allowed, axis=1), axis=0, return_inverse=True)[1].ravel()
        key = (a.leader.astype(np.int64) * a.devices + device) * (int(kind.max()) + 1) + kind
        _, first, of_op = np.unique(key, return_index=True, return_inverse=True)
        of_op, count = of_op.ravel().astype(np.int64), len(first)
        own = np.where(a.turn[:, None], a.compute, 0.0)
        allowed = a.allowed[first]
        if staging is not None:
            allowed = allowed & _streamable(problem, device, of_op, count, staging)
        return cls(
            problem,
            of_op,
            a.leader[first].astype(np.int64),
            device[first].astype(np.int64),
            allowed,
            np.stack(
                [np.bincount(of_op, weights=column, minlength=count) for column in own.T], axis=1
            ),
            np.bincount(of_op, weights=a.resident, minlength=count).astype(np.int64),
            a.family,
        )

    def __len__(self) -> int:
        return len(self.leader)

    def held(self, timeline: Timeline) -> Seconds:
        """The bytes of each piece when its device is fullest.

        That is its resident bytes, and a share in each tensor that is there then because of it: it
        reads it later on, is just making it or still sending it, or it is an output of the graph.
        Several pieces that hold the same tensor share its bytes, which go once all of them go.
        """
        a, plan = self.problem.arrays, timeline.plan
        device = plan.device.astype(np.int64)
        full = _fullest(timeline)
        now = full[device]  # ops: when the op's device is fullest
        there = ~a.turn | (timeline.start <= now)
        running = a.turn & there & (timeline.end > now)
        moved = timeline.transfers
        sent = np.flatnonzero(moved.reader < 0)
        tensor, source, target = (
            column[sent].astype(np.int64) for column in (moved.tensor, moved.source, moved.target)
        )
        # Readers that have not ended, of what is there: made there, or sent before.
        reader = np.repeat(np.arange(a.ops), np.diff(a.first_input))
        read = a.inputs.astype(np.int64)
        local = device[a.producer[read]] == device[reader]
        arrival = np.full(len(a.sizes) * a.devices, np.inf)
        arrival[tensor * a.devices + target] = moved.start[sent]
        came = arrival[read * a.devices + device[reader]] <= now[reader]
        late = a.turn[reader] & (timeline.end[reader] > now[reader])
        late &= np.where(local, there[a.producer[read]], came)
        # Producers: what they make now, what leaves the graph, what is not sent yet.
        maker = a.producer.astype(np.int64)
        made = np.flatnonzero(running[maker])
        kept = np.flatnonzero(a.kept & there[maker])
        going = there[maker[tensor]] & (moved.end[sent] > full[source])
        held = np.concatenate([read[late], made, kept, tensor[going]])
        by = np.concatenate([reader[late], maker[made], maker[kept], maker[tensor[going]]])
        return self._shared(self.family[held], self.of_op[by], device[by], running, device)

    def _shared(
        self, tensor: Ints, piece: Ints, place: Ints, running: Flags, device: Ints
    ) -> Seconds:
        """Resident bytes, workspace, and each held tensor's bytes shared out over its holders."""
        a = self.problem.arrays
        resident = a.stored[a.producer[tensor]] & (device[a.producer[tensor]] == place)
        tensor, piece, place = tensor[~resident], piece[~resident], place[~resident]
        pair = np.unique(
            (tensor * a.devices + place) * len(self) + piece
        )  # a piece is at one place
        storage, piece = pair // len(self), pair % len(self)
        _, at, holders = np.unique(storage, return_inverse=True, return_counts=True)
        share = a.sizes[storage // a.devices] / holders[at]
        space = np.bincount(self.of_op, weights=a.workspace * running, minlength=len(self))
        shares = np.bincount(piece, weights=share, minlength=len(self))
        return np.asarray(self.resident + space + shares, dtype=np.float64)


def _fullest(timeline: Timeline) -> Seconds:
    """When each device first holds its peak."""
    memory, devices = timeline.memory, len(timeline.peak)
    full = np.zeros(devices)
    for device in range(devices):
        own = memory.device == device
        if own.any():
            full[device] = memory.time[own][memory.used[own].argmax()]
    return full


def _streamable(
    problem: Problem,
    device: NDArray[np.int32],
    of_op: Ints,
    count: int,
    staging: NDArray[np.int64],
) -> Flags:
    """Pieces × devices: where a piece may go without overfilling a staging room.

    We stay on the safe side: a room must hold all weights of an op that may come to be streamed
    there, wherever these weights are now.
    """
    a = problem.arrays
    reader = np.repeat(np.arange(a.ops), np.diff(a.first_input))
    source = a.producer[a.inputs]
    reads = a.weight[source] & a.turn[reader]
    reader, source, size = reader[reads], source[reads], a.sizes[a.inputs[reads]]
    need = np.bincount(reader, weights=size, minlength=a.ops)
    fits: Flags = np.asarray((need[:, None] <= staging) | (staging < 0))  # ops × devices
    apart = of_op[reader] != of_op[source]
    may = np.ones((count, a.devices), dtype=bool)
    # A weight may leave only if its readers can have it streamed wherever they are.
    everywhere = np.repeat(fits.min(axis=1), a.devices).reshape(fits.shape)
    np.logical_and.at(may, of_op[source[apart]], everywhere[reader[apart]])
    # What is streamed now would be held for long on a device without a room, but for its home.
    home, here = device[source], device[reader]
    now = np.flatnonzero((home != here) & (staging[here] >= 0))
    fits[reader[now]] &= staging >= 0
    now = now[staging[home[now]] < 0]
    fits[reader[now], home[now]] = True
    np.logical_and.at(may, of_op[reader[apart]], fits[reader[apart]])
    return may
