"""Initial plans: rows of groups from which a search starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.solvers.balanced import balanced_placements
from placewright.solvers.searches.moves import move_run

if TYPE_CHECKING:
    from placewright.solvers.search import Search
    from placewright.solvers.searches.search_space import Rows, SearchSpace


def initial_rows(search: Search, space: SearchSpace) -> Rows:
    """The best plan so far, every single device, and the balanced splits, each once."""
    rows = [single_device_rows(space), space.rows(balanced_placements(search))]
    if search.best is not None:
        rows.insert(0, space.rows(search.best.placement))
    return distinct_rows(np.concatenate(rows))


def single_device_rows(space: SearchSpace) -> Rows:
    """Every group on one device, for each device; `legalize` moves what may not be there."""
    row = np.arange(space.devices, dtype=np.int32)[:, None]
    return np.repeat(row, len(space), axis=1)


def random_rows(space: SearchSpace, rng: np.random.Generator, count: int) -> Rows:
    """Random rows: runs of random length, one over the other, on a random device each."""
    rows = rng.integers(0, space.devices, size=(count, 1), dtype=np.int32)
    rows = rows.repeat(len(space), axis=1)
    for _ in range(2 * space.devices):
        rows = move_run(space, rows, rng)
    return rows


def distinct_rows(rows: Rows) -> Rows:
    """Each row once, in order of first appearance."""
    return rows[np.sort(np.unique(rows, axis=0, return_index=True)[1])]
