"""Caches op timings while the machine stays the same: in the user's cache folder and the store.

The file is at hand wherever the user's files are; the store has what other processes, and other
machines of the same kind, have measured.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, TypeGuard

from placewright.cache import cache_folder
from placewright.errors import PlacewrightError
from placewright.files.storage import read_data, write_data
from placewright.profiling.timing import Timing
from placewright.store import open_store
from placewright.store.store import warn_of_failure

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
        self.new_rows: dict[str, list[float]] = {}
        self.store = open_store()
        self.rows = {**self._stored_rows(), **self._file_rows()}

    def _stored_rows(self) -> dict[str, list[float]]:
        no_timings: dict[str, dict[str, Any]] = {}
        timings = warn_of_failure(lambda: self.store.get_timings(self.key), no_timings)
        rows = {name: data.get("row") for name, data in timings.items()}
        return {name: row for name, row in rows.items() if _is_valid_row(row)}

    def _file_rows(self) -> dict[str, list[float]]:
        try:
            data = read_data(self.path)
        except PlacewrightError:
            return {}
        if not isinstance(data, dict) or data.get("key") != self.key:
            return {}
        return {name: row for name, row in data["rows"].items() if _is_valid_row(row)}

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
        key = self._row_key(model, signature)
        self.rows[key] = self.new_rows[key] = row

    def _row_key(self, model: str, signature: str) -> str:
        text = f"{model}|{self.conditions.get(model, '')}|{signature}"
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()

    def save(self) -> None:
        """Write the cache if it has changed; one that cannot be written is no error."""
        if not self.new_rows:
            return
        timings = {name: {"row": row} for name, row in self.new_rows.items()}
        warn_of_failure(lambda: self.store.put_timings(self.key, timings), None)
        self.new_rows = {}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_data({"key": self.key, "rows": self.rows}, self.path)
        except (PlacewrightError, OSError):
            return


def _is_valid_row(row: object) -> TypeGuard[list[float]]:
    return (
        isinstance(row, list)
        and len(row) == 5
        and all(isinstance(value, float | int) and value >= 0 for value in row)
    )
