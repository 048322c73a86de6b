"""The plan store: plans that `place` made before, in one SQLite file of the user's cache.

A plan is found by a key of everything that it depends on, so that it is never out of date; it is
plain JSON. Several processes may use the file at once. A file that is damaged, locked or read-only
is a warning and no store: planning goes on without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import sqlite3
import time
from typing import TYPE_CHECKING, Any

from placewright.cache import cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUSY_SECONDS = 5.0
"""How long to wait for another process that writes."""
MAX_PLANS = 256
"""Plans that are stored; those that were not used for longest go first."""
MAX_BYTES = 64 << 20
"""Bytes of a plan that is read or stored: a file may be damaged."""

_TABLE = (
    "CREATE TABLE IF NOT EXISTS plans "
    "(key TEXT PRIMARY KEY, data TEXT NOT NULL, used REAL NOT NULL)"
)

logger = logging.getLogger("placewright")


def store_key(facts: dict[str, Any]) -> str:
    """The key of a plan, from everything that it depends on, as plain data."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class PlanStore:
    """Plans by key.

    Args:
        path: Its file; None: `plans.sqlite` in the user's cache folder.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = cache_folder("plans") / "plans.sqlite" if path is None else path

    def get(self, key: str) -> dict[str, Any] | None:
        """The plan of a key; None if there is none, or the file cannot be read."""
        try:
            if not self.path.is_file():
                return None
            with self._connection() as connection:
                row = connection.execute(
                    "SELECT data FROM plans WHERE key = ? AND length(data) <= ?", (key, MAX_BYTES)
                ).fetchone()
                if row is None:
                    return None
                data = json.loads(row[0])
            with contextlib.suppress(sqlite3.Error), self._connection() as connection:
                connection.execute("UPDATE plans SET used = ? WHERE key = ?", (time.time(), key))
        except (sqlite3.Error, OSError, ValueError, RecursionError) as error:
            self._warn("read", error)
            return None
        return data if isinstance(data, dict) else None

    def put(self, key: str, data: dict[str, Any]) -> bool:
        """Keep a plan; whether that worked."""
        text = json.dumps(data, separators=(",", ":"))
        if len(text) > MAX_BYTES:
            return False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._connection() as connection:
                connection.execute(_TABLE)
                connection.execute(
                    "INSERT OR REPLACE INTO plans VALUES (?, ?, ?)", (key, text, time.time())
                )
                connection.execute(
                    "DELETE FROM plans WHERE key NOT IN "
                    "(SELECT key FROM plans ORDER BY used DESC LIMIT ?)",
                    (MAX_PLANS,),
                )
        except (sqlite3.Error, OSError) as error:
            self._warn("written", error)
            return False
        return True

    def remove(self, key: str) -> None:
        """Forget a plan."""
        with contextlib.suppress(sqlite3.Error, OSError), self._connection() as connection:
            connection.execute("DELETE FROM plans WHERE key = ?", (key,))

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection that ends with the block; all of it is one transaction."""
        connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS)
        try:
            with contextlib.suppress(sqlite3.OperationalError):  # a file system without it
                connection.execute("PRAGMA journal_mode = WAL")
            with connection:
                yield connection
        finally:
            connection.close()

    def _warn(self, what: str, error: Exception) -> None:
        logger.warning(
            "plans are not stored: %s cannot be %s (%s); remove it if it is damaged",
            self.path,
            what,
            error,
        )
