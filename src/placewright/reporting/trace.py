"""A problem and a timeline in, a Chrome trace that ui.perfetto.dev opens out.

One track for each device and for each channel that is used, a memory counter for each device, and
arrows from the op that made a tensor over its transfer to the ops that read it there. Times are
microseconds, cut to whole nanoseconds, which is what Perfetto keeps.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import FileError
from placewright.files.storage import write_data

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from placewright.problem import Problem
    from placewright.timeline import Timeline

Event = dict[str, Any]

DEVICES, CHANNELS = 1, 2  # the two processes, in Perfetto's words
UNLIMITED = 2**60  # bytes: a device with more has no limit that is worth a line


def chrome_trace(problem: Problem, timeline: Timeline) -> Event:
    """One step of a plan in the Chrome trace-event format, ready for JSON."""
    return _Trace(problem, timeline).data()


def save_trace(problem: Problem, timeline: Timeline, path: str | os.PathLike[str]) -> None:
    """Write one step of a plan as a Chrome trace; `.gz` at the end compresses it.

    Raises:
        FileError: It cannot be written.
    """
    try:
        write_data(chrome_trace(problem, timeline), Path(path))
    except FileError as error:
        raise FileError(f"{path}: {error}") from None


class _Trace:
    """A timeline on its way into events; whole nanoseconds inside."""

    def __init__(self, problem: Problem, timeline: Timeline) -> None:
        self.problem, self.timeline = problem, timeline
        self.start, self.end = _nanoseconds(timeline.start), _nanoseconds(timeline.end)
        self.device = timeline.plan.device.tolist()
        transfers = timeline.transfers
        self.sent, self.arrived = _nanoseconds(transfers.start), _nanoseconds(transfers.end)
        ends = transfers.source, transfers.target, transfers.channel
        self.transfers: list[tuple[int, int, int, int, int]] = list(
            zip(*(row.tolist() for row in (transfers.tensor, *ends, transfers.reader)), strict=True)
        )

    def data(self) -> Event:
        # A slice must stand before the arrows that end at its first instant: the sort is stable.
        events = [*self._ops(), *self._sends(), *self._memory(), *self._arrows()]
        events.sort(key=lambda event: float(event["ts"]))
        return {
            "traceEvents": [*self._names(), *events],
            "displayTimeUnit": "ms",
            "otherData": {
                "graph": self.problem.graph.name,
                "cluster": self.problem.cluster.name,
                "step_time": self.timeline.step_time,
                "period": self.timeline.period,
            },
        }

    def _names(self) -> Iterator[Event]:
        cluster = self.problem.cluster
        for process, name in ((DEVICES, "devices"), (CHANNELS, "channels")):
            yield _meta(process, 0, "process_name", name=name)
            yield _meta(process, 0, "process_sort_index", sort_index=process)
        used = {channel for _, _, _, channel, _ in self.transfers}
        tracks = [(DEVICES, at, device.name) for at, device in enumerate(cluster.devices)]
        tracks += [(CHANNELS, at, name) for at, name in enumerate(cluster.channels) if at in used]
        for process, at, name in tracks:
            yield _meta(process, at + 1, "thread_name", name=name)
            yield _meta(process, at + 1, "thread_sort_index", sort_index=at + 1)

    def _ops(self) -> Iterator[Event]:
        seconds = (self.timeline.end - self.timeline.start).tolist()
        for members in self._groups():
            at, op = members[0], self.problem.graph.ops[members[0]]
            args: Event = {"kind": op.kind, "module": op.module, "phase": op.phase}
            args["flops"] = sum(self.problem.graph.ops[member].flops for member in members)
            args["seconds"] = seconds[at]
            name = op.name
            if len(members) > 1:
                name = f"{name} and {len(members) - 1} more"
                args["fused"] = [self.problem.graph.ops[member].name for member in members]
            track = DEVICES, self.device[at] + 1
            yield _slice(name, op.kind, track, self.start[at], self.end[at], args)

    def _groups(self) -> list[list[int]]:
        """The ops that take a turn, those fused into one together."""
        fusion = self.timeline.plan.fusion
        turns = np.flatnonzero(self.problem.arrays.turn).tolist()
        if fusion is None:
            return [[op] for op in turns]
        groups: dict[tuple[int, int], list[int]] = {}
        for op in turns:
            group = int(fusion[op])
            groups.setdefault((group, -1) if group >= 0 else (-1, op), []).append(op)
        return list(groups.values())

    def _sends(self) -> Iterator[Event]:
        graph, devices = self.problem.graph, self.problem.cluster.devices
        seconds = (self.timeline.transfers.end - self.timeline.transfers.start).tolist()
        for row, (tensor, source, target, channel, reader) in enumerate(self.transfers):
            a = self.problem.arrays
            producer = int(a.producer[tensor])
            output = tensor - int(a.first_tensor[producer])
            args: Event = {"op": graph.ops[producer].name, "output": output}
            args |= {"bytes": int(a.sizes[tensor]), "seconds": seconds[row]}
            args |= {"from": devices[source].name, "to": devices[target].name}
            args["streamed"] = reader >= 0
            if reader >= 0:
                args["reader"] = graph.ops[reader].name
            name = f"{graph.ops[producer].name} → {devices[target].name}"
            kind = "streamed weight" if reader >= 0 else "tensor"
            track = CHANNELS, channel + 1
            yield _slice(name, kind, track, self.sent[row], self.arrived[row], args)

    def _memory(self) -> Iterator[Event]:
        devices, memory = self.problem.cluster.devices, self.timeline.memory
        capacity, times = self.timeline.capacity.tolist(), _nanoseconds(memory.time)
        rows = list(zip(memory.device.tolist(), times, memory.used.tolist(), strict=True))
        last = {device: used for device, _, used in rows}
        stop = _nanoseconds(np.array([self.timeline.step_time]))[0]
        for device, time, used in [*rows, *((at, stop, used) for at, used in last.items())]:
            args = {"used": used}
            if capacity[device] < UNLIMITED:
                args["limit"] = capacity[device]
            name = f"{devices[device].name} memory (bytes)"
            yield {"ph": "C", "name": name, "pid": DEVICES, "ts": _microseconds(time), "args": args}

    def _arrows(self) -> Iterator[Event]:
        """From producer to transfer and from transfer to readers; only slices can have arrows."""
        a, number = self.problem.arrays, 0
        last_part = {
            (tensor, target, reader): row
            for row, (tensor, _, target, _, reader) in enumerate(self.transfers)
        }
        for row, (tensor, source, target, channel, reader) in enumerate(self.transfers):
            send = (CHANNELS, channel + 1), self.sent[row], self.arrived[row]
            producer = int(a.producer[tensor])
            ends = []
            if a.turn[producer]:
                made = (DEVICES, source + 1), self.start[producer], self.end[producer]
                ends.append((made, send))
            if last_part[tensor, target, reader] == row:
                readers = [reader] if reader >= 0 else self._readers(tensor, target)
                for op in readers:
                    read = (DEVICES, target + 1), self.start[op], self.end[op]
                    ends.append((send, read))
            for (track, start, end), (other, begin, finish) in ends:
                if start < end and begin < finish:
                    number += 1
                    yield _arrow("s", number, track, max((start + end) // 2, end - 10))
                    yield _arrow("f", number, other, begin)

    def _readers(self, tensor: int, target: int) -> list[int]:
        a = self.problem.arrays
        readers = a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]].tolist()
        return [op for op in readers if self.device[op] == target and a.turn[op]]


def _slice(
    name: str, kind: str, track: tuple[int, int], start: int, end: int, args: Event
) -> Event:
    """A stretch of time on a track, or an instant where it takes none."""
    event: Event = {"name": name, "cat": kind, "pid": track[0], "tid": track[1]}
    event["ts"] = _microseconds(start)
    if end > start:
        return event | {"ph": "X", "dur": (end - start) / 1000, "args": args}
    return event | {"ph": "i", "s": "t", "args": args}


def _arrow(end: str, number: int, track: tuple[int, int], time: int) -> Event:
    event: Event = {"ph": end, "name": "tensor", "cat": "flow", "id": number}
    if end == "f":
        event["bp"] = "e"  # it ends in the slice around it, not in the next one
    return event | {"pid": track[0], "tid": track[1], "ts": _microseconds(time)}


def _meta(process: int, track: int, what: str, **args: str | int) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": track, "args": args}


def _nanoseconds(seconds: np.ndarray[Any, np.dtype[np.float64]]) -> list[int]:
    return [int(time) for time in np.rint(seconds * 1e9).tolist()]


def _microseconds(nanoseconds: int) -> float:
    """So that cutting 1000 times it, as Perfetto does, gives the same nanoseconds again."""
    shown = nanoseconds / 1000
    return shown if shown * 1000 >= nanoseconds else math.nextafter(shown, math.inf)
