"""Stored plans as tables and as JSON, and as files."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from placewright.cli.render import tables, text
from placewright.cli.render.json_output import save_result
from placewright.errors import FileError
from placewright.units import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from placewright.store.measurement_records import MeasurementRecord
    from placewright.store.plan_records import PlanRecord

Data = dict[str, Any]
KEY_LENGTH = 8
"""Characters of a key that are shown, unless two plans share them."""


def record_data(record: PlanRecord) -> Data:
    """A plan in a list, in seconds and bytes."""
    return {
        **{key: value for key, value in vars(record).items() if key not in ("data", "digest")},
        "fits": record.fits,
    }


def plan_data(record: PlanRecord, measurements: Sequence[MeasurementRecord]) -> Data:
    """One plan with all that is known of it."""
    names = ["machine", "seconds", "spread", "version", "created_at"]
    return {
        **record_data(record),
        "measured": [{name: getattr(each, name) for name in names} for each in measurements],
        "data": record.data,
    }


def removed_line(removed: int, store: str) -> str:
    """What was pruned, in a line."""
    plans = text.format_count(removed, "stored plan or measurement")
    plans = plans.replace("plan or measurements", "plans and measurements")
    return f"{plans} removed from {store}"


def print_records(store: str, records: Sequence[PlanRecord]) -> None:
    """The list of plans, those that were used last first."""
    if not records:
        tables.print_lines([f"no plans are stored in {store}"])
        return
    length = _shown_length([record.key for record in records])
    tables.print_table(
        ("key", "model", "cluster", "objective", "time", "bound", "fits", "date"),
        [
            (
                record.key[:length],
                record.name,
                record.cluster,
                _objective(record),
                format_seconds(record.seconds) if record.seconds else "–",
                format_seconds(record.bound) if record.bound > 0 else "–",
                "yes" if record.fits else "no",
                record.day,
            )
            for record in records
        ],
        text_columns=4,
        blank_line=False,
    )
    tables.print_lines(["", f"{text.format_count(len(records), 'plan')} in {store}"])


def print_plan(record: PlanRecord, measurements: Sequence[MeasurementRecord]) -> None:
    """One plan: its figures, what was measured, and how it uses each device."""
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.created_at))
    lines = [
        f"{record.name} on {record.cluster}",
        f"key: {record.key}",
        f"made {made} by {record.method}, placewright {record.version}",
    ]
    if record.seconds:
        lines.append(f"{_objective(record)}: {format_seconds(record.seconds)}")
    if record.bound > 0:
        gap = format_percent(record.seconds / record.bound - 1)
        lines.append(f"lower bound {format_seconds(record.bound)}: this plan is {gap} above")
    if not record.fits:
        lines.append(f"does not fit: out of memory by {format_bytes(record.overflow)}")
    for each in measurements:
        day = time.strftime("%Y-%m-%d", time.localtime(each.created_at))
        spread = format_percent(each.spread, decimal_below=0)
        seconds = format_seconds(each.seconds)
        lines.append(f"measured {day}: {seconds}, spread {spread}, on machine {each.machine}")
    tables.print_lines(lines)
    columns, rows = _device_table(record)
    if rows:
        tables.print_table(columns, rows)


def save_plan(record: PlanRecord, path: Path | None) -> list[str]:
    """Write a stored plan to a file, if one is named; a line that says so.

    Raises:
        FileError: It cannot be written, or is no plan of a file.
    """
    if path is None:
        return []
    if record.kind == "model":
        raise FileError(
            f"{path}: what place ran a model under is no plan of a file: expected the key of a "
            "problem or workload"
        )
    return save_result(_read(record), path)


def _read(record: PlanRecord) -> Any:
    from placewright import files

    return files.from_data(record.data)


def _device_table(record: PlanRecord) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    rows: list[tuple[str, ...]] = []
    if record.kind == "model":
        return (), rows
    result = _read(record)
    if record.kind == "problem":
        rows = [
            (use.name, f"{use.ops:,}", format_seconds(use.busy), format_bytes(use.peak))
            for use in result.devices
        ]
        return ("device", "ops", "busy", "peak"), rows
    rows = [
        (name, f"{count:g}", format_seconds(call.objective_value), "yes" if call.fits else "no")
        for name, count, call in zip(result.plan.calls, result.counts, result.calls, strict=True)
    ]
    return ("call", "count", record.objective, "fits"), rows


def _objective(record: PlanRecord) -> str:
    return record.objective if record.kind == "problem" else f"sum of {record.objective}s"


def _shown_length(keys: Sequence[str]) -> int:
    """The least number of characters, from `KEY_LENGTH` on, that tell keys apart."""
    longest = max(map(len, keys))
    return next(
        (
            length
            for length in range(KEY_LENGTH, longest)
            if len({key[:length] for key in keys}) == len(keys)
        ),
        longest,
    )
