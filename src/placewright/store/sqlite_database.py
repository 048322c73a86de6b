"""SQLite from the standard library: one file, safe with many processes on one machine.

The file has a write-ahead log, so that readers do not wait for a writer, and a process that is
killed loses no more than the transaction it was in. The log needs memory that processes share,
which a network file system does not have: a file there is refused.
"""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, TypeVar

from placewright.errors import StoreError
from placewright.store.database import Transaction
from placewright.store.network_mounts import network_mount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BUSY_SECONDS = 5.0
"""How long to wait for another process that writes."""

T = TypeVar("T")


class SqliteDatabase:
    """A database in a file.

    Args:
        path: The file; it and its folder are made when something is written.
    """

    is_shared = False

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return str(self.path)

    def is_empty(self) -> bool:
        """Whether there is no file yet."""
        try:
            return not self.path.exists()
        except OSError as error:
            raise self._failure(error) from None

    def has_table(self, transaction: Transaction, table: str) -> bool:
        """Whether it has a table of this name."""
        query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return bool(transaction.rows(query, table))

    def run(
        self,
        work: Callable[[Transaction], T],
        *,
        write: bool = False,
        exclusive: bool = False,
    ) -> T:
        """Do work in a transaction; a second writer waits for the first."""
        try:
            with self._connection() as connection:
                connection.execute("BEGIN IMMEDIATE" if write or exclusive else "BEGIN")
                result = work(Transaction(connection.execute))  # without COMMIT it is undone
                connection.execute("COMMIT")
                return result
        except (sqlite3.Error, OSError) as error:
            raise self._failure(error) from None

    def compact(self) -> None:
        """Shrink the file; a busy one stays as it is."""
        with contextlib.suppress(sqlite3.Error, OSError), self._connection() as connection:
            connection.execute("VACUUM")

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        folder = self.path.parent
        found = network_mount(folder)
        if found is not None:
            raise StoreError(
                f"the store {self.path} is on a network file system ({found}), where SQLite is not "
                "safe: name a file on a local disk or a PostgreSQL server with PLACEWRIGHT_STORE"
            )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            with contextlib.suppress(sqlite3.OperationalError):  # another process just sets it
                connection.execute("PRAGMA journal_mode = WAL")
            yield connection
        finally:
            connection.close()

    def _failure(self, error: Exception) -> StoreError:
        hint = ""
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(
            error, sqlite3.OperationalError
        ):
            hint = "; if it is damaged, move it away"
        return StoreError(f"the store {self.path} cannot be used: {error}{hint}")
