"""The measurements of a journal: each measured plan is written before the next one is run."""

from __future__ import annotations

import hashlib
import math
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placewright.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placewright.files.journal import JournalSection
    from placewright.files.validation import Data
    from placewright.plan import Plan


@dataclass(frozen=True)
class Measurement:
    """The measurement of one plan.

    Args:
        seconds: The step time, or the period with several steps in flight; infinity if it could
            not be run.
        spread: The range of the timed steps, as a share of their median.
        failure: Why it could not be run.
        crashed: Whether the process that ran it died or hung, which may not happen again.
        attempts: How often it was run.
    """

    seconds: float
    spread: float = 0.0
    failure: str = ""
    crashed: bool = False
    attempts: int = 1


def plan_digest(plan: Plan) -> str:
    """Tells plans of all graphs and clusters apart."""
    digest = hashlib.blake2b(f"{plan.graph}|{plan.cluster}".encode(), digest_size=16)
    for array in (plan.placement, plan.priority, plan.staging, plan.fusion):
        digest.update(b"|" if array is None else b"|" + array.tobytes())
    return digest.hexdigest()


def section_key(
    model: Any, device_map: Mapping[str, str] | None, settings: Mapping[str, Any]
) -> Data:
    """What measured times depend on, besides the plan."""
    is_function = callable(model)
    return {
        "model": f"{model.__module__}.{model.__qualname__}" if is_function else str(model),
        "machine": f"{platform.node()}, {platform.machine()}",
        "device_map": dict(device_map or {}),
        **settings,
    }


def read_measurements(section: JournalSection) -> dict[str, Measurement]:
    """The measurements of earlier processes by plan; the last one counts.

    Raises:
        FileError: A record is malformed.
    """
    try:
        return {
            str(record["plan"]): Measurement(
                math.inf if record["seconds"] is None else float(record["seconds"]),
                float(record["spread"]),
                str(record["failure"]),
                bool(record["crashed"]),
                int(record["attempts"]),
            )
            for record in section.records
        }
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"the journal has a malformed measurement: {error!r}") from None


def append_measurement(section: JournalSection, digest: str, measurement: Measurement) -> None:
    """Write one measurement."""
    seconds = measurement.seconds
    section.append(
        {
            "plan": digest,
            "seconds": seconds if math.isfinite(seconds) else None,
            "spread": measurement.spread,
            "failure": measurement.failure,
            "crashed": measurement.crashed,
            "attempts": measurement.attempts,
        }
    )
