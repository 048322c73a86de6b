"""Measured plans: what a plan took on a machine is stored, for `placewright history` to show."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from placewright.files.plan import plan_data
from placewright.files.result import plan_digest
from placewright.store.measurement_records import MeasurementRecord
from placewright.store.store import warn_of_failure
from placewright.version import __version__

if TYPE_CHECKING:
    from placewright.plan import Plan
    from placewright.store.store import Store


def store_measurement(
    store: Store, name: str, plan: Plan, machine: str, seconds: float, spread: float
) -> None:
    """Store the step time of a plan; one that could not be run is not stored.

    Args:
        name: The model, in words.
        machine: The key of the machine.
    """
    if store.database is None or not (math.isfinite(seconds) and math.isfinite(spread)):
        return
    record = MeasurementRecord(
        name, machine, seconds, spread, plan_digest(plan), __version__, time.time(), plan_data(plan)
    )
    warn_of_failure(lambda: store.put_measurement(record), None)
