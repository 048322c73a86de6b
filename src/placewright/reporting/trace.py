"""Chrome traces of a timeline, which ui.perfetto.dev opens.

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
from placewright.units import UNLIMITED

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from placewright.problem import Problem
    from placewright.timeline import Timeline

Event = dict[str, Any]

DEVICES, CHANNELS = 1, 2  # the two processes, in Perfetto's words


def chrome_trace(problem: Problem, timeline: Timeline) -> Event:
    """One step of a plan in the Chrome trace-event format, ready for JSON."""
    return _TraceBuilder(problem, timeline).data()


def save_trace(problem: Problem, timeline: Timeline, path: str | os.PathLike[str]) -> None:
    """Write one step of a plan as a Chrome trace; `.gz` at the end compresses it.

    Raises:
        FileError: It cannot be written.
    """
    try:
        write_data(chrome_trace(problem, timeline), Path(path))
    except FileError as error:
        raise FileError(f"{path}: {error}") from None


class _TraceBuilder:
    """Turns a timeline into events, in whole nanoseconds."""

    def __init__(self, problem: Problem, timeline: Timeline) -> None:
        self.problem, self.timeline = problem, timeline
        self.start, self.end = _nanoseconds(timeline.start), _nanoseconds(timeline.end)
        self.device = timeline.plan.placement.tolist()
        transfers = timeline.transfers
        self.send_start, self.send_end = _nanoseconds(transfers.start), _nanoseconds(transfers.end)
        routes = transfers.source, transfers.target, transfers.channel
        self.transfers: list[tuple[int, int, int, int, int]] = list(
            zip(
                *(column.tolist() for column in (transfers.tensor, *routes, transfers.reader)),
                strict=True,
            )
        )

    def data(self) -> Event:
        # A slice must stand before the arrows that end at its first instant: the sort is stable.
        events = [*self._ops(), *self._sends(), *self._memory(), *self._flows()]
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
            yield _metadata_event(process, 0, "process_name", name=name)
            yield _metadata_event(process, 0, "process_sort_index", sort_index=process)
        used_channels = {channel for _, _, _, channel, _ in self.transfers}
        tracks = [(DEVICES, index, device.name) for index, device in enumerate(cluster.devices)]
        tracks += [
            (CHANNELS, index, name)
            for index, name in enumerate(cluster.channels)
            if index in used_channels
        ]
        for process, index, name in tracks:
            yield _metadata_event(process, index + 1, "thread_name", name=name)
            yield _metadata_event(process, index + 1, "thread_sort_index", sort_index=index + 1)

    def _ops(self) -> Iterator[Event]:
        seconds = (self.timeline.end - self.timeline.start).tolist()
        for members in self._groups():
            first_op, op = members[0], self.problem.graph.ops[members[0]]
            args: Event = {"kind": op.kind, "module": op.module, "phase": op.phase}
            args["flops"] = sum(self.problem.graph.ops[member].flops for member in members)
            args["seconds"] = seconds[first_op]
            name = op.name
            if len(members) > 1:
                name = f"{name} and {len(members) - 1} more"
                args["fused"] = [self.problem.graph.ops[member].name for member in members]
            track = DEVICES, self.device[first_op] + 1
            yield _slice_event(name, op.kind, track, self.start[first_op], self.end[first_op], args)

    def _groups(self) -> list[list[int]]:
        """The ops that take a turn, those fused into one together."""
        fusion = self.timeline.plan.fusion
        scheduled_ops = np.flatnonzero(self.problem.arrays.scheduled).tolist()
        if fusion is None:
            return [[op] for op in scheduled_ops]
        groups: dict[tuple[int, int], list[int]] = {}
        for op in scheduled_ops:
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
            yield _slice_event(name, kind, track, self.send_start[row], self.send_end[row], args)

    def _memory(self) -> Iterator[Event]:
        devices, memory = self.problem.cluster.devices, self.timeline.memory
        capacity, times = self.timeline.capacity.tolist(), _nanoseconds(memory.time)
        rows = list(zip(memory.device.tolist(), times, memory.used.tolist(), strict=True))
        final_use = {device: used for device, _, used in rows}
        step_end = _nanoseconds(np.array([self.timeline.step_time]))[0]
        for device, time, used in [
            *rows,
            *((device_index, step_end, used) for device_index, used in final_use.items()),
        ]:
            args = {"used": used}
            if capacity[device] < UNLIMITED:
                args["limit"] = capacity[device]
            name = f"{devices[device].name} memory (bytes)"
            yield {"ph": "C", "name": name, "pid": DEVICES, "ts": _microseconds(time), "args": args}

    def _flows(self) -> Iterator[Event]:
        """From producer to transfer and from transfer to readers; only slices can have arrows."""
        a, number = self.problem.arrays, 0
        last_part = {
            (tensor, target, reader): row
            for row, (tensor, _, target, _, reader) in enumerate(self.transfers)
        }
        for row, (tensor, source, target, channel, reader) in enumerate(self.transfers):
            send = (CHANNELS, channel + 1), self.send_start[row], self.send_end[row]
            producer = int(a.producer[tensor])
            flows = []
            if a.scheduled[producer]:
                producer_slice = (DEVICES, source + 1), self.start[producer], self.end[producer]
                flows.append((producer_slice, send))
            if last_part[tensor, target, reader] == row:
                readers = [reader] if reader >= 0 else self._readers(tensor, target)
                for op in readers:
                    reader_slice = (DEVICES, target + 1), self.start[op], self.end[op]
                    flows.append((send, reader_slice))
            for (track, start, end), (target_track, target_start, target_end) in flows:
                if start < end and target_start < target_end:
                    number += 1
                    yield _flow_event("s", number, track, max((start + end) // 2, end - 10))
                    yield _flow_event("f", number, target_track, target_start)

    def _readers(self, tensor: int, target: int) -> list[int]:
        a = self.problem.arrays
        readers = a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]].tolist()
        return [op for op in readers if self.device[op] == target and a.scheduled[op]]


def _slice_event(
    name: str, kind: str, track: tuple[int, int], start: int, end: int, args: Event
) -> Event:
    """A stretch of time on a track, or an instant where it takes none."""
    event: Event = {"name": name, "cat": kind, "pid": track[0], "tid": track[1]}
    event["ts"] = _microseconds(start)
    if end > start:
        return event | {"ph": "X", "dur": (end - start) / 1000, "args": args}
    return event | {"ph": "i", "s": "t", "args": args}


def _flow_event(phase: str, number: int, track: tuple[int, int], time: int) -> Event:
    event: Event = {"ph": phase, "name": "tensor", "cat": "flow", "id": number}
    if phase == "f":
        event["bp"] = "e"  # it ends in the slice around it, not in the next one
    return event | {"pid": track[0], "tid": track[1], "ts": _microseconds(time)}


def _metadata_event(process: int, track: int, what: str, **args: str | int) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": track, "args": args}


def _nanoseconds(seconds: np.ndarray[Any, np.dtype[np.float64]]) -> list[int]:
    return [int(time) for time in np.rint(seconds * 1e9).tolist()]


def _microseconds(nanoseconds: int) -> float:
    """So that cutting 1000 times it, as Perfetto does, gives the same nanoseconds again."""
    microseconds = nanoseconds / 1000
    return (
        microseconds
        if microseconds * 1000 >= nanoseconds
        else math.nextafter(microseconds, math.inf)
    )
