"""Where the store is: the user's cache, a file, a PostgreSQL server, or nowhere."""

from __future__ import annotations

import os
from pathlib import Path

from placewright.cache import cache_folder
from placewright.errors import ConfigError
from placewright.store.sqlite_database import SqliteDatabase
from placewright.store.store import Store

VARIABLE = "PLACEWRIGHT_STORE"
NONE = "none"
FILE_NAME = "store.sqlite"


def open_store(location: str | os.PathLike[str] | None = None) -> Store:
    """The store at a location; nothing is read or made yet.

    Args:
        location: A file or folder, `postgresql://user@host/database`, or `none`. By default that of
            the variable `PLACEWRIGHT_STORE`, or a file in the user's cache folder.

    Raises:
        ConfigError: It is none of these.
        MissingDependency: It is a PostgreSQL server, and psycopg is not installed.
    """
    text = os.fspath(location) if location else os.environ.get(VARIABLE, "")
    if text == NONE:
        return Store(None)
    scheme, separator, _ = text.partition("://")
    if separator:
        if scheme not in ("postgresql", "postgres"):
            raise ConfigError(
                f"the store is at {scheme}://…: expected a file, postgresql://user@host/database, "
                "or none"
            )
        from placewright.store.postgresql import PostgresDatabase

        return Store(PostgresDatabase(text))
    path = Path(text).expanduser() if text else cache_folder("store") / FILE_NAME
    return Store(SqliteDatabase(path / FILE_NAME if path.is_dir() else path))
