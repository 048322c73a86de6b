"""Breeding: rows of two parents in, which groups a child has from which parent out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.solvers.searches.search_space import Rows, Space


def crossed(space: Space, rng: np.random.Generator, count: int) -> NDArray[np.bool_]:
    """Children × groups: what comes from the second parent.

    A third of the children have all groups behind a point of one of the space's orders from it, a
    third those between two points, a third any group with a chance of their own, at most one half.
    """
    places = np.argsort(space.orders, axis=1)
    place = places[rng.integers(0, len(places), size=count)]
    ends = np.sort(rng.integers(0, len(space) + 1, size=(count, 2)), axis=1)
    kind = rng.integers(0, 3, size=count)
    ends[kind == 0, 1] = len(space)
    between = (place >= ends[:, :1]) & (place < ends[:, 1:])
    uniform = rng.random((count, len(space))) < rng.uniform(0.05, 0.5, size=(count, 1))
    return np.where((kind == 2)[:, None], uniform, between)


def alike(problem: Problem) -> list[NDArray[np.int64]]:
    """Devices that could change names: equal costs of all ops, equal memory, equal permissions."""
    a = problem.arrays
    groups: dict[bytes, list[int]] = {}
    for device in range(a.devices):
        key = a.compute[:, device].tobytes() + a.allowed[:, device].tobytes()
        groups.setdefault(key + a.capacity[device].tobytes(), []).append(device)
    return [np.array(group) for group in groups.values() if len(group) > 1]


def aligned(space: Space, fixed: Rows, rows: Rows, alike: list[NDArray[np.int64]]) -> Rows:
    """Rows with the names of alike devices changed so that they agree best with the fixed rows.

    Placements that differ in nothing but the devices' numbers are the same plan, and a child of two
    of them would be neither. Greedy: the pair of devices that shares most work first.
    """
    work = space.work.max(axis=1)
    out = rows.copy()
    for child, (mine, theirs) in enumerate(zip(fixed, rows, strict=True)):
        cells = mine.astype(np.int64) * space.devices + theirs
        shared = np.bincount(cells, work, space.devices**2).reshape(space.devices, -1)
        name = np.arange(space.devices, dtype=np.int32)
        for group in alike:
            table = shared[np.ix_(group, group)]
            for _ in group:
                here, there = np.unravel_index(int(table.argmax()), table.shape)
                name[group[there]] = group[here]
                table[here, :] = table[:, there] = -1.0
        out[child] = name[theirs]
    return out
