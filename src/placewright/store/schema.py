"""The schema of the store: numbered migrations, forward only, for SQLite and PostgreSQL alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.errors import StoreError

if TYPE_CHECKING:
    from placewright.store.database import Database, Transaction

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE placewright_plans (
            key TEXT PRIMARY KEY,
            kind TEXT NOT NULL,
            name TEXT NOT NULL,
            cluster TEXT NOT NULL,
            objective TEXT NOT NULL,
            overflow BIGINT NOT NULL,
            seconds DOUBLE PRECISION NOT NULL,
            bound DOUBLE PRECISION NOT NULL,
            method TEXT NOT NULL,
            digest TEXT NOT NULL,
            version TEXT NOT NULL,
            created_at DOUBLE PRECISION NOT NULL,
            used_at DOUBLE PRECISION NOT NULL,
            data TEXT NOT NULL
        )""",
        """CREATE TABLE placewright_measurements (
            id TEXT PRIMARY KEY,
            name TEXT NOT NULL,
            machine TEXT NOT NULL,
            seconds DOUBLE PRECISION NOT NULL,
            spread DOUBLE PRECISION NOT NULL,
            digest TEXT NOT NULL,
            version TEXT NOT NULL,
            created_at DOUBLE PRECISION NOT NULL,
            data TEXT NOT NULL
        )""",
        "CREATE INDEX placewright_measured_plans ON placewright_measurements (digest)",
        """CREATE TABLE placewright_profiles (
            key TEXT PRIMARY KEY,
            version TEXT NOT NULL,
            created_at DOUBLE PRECISION NOT NULL,
            data TEXT NOT NULL
        )""",
        """CREATE TABLE placewright_timings (
            machine TEXT NOT NULL,
            op TEXT NOT NULL,
            created_at DOUBLE PRECISION NOT NULL,
            data TEXT NOT NULL,
            PRIMARY KEY (machine, op)
        )""",
    ),
)
"""The statements of each version. One that was released is never changed: add another."""
_VERSIONS = "placewright_schema"


def migrate(database: Database) -> None:
    """Bring a database to the newest version; several processes may do so at once.

    Raises:
        StoreError: It is of a newer version than this release knows.
    """
    if database.run(lambda transaction: _version(database, transaction)) < len(MIGRATIONS):
        database.run(lambda transaction: _migrate(database, transaction), exclusive=True)


def _migrate(database: Database, transaction: Transaction) -> None:
    version = _version(database, transaction)  # now no other process changes it
    if not database.has_table(transaction, _VERSIONS):
        transaction.run(f"CREATE TABLE {_VERSIONS} (version INTEGER NOT NULL)")
        transaction.run(f"INSERT INTO {_VERSIONS} (version) VALUES (?)", 0)
    for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
        for statement in statements:
            transaction.run(statement)
        transaction.run(f"UPDATE {_VERSIONS} SET version = ?", number)


def _version(database: Database, transaction: Transaction) -> int:
    """The version of a database; 0 of an empty one."""
    if not database.has_table(transaction, _VERSIONS):
        return 0
    rows = transaction.rows(f"SELECT version FROM {_VERSIONS}")
    version = rows[0][0] if len(rows) == 1 else None
    if not isinstance(version, int) or version < 0:
        raise StoreError(f"the store {database.name} has no version: move it away")
    if version > len(MIGRATIONS):
        raise StoreError(
            f"the store {database.name} is of version {version}, made by a newer release; this one "
            f"knows {len(MIGRATIONS)}: update placewright, or name another store with "
            "PLACEWRIGHT_STORE"
        )
    return version
