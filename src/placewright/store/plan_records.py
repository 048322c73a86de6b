"""Plans in the store, by key: a better plan replaces a worse one, and never the other way."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from placewright.errors import StoreError
from placewright.store.plain_data import MAX_CHARACTERS, clean_name, decode, encode

if TYPE_CHECKING:
    from placewright.store.database import Transaction

Kind = Literal["problem", "workload", "model"]
MAX_LISTED = 10_000
"""Plans that are listed, those that were used last."""

_COLUMNS = (
    "key, kind, name, cluster, objective, overflow, seconds, bound, method, digest, version, "
    "created_at, used_at"
)
_BETTER = (
    "excluded.overflow < placewright_plans.overflow OR "
    "(excluded.overflow = placewright_plans.overflow AND "
    "excluded.seconds < placewright_plans.seconds)"
)


@dataclass(frozen=True, eq=False)
class PlanRecord:
    """A plan in the store.

    Args:
        key: A digest of everything that the plan depends on.
        kind: `problem` and `workload`: the best plan that is known; `model`: the plan that `place`
            last ran a model under.
        name: The model, in words.
        overflow: Bytes over the memory limits.
        seconds: The objective: step time or period, or the sum of all calls.
        bound: A lower bound on it; 0 if none is known.
        digest: What tells the plan from others, where it may be measured.
        version: The release that made it.
        created_at: Seconds since 1970.
        used_at: When it was last written or started from.
        data: The result file, or what `place` has stored, as plain data; empty in a list.
    """

    key: str
    kind: Kind
    name: str
    cluster: str
    objective: str
    overflow: int
    seconds: float
    bound: float
    method: str
    digest: str
    version: str
    created_at: float
    used_at: float
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def day(self) -> str:
        """The day it was made on, such as 2026-11-18."""
        return time.strftime("%Y-%m-%d", time.localtime(self.created_at))

    @property
    def fits(self) -> bool:
        return self.overflow == 0


def put(transaction: Transaction, record: PlanRecord) -> bool:
    """Store a plan unless a plan that is as good is there; whether it was stored.

    What `place` ran a model under is always replaced: its times may be of other measurements.
    """
    values = (
        *(record.key, record.kind, clean_name(record.name), clean_name(record.cluster)),
        *(record.objective, record.overflow, record.seconds, record.bound, record.method),
        *(record.digest, record.version, record.created_at, record.used_at, encode(record.data)),
    )
    names = [name.strip() for name in f"{_COLUMNS}, data".split(",")]
    changes = ", ".join(f"{name} = excluded.{name}" for name in names[1:])
    condition = "" if record.kind == "model" else f" WHERE {_BETTER}"
    statement = (
        f"INSERT INTO placewright_plans ({_COLUMNS}, data) "
        f"VALUES ({', '.join('?' * len(names))}) "
        f"ON CONFLICT (key) DO UPDATE SET {changes}{condition}"
    )
    return transaction.run(statement, *values) == 1


def get(transaction: Transaction, key: str) -> PlanRecord | None:
    """The plan of a key; one whose data are damaged has none, which whoever reads them refuses."""
    rows = transaction.rows(
        f"SELECT {_COLUMNS}, data FROM placewright_plans WHERE key = ? AND length(data) <= ?",
        *(key, MAX_CHARACTERS),
    )
    if not rows:
        return None
    record = _record(rows[0][:-1])
    try:
        return replace(record, data=decode(rows[0][-1]))
    except StoreError:
        return record


def touch(transaction: Transaction, key: str) -> None:
    """Note that a plan was used."""
    transaction.run("UPDATE placewright_plans SET used_at = ? WHERE key = ?", time.time(), key)


def remove(transaction: Transaction, record: PlanRecord) -> bool:
    """Remove a plan, unless another took its place meanwhile; whether it was there."""
    statement = "DELETE FROM placewright_plans WHERE key = ? AND created_at = ? AND seconds = ?"
    return transaction.run(statement, record.key, record.created_at, record.seconds) == 1


def list_all(transaction: Transaction) -> list[PlanRecord]:
    """All plans without their data, those that were used last first."""
    rows = transaction.rows(
        f"SELECT {_COLUMNS} FROM placewright_plans ORDER BY used_at DESC, key LIMIT ?", MAX_LISTED
    )
    return [_record(row) for row in rows]


def prune(transaction: Transaction, before: float | None, keep: int | None) -> int:
    """Remove plans that were not used since a time, and all but a number of those used last."""
    removed = 0
    if before is not None:
        removed += transaction.run("DELETE FROM placewright_plans WHERE used_at < ?", before)
    if keep is not None:
        removed += transaction.run(
            "DELETE FROM placewright_plans WHERE key NOT IN "
            "(SELECT key FROM placewright_plans ORDER BY used_at DESC, key LIMIT ?)",
            keep,
        )
    return removed


def _record(row: tuple[Any, ...]) -> PlanRecord:
    """A row that is of the right types: SQLite holds any type in any column."""
    texts, numbers = (*row[:5], *row[8:11]), (*row[5:8], *row[11:])
    is_valid = all(isinstance(text, str) for text in texts) and all(
        isinstance(number, int | float) for number in numbers
    )
    if not is_valid or row[1] not in get_args(Kind):
        raise StoreError("a stored plan is damaged: expected texts and numbers")
    return PlanRecord(*row)
