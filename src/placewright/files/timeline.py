"""Timelines in files: start, end and device of ops and transfers, as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.errors import ConfigError
from placewright.files import validation
from placewright.files.header import body, make_header
from placewright.files.plan import plan_data, read_plan
from placewright.timeline import MemoryTrace, Timeline, Transfers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from placewright.files.validation import Data


def timeline_data(timeline: Timeline) -> Data:
    """A timeline as plain data."""
    return make_header("timeline") | {
        "step_time": float(timeline.step_time),
        "period": float(timeline.period),
        "start": timeline.start.tolist(),
        "end": timeline.end.tolist(),
        "transfers": {key: getattr(timeline.transfers, key).tolist() for key in _TRANSFERS},
        "memory": {key: getattr(timeline.memory, key).tolist() for key in _MEMORY},
        "peak": timeline.peak.tolist(),
        "capacity": timeline.capacity.tolist(),
        "plan": plan_data(timeline.plan),
    }


def read_timeline(data: object, where: str = "") -> Timeline:
    """The timeline that plain data describe."""
    values = validation.fields(body(data, "timeline", where), _TIMELINE, where, required=_TIMELINE)
    timeline = Timeline(**values)
    ops, devices = len(timeline.plan), len(timeline.plan.device_names)
    _check_lengths(values, ("start", "end"), ops, "op")
    _check_lengths(values, ("peak", "capacity"), devices, "device")
    for array in (timeline.transfers.source, timeline.transfers.target, timeline.memory.device):
        for device in array[(array < 0) | (array >= devices)]:
            raise ConfigError(f"the timeline names device {device}: its plan has {devices} devices")
    return timeline


def _read_transfers(data: object, where: str) -> Transfers:
    return Transfers(**_read_columns(data, _TRANSFERS, where))


def _read_memory(data: object, where: str) -> MemoryTrace:
    return MemoryTrace(**_read_columns(data, _MEMORY, where))


def _read_columns(data: object, columns: Mapping[str, validation.Check], where: str) -> Data:
    values = validation.fields(data, columns, where, required=columns)
    _check_lengths(values, columns, len(values[next(iter(columns))]), "row")
    return values


def _check_lengths(values: Data, keys: Iterable[str], length: int, subject: str) -> None:
    for key in keys:
        if len(values[key]) != length:
            actual = f"the timeline's {key} has {len(values[key])} entries"
            raise ConfigError(f"{actual}: expected {length}, one per {subject}")


_TRANSFERS = {
    "tensor": validation.int32s,
    "source": validation.int32s,
    "target": validation.int32s,
    "channel": validation.int32s,
    "reader": validation.int32s,
    "start": validation.floats,
    "end": validation.floats,
}
_MEMORY = {"device": validation.int32s, "time": validation.floats, "used": validation.int64s}
_TIMELINE = {
    "step_time": validation.number,
    "period": validation.number,
    "start": validation.floats,
    "end": validation.floats,
    "transfers": _read_transfers,
    "memory": _read_memory,
    "peak": validation.int64s,
    "capacity": validation.int64s,
    "plan": read_plan,
}
