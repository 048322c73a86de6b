"""The store: plans, measurements and profiles in one database.

Every method raises StoreError where the database cannot be used. Whoever plans goes on without it:
`warn_of_failure` makes a warning of that.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, TypeVar

from placewright.errors import ConfigError, StoreError
from placewright.store import measurement_records, plan_records, profile_records
from placewright.store.schema import migrate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from placewright.store.database import Database, Transaction
    from placewright.store.measurement_records import MeasurementRecord
    from placewright.store.plan_records import PlanRecord

MAX_PLANS = 512
"""Plans, and measurements, in a store of one machine; those not used for longest go first."""
MIN_KEY = 4
"""Characters by which a plan may be named."""

logger = logging.getLogger("placewright")
T = TypeVar("T")


def warn_of_failure(work: Callable[[], T], default: T) -> T:
    """The result of work with a store; where that cannot be used, a warning and the default."""
    try:
        return work()
    except StoreError as error:
        logger.warning("%s; planning goes on without it", error)
        return default


class Store:
    """What is known from before.

    Args:
        database: Where it is; None: nowhere, so that nothing is found and nothing is stored.
    """

    def __init__(self, database: Database | None) -> None:
        self.database = database
        self._is_migrated = False

    @property
    def name(self) -> str:
        """Where it is, in words."""
        return "none" if self.database is None else self.database.name

    # -- plans ---------------------------------------------------------------------------------

    def get_plan(self, key: str) -> PlanRecord | None:
        """The plan of a key, which counts as used now."""
        record = self._read(lambda transaction: plan_records.get(transaction, key), None)
        if record is not None:
            with contextlib.suppress(StoreError):  # a store that is read-only has it all the same
                self._write(lambda transaction: plan_records.touch(transaction, key), None)
        return record

    def put_plan(self, record: PlanRecord) -> bool:
        """Store a plan if there is none that is as good; whether it was stored."""

        def put(transaction: Transaction) -> bool:
            is_stored = plan_records.put(transaction, record)
            if self.database is not None and not self.database.is_shared:
                plan_records.prune(transaction, None, MAX_PLANS)
            return is_stored

        return self._write(put, False)

    def remove_plan(self, record: PlanRecord) -> bool:
        """Remove a plan, unless another took its place; whether it was there."""
        return self._write(lambda transaction: plan_records.remove(transaction, record), False)

    def list_plans(self) -> list[PlanRecord]:
        """All plans without their data, those that were used last first."""
        return self._read(plan_records.list_all, [])

    def find_plan(self, prefix: str) -> PlanRecord:
        """The plan whose key begins with these characters.

        Raises:
            ConfigError: There is none, or several.
        """
        keys = [record.key for record in self.list_plans() if record.key.startswith(prefix)]
        if len(prefix) < MIN_KEY or len(keys) != 1:
            found = "no plan has" if not keys else f"{len(keys):,} plans have"
            raise ConfigError(
                f"{found} a key that begins with {prefix!r}: expected {MIN_KEY} characters or more "
                "of one key; placewright history lists them"
            )
        record = self._read(lambda transaction: plan_records.get(transaction, keys[0]), None)
        if record is None:
            raise StoreError(f"the plan {prefix} is gone or too large to be read")
        return record

    def prune(self, older_than: float | None = None, keep: int | None = None) -> int:
        """Remove plans and measurements; how many.

        Args:
            older_than: Seconds: those that were not used for longer.
            keep: All but this many plans, and measurements, those that were used last.
        """
        before = None if older_than is None else time.time() - older_than

        def prune(transaction: Transaction) -> int:
            parts = (plan_records, measurement_records)
            return sum(part.prune(transaction, before, keep) for part in parts)

        if self.database is None or self.database.is_empty():
            return 0
        removed = self._write(prune, 0)
        self.database.compact()
        return removed

    # -- measurements and profiles -------------------------------------------------------------

    def put_measurement(self, record: MeasurementRecord) -> None:
        """Add a measurement of a plan."""

        def put(transaction: Transaction) -> None:
            measurement_records.put(transaction, record)
            if self.database is not None and not self.database.is_shared:
                measurement_records.prune(transaction, None, MAX_PLANS)

        self._write(put, None)

    def list_measurements(self, digest: str) -> list[MeasurementRecord]:
        """The measurements of a plan, by its digest, the last one first."""
        return self._read(
            lambda transaction: measurement_records.list_of_plan(transaction, digest), []
        )

    def get_profile(self, key: str) -> dict[str, Any] | None:
        """The profile of a machine."""
        return self._read(lambda transaction: profile_records.get_profile(transaction, key), None)

    def put_profile(self, key: str, data: dict[str, Any]) -> None:
        """Store the profile of a machine in place of an older one."""
        self._write(lambda transaction: profile_records.put_profile(transaction, key, data), None)

    def get_timings(self, machine: str) -> dict[str, dict[str, Any]]:
        """The times of ops on a machine, by op."""
        return self._read(lambda transaction: profile_records.get_timings(transaction, machine), {})

    def put_timings(self, machine: str, timings: Mapping[str, dict[str, Any]]) -> None:
        """Store times of ops on a machine; those of other ops stay."""
        self._write(
            lambda transaction: profile_records.put_timings(transaction, machine, timings), None
        )

    # -- the database --------------------------------------------------------------------------

    def _read(self, work: Callable[[Transaction], T], default: T) -> T:
        if self.database is None or self.database.is_empty():
            return default
        self._migrate(self.database)
        return self.database.run(work)

    def _write(self, work: Callable[[Transaction], T], default: T) -> T:
        if self.database is None:
            return default
        self._migrate(self.database)
        return self.database.run(work, write=True)

    def _migrate(self, database: Database) -> None:
        if not self._is_migrated:
            migrate(database)
            self._is_migrated = True
