"""Starts: a search and a space in, rows to begin a search with out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.solvers.balanced import splits
from placewright.solvers.searches.moves import move_stretch

if TYPE_CHECKING:
    from placewright.solvers.search import Search
    from placewright.solvers.searches.search_space import Rows, Space


def starts(search: Search, space: Space) -> Rows:
    """The best plan so far, every single device, and the balanced splits, each once."""
    rows = [singles(space), space.rows(splits(search))]
    if search.best is not None:
        rows.insert(0, space.rows(search.best.device))
    return distinct(np.concatenate(rows))


def singles(space: Space) -> Rows:
    """Every group on one device, for each device; what may not be there is settled elsewhere."""
    row = np.arange(space.devices, dtype=np.int32)[:, None]
    return np.repeat(row, len(space), axis=1)


def scattered(space: Space, rng: np.random.Generator, count: int) -> Rows:
    """Random rows: stretches of random length, one upon the other, from a random device each."""
    rows = rng.integers(0, space.devices, size=(count, 1), dtype=np.int32)
    rows = rows.repeat(len(space), axis=1)
    for _ in range(2 * space.devices):
        rows = move_stretch(space, rows, rng)
    return rows


def distinct(rows: Rows) -> Rows:
    """Each row once, in order of first appearance."""
    return rows[np.sort(np.unique(rows, axis=0, return_index=True)[1])]
