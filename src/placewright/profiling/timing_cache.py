"""Timings of ops in, kept in the user's cache folder for as long as the machine stays the same."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from placewright.errors import PlacewrightError
from placewright.files.storage import read_data, write_data
from placewright.profiling.timing import Timing
from placewright.zoo.capture import cache_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placewright.runtime.machine import Machine


class Kept:
    """What was measured of ops on this machine, by model and signature.

    Args:
        how: In what company, by model, where that is not alone.
    """

    def __init__(self, machine: Machine, how: Mapping[str, str] | None = None) -> None:
        self.how = how or {}
        self.path = cache_folder().parent / "machines" / f"{machine.key}.ops.json.gz"
        self.key = machine.key
        self.rows: dict[str, list[float]] = {}
        self.changed = False
        try:
            data = read_data(self.path)
        except PlacewrightError:
            return
        if isinstance(data, dict) and data.get("key") == machine.key:
            self.rows = {name: row for name, row in data["rows"].items() if _sound(row)}

    def get(self, model: str, signature: str) -> Timing | None:
        """What is known of an op."""
        row = self.rows.get(self._name(model, signature))
        if row is None:
            return None
        seconds, spread, samples, issue, workspace = row
        return Timing(seconds, spread, int(samples), issue, int(workspace))

    def put(self, model: str, signature: str, took: Timing) -> None:
        """Remember a timing."""
        row = [took.seconds, took.spread, float(took.samples), took.issue, float(took.workspace)]
        self.rows[self._name(model, signature)] = row
        self.changed = True

    def _name(self, model: str, signature: str) -> str:
        text = f"{model}|{self.how.get(model, '')}|{signature}"
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()

    def save(self) -> None:
        """Write what is new; a cache that cannot be written is no cache, and no error."""
        if not self.changed:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_data({"key": self.key, "rows": self.rows}, self.path)
        except (PlacewrightError, OSError):
            return


def _sound(row: object) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 5
        and all(isinstance(one, float | int) and one >= 0 for one in row)
    )
