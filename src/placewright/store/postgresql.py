"""PostgreSQL by URL, with psycopg 3: a store that several machines share.

Each transaction has a connection of its own, so that a server may be restarted between two of them.
A connection that is refused or breaks is tried again a few times, each time after a longer pause;
whatever takes longer than `DEADLINE` is given up.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from placewright.errors import ConfigError, MissingDependency, StoreError
from placewright.store.database import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable

ATTEMPTS = 4
FIRST_PAUSE = 0.2
"""Seconds before the second attempt; each pause is twice the one before."""
CONNECT_SECONDS = 5
DEADLINE = 20.0
"""Seconds that one transaction may take with all its attempts."""
_MIGRATION_LOCK = 0x706C6163  # an advisory lock of ours
_SETTINGS = {
    "connect_timeout": CONNECT_SECONDS,
    "application_name": "placewright",
    "tcp_user_timeout": 10_000,
    "client_encoding": "UTF8",
}

T = TypeVar("T")


class PostgresDatabase:
    """A database of a PostgreSQL server.

    Args:
        url: Such as `postgresql://user@host/database`.

    Raises:
        MissingDependency: psycopg is not installed.
        ConfigError: It is not a URL of PostgreSQL.
    """

    is_shared = True

    def __init__(self, url: str) -> None:
        try:
            import psycopg
            from psycopg.conninfo import conninfo_to_dict
        except ImportError:
            raise MissingDependency("psycopg", "postgres") from None
        try:
            self._parameters: dict[str, Any] = {**_SETTINGS, **conninfo_to_dict(url)}
        except psycopg.ProgrammingError:  # whose text may have the password
            raise ConfigError(
                f"the store {_without_password(url)!r} is no address of PostgreSQL: expected such "
                "as postgresql://user@host:5432/database"
            ) from None
        self.name = _without_password(url)

    def is_empty(self) -> bool:
        """Not known without a connection."""
        return False

    def has_table(self, transaction: Transaction, table: str) -> bool:
        """Whether the schema that tables are made in has one of this name."""
        query = (
            "SELECT 1 FROM information_schema.tables "
            "WHERE table_schema = current_schema() AND table_name = ?"
        )
        return bool(transaction.rows(query, table))

    def run(
        self,
        work: Callable[[Transaction], T],
        *,
        write: bool = False,
        exclusive: bool = False,
    ) -> T:
        """Do work in a transaction, again if the connection breaks: it must bear that."""
        import psycopg

        started = time.monotonic()
        pause = FIRST_PAUSE
        for attempt in range(ATTEMPTS):
            left = DEADLINE - (time.monotonic() - started)
            try:
                return _within(left, lambda: self._run_once(work, write, exclusive))
            except psycopg.OperationalError as error:
                is_last = attempt == ATTEMPTS - 1 or left < pause
                if is_last or (error.sqlstate or "").startswith(("28", "3D")):  # who, and what
                    raise self._failure(error) from None
                time.sleep(pause * random.uniform(0.5, 1.0))
                pause *= 2
            except psycopg.Error as error:
                raise self._failure(error) from None
            except TimeoutError:
                message = f"no answer within {DEADLINE:g} s"
                raise self._failure(TimeoutError(message)) from None
        raise AssertionError("the last attempt returns or raises")

    def compact(self) -> None:
        """The server does that by itself."""

    def _run_once(self, work: Callable[[Transaction], T], write: bool, exclusive: bool) -> T:
        import psycopg

        def execute(statement: str, values: Any) -> Any:
            return connection.execute(statement.replace("?", "%s"), values)

        with psycopg.connect(**self._parameters) as connection:  # which commits at its end
            connection.execute("SET LOCAL statement_timeout = '10s'")
            connection.execute("SET LOCAL lock_timeout = '5s'")
            connection.execute("SET LOCAL idle_in_transaction_session_timeout = '10s'")
            if not (write or exclusive):
                connection.execute("SET TRANSACTION READ ONLY")
            if exclusive:
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
            return work(Transaction(execute))

    def _failure(self, error: Exception) -> StoreError:
        reason = " ".join(str(error).split()) or type(error).__name__
        return StoreError(f"the store {self.name} cannot be used: {reason}")


def _within(seconds: float, work: Callable[[], T]) -> T:
    """The result of work, which is left behind if it takes too long: a server may hang.

    Raises:
        TimeoutError: It takes too long.
    """
    results: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def target() -> None:
        try:
            results.put((work(), None))
        except BaseException as error:
            results.put((None, error))

    threading.Thread(target=target, name="placewright-store", daemon=True).start()
    try:
        result, error = results.get(timeout=max(seconds, 0.0))
    except queue.Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # None only with an error


def _without_password(url: str) -> str:
    """A URL for a message: its host and database, without user, password and options."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", f":{parts.port}" if parts.port else ""
    except ValueError:
        return "postgresql://…"
    return f"postgresql://{host}{port}{parts.path}"
