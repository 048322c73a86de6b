"""What the store needs of a database: transactions that run SQL with `?` for values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")


@dataclass(frozen=True)
class Transaction:
    """A transaction: all of it is done, or nothing.

    Args:
        execute: Runs a statement with its values, and returns a cursor of Python's database API.
    """

    execute: Callable[[str, Sequence[Any]], Any]

    def run(self, statement: str, *values: Any) -> int:
        """Run a statement; how many rows it changed."""
        return int(self.execute(statement, values).rowcount)

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return [tuple(row) for row in self.execute(query, values).fetchall()]


class Database(Protocol):
    """SQLite or PostgreSQL. Whatever fails raises StoreError."""

    @property
    def name(self) -> str:
        """Where it is, for a message; never with a password."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether it serves several machines."""
        ...

    def is_empty(self) -> bool:
        """Whether there is nothing yet, which is known without a connection."""
        ...

    def has_table(self, transaction: Transaction, table: str) -> bool:
        """Whether it has a table of this name."""
        ...

    def run(
        self,
        work: Callable[[Transaction], T],
        *,
        write: bool = False,
        exclusive: bool = False,
    ) -> T:
        """Do work in a transaction. It may be done again if the connection breaks.

        Args:
            write: Whether it changes anything.
            exclusive: Whether no other process may change the schema meanwhile.
        """
        ...

    def compact(self) -> None:
        """Give space that was freed back to the disk, where that is possible."""
        ...
