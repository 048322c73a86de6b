"""Profiles in the store: machines as they were measured, and times of single ops on them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from placewright.store.plain_data import MAX_CHARACTERS, decode, encode
from placewright.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placewright.store.database import Transaction

MAX_TIMINGS = 100_000
"""Ops of one machine that are read, those that were measured last."""
MAX_TIMING = 1_000
"""Characters of one timing."""


def put_profile(transaction: Transaction, key: str, data: dict[str, Any]) -> None:
    """Store a profile; the last one of a key stays."""
    transaction.run(
        "INSERT INTO placewright_profiles (key, version, created_at, data) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (key) DO UPDATE SET version = excluded.version, "
        "created_at = excluded.created_at, data = excluded.data",
        *(key, __version__, time.time(), encode(data)),
    )


def get_profile(transaction: Transaction, key: str) -> dict[str, Any] | None:
    """The profile of a key."""
    rows = transaction.rows(
        "SELECT data FROM placewright_profiles WHERE key = ? AND length(data) <= ?",
        *(key, MAX_CHARACTERS),
    )
    return decode(rows[0][0]) if rows else None


def put_timings(
    transaction: Transaction, machine: str, timings: Mapping[str, dict[str, Any]]
) -> None:
    """Store the times of ops, by op; the last one of an op stays."""
    for op in sorted(timings):  # in one order, so that two processes do not wait for each other
        transaction.run(
            "INSERT INTO placewright_timings (machine, op, created_at, data) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (machine, op) DO UPDATE SET created_at = excluded.created_at, "
            "data = excluded.data",
            *(machine, op, time.time(), encode(timings[op])),
        )


def get_timings(transaction: Transaction, machine: str) -> dict[str, dict[str, Any]]:
    """The times of all ops of a machine, by op."""
    rows = transaction.rows(
        "SELECT op, data FROM placewright_timings WHERE machine = ? AND length(data) <= ? "
        "ORDER BY created_at DESC LIMIT ?",
        *(machine, MAX_TIMING, MAX_TIMINGS),
    )
    return {str(op): decode(data) for op, data in rows}
