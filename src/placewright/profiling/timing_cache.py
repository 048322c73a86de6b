"""Caches op timings in the user's cache folder while the machine stays the same."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from placewright.cache import cache_folder
from placewright.errors import PlacewrightError
from placewright.files.storage import read_data, write_data
from placewright.profiling.timing import Timing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placewright.runtime.machine import Machine


class TimingCache:
    """Timings of ops on this machine, by model and signature.

    Args:
        conditions: Under what load each model was measured, such as background copies; part of the
            key.
    """

    def __init__(self, machine: Machine, conditions: Mapping[str, str] | None = None) -> None:
        self.conditions = conditions or {}
        self.path = cache_folder("machines") / f"{machine.key}.ops.json.gz"
        self.key = machine.key
        self.rows: dict[str, list[float]] = {}
        self.is_dirty = False
        try:
            data = read_data(self.path)
        except PlacewrightError:
            return
        if isinstance(data, dict) and data.get("key") == machine.key:
            self.rows = {name: row for name, row in data["rows"].items() if _is_valid_row(row)}

    def get(self, model: str, signature: str) -> Timing | None:
        """The cached timing of an op."""
        row = self.rows.get(self._row_key(model, signature))
        if row is None:
            return None
        seconds, spread, samples, issue, workspace = row
        return Timing(seconds, spread, int(samples), issue, int(workspace))

    def put(self, model: str, signature: str, timing: Timing) -> None:
        """Add a timing."""
        row = [
            timing.seconds,
            timing.spread,
            float(timing.samples),
            timing.issue,
            float(timing.workspace),
        ]
        self.rows[self._row_key(model, signature)] = row
        self.is_dirty = True

    def _row_key(self, model: str, signature: str) -> str:
        text = f"{model}|{self.conditions.get(model, '')}|{signature}"
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()

    def save(self) -> None:
        """Write the cache if it has changed; one that cannot be written is no error."""
        if not self.is_dirty:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_data({"key": self.key, "rows": self.rows}, self.path)
        except (PlacewrightError, OSError):
            return


def _is_valid_row(row: object) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 5
        and all(isinstance(value, float | int) and value >= 0 for value in row)
    )
