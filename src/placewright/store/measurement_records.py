"""Measured plans in the store: which plan took how long, on which machine, and when."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from placewright.errors import StoreError
from placewright.store.plain_data import clean_name, encode

if TYPE_CHECKING:
    from placewright.store.database import Transaction

MAX_LISTED = 1_000
_COLUMNS = "id, name, machine, seconds, spread, digest, version, created_at"


@dataclass(frozen=True, eq=False)
class MeasurementRecord:
    """One measurement of a plan.

    Args:
        name: The model, in words.
        machine: The key of the machine that it ran on.
        seconds: The measured step time.
        spread: The range of the timed steps, as a share of their median.
        digest: That of the plan.
        version: The release that ran it.
        created_at: Seconds since 1970.
        data: The plan, as in a plan file; empty in a list.
        identity: Unique, so that a measurement that is sent twice is stored once.
    """

    name: str
    machine: str
    seconds: float
    spread: float
    digest: str
    version: str
    created_at: float
    data: dict[str, Any] = field(default_factory=dict)
    identity: str = field(default_factory=lambda: uuid.uuid4().hex)


def put(transaction: Transaction, record: MeasurementRecord) -> None:
    """Add a measurement."""
    transaction.run(
        f"INSERT INTO placewright_measurements ({_COLUMNS}, data) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
        *(record.identity, clean_name(record.name), clean_name(record.machine), record.seconds),
        *(record.spread, record.digest, record.version, record.created_at, encode(record.data)),
    )


def list_of_plan(transaction: Transaction, digest: str) -> list[MeasurementRecord]:
    """The measurements of a plan without their data, the last one first."""
    rows = transaction.rows(
        f"SELECT {_COLUMNS} FROM placewright_measurements WHERE digest = ? "
        "ORDER BY created_at DESC, id LIMIT ?",
        *(digest, MAX_LISTED),
    )
    return [_record(row) for row in rows]


def prune(transaction: Transaction, before: float | None, keep: int | None) -> int:
    """Remove measurements from before a time, and all but a number of the last ones."""
    removed = 0
    if before is not None:
        removed += transaction.run(
            "DELETE FROM placewright_measurements WHERE created_at < ?", before
        )
    if keep is not None:
        removed += transaction.run(
            "DELETE FROM placewright_measurements WHERE id NOT IN "
            "(SELECT id FROM placewright_measurements ORDER BY created_at DESC, id LIMIT ?)",
            keep,
        )
    return removed


def _record(row: tuple[Any, ...]) -> MeasurementRecord:
    texts, numbers = (*row[:3], *row[5:7]), (*row[3:5], row[7])
    is_valid = all(isinstance(text, str) for text in texts) and all(
        isinstance(number, int | float) for number in numbers
    )
    if not is_valid:
        raise StoreError("a stored measurement is damaged: expected texts and numbers")
    identity, *values = row
    return replace(MeasurementRecord(*values), identity=identity)
