"""Crossover: which groups a child takes from its second parent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.solvers.searches.search_space import Rows, SearchSpace


def crossover_mask(space: SearchSpace, rng: np.random.Generator, count: int) -> NDArray[np.bool_]:
    """Children × groups: the groups from the second parent.

    One-point crossover along one of the space's orders for a third of the children, two-point
    crossover for a third, and uniform crossover with a probability up to one half for the rest.
    """
    positions = np.argsort(space.orders, axis=1)
    position = positions[rng.integers(0, len(positions), size=count)]
    ends = np.sort(rng.integers(0, len(space) + 1, size=(count, 2)), axis=1)
    kind = rng.integers(0, 3, size=count)
    ends[kind == 0, 1] = len(space)
    between = (position >= ends[:, :1]) & (position < ends[:, 1:])
    uniform = rng.random((count, len(space))) < rng.uniform(0.05, 0.5, size=(count, 1))
    return np.where((kind == 2)[:, None], uniform, between)


def equal_devices(problem: Problem) -> list[NDArray[np.int64]]:
    """Interchangeable devices: equal costs of all ops, equal memory, equally allowed."""
    a = problem.arrays
    groups: dict[bytes, list[int]] = {}
    for device in range(a.devices):
        key = a.compute[:, device].tobytes() + a.allowed[:, device].tobytes()
        groups.setdefault(key + a.capacity[device].tobytes(), []).append(device)
    return [np.array(group) for group in groups.values() if len(group) > 1]


def align_devices(
    space: SearchSpace, reference: Rows, rows: Rows, equal: list[NDArray[np.int64]]
) -> Rows:
    """Rows with equal devices renumbered so that they agree best with the fixed rows.

    Placements that differ only in the numbers of equal devices are the same plan, but a child of
    two of them would be neither. Greedy: the pair of devices that shares most work first.
    """
    work = space.work.max(axis=1)
    out = rows.copy()
    for child, (mine, theirs) in enumerate(zip(reference, rows, strict=True)):
        cells = mine.astype(np.int64) * space.devices + theirs
        shared = np.bincount(cells, work, space.devices**2).reshape(space.devices, -1)
        mapping = np.arange(space.devices, dtype=np.int32)
        for group in equal:
            table = shared[np.ix_(group, group)]
            for _ in group:
                device, partner = np.unravel_index(int(table.argmax()), table.shape)
                mapping[group[partner]] = group[device]
                table[device, :] = table[:, partner] = -1.0
        out[child] = mapping[theirs]
    return out
