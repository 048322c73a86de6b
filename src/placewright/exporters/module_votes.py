"""Ops and their groups in, one device per group or per stretch of groups out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placewright.exporters.base import Ask


def loads(ask: Ask, group: NDArray[np.integer[Any]], count: int) -> NDArray[np.float64]:
    """Groups × devices: computing time of the ops planned there; -1 is no group.

    An op counts with the time that it takes on the device that is fastest at it: on a slow one it
    is no more important for taking long. A group without computing time is decided by its bytes:
    these are added at a scale on which they never outweigh time.
    """
    a, device = ask.problem.arrays, ask.plan.device
    inside = group >= 0
    busy = np.zeros((count, a.devices))
    held = np.zeros((count, a.devices))
    seconds = a.compute.min(axis=1) * a.turn
    np.add.at(busy, (group[inside], device[inside]), seconds[inside])
    np.add.at(held, (group[inside], device[inside]), a.resident[inside])
    smallest = busy[busy > 0].min(initial=1.0)
    weight: NDArray[np.float64] = busy + held * (1e-6 * smallest / max(held.max(initial=0.0), 1.0))
    return weight


def majority(ask: Ask, group: NDArray[np.integer[Any]], count: int) -> NDArray[np.int32]:
    """Each group's device: where most of its time is planned; -1 where it has no time or bytes."""
    weight = loads(ask, group, count)
    return np.where(weight.any(axis=1), weight.argmax(axis=1), -1).astype(np.int32)


def stretches(weight: NDArray[np.float64]) -> NDArray[np.int32]:
    """A device for each block, every device on one stretch of blocks at most.

    The devices follow each other by where most of their load stands; the cuts between them keep
    as much load on its planned device as possible. A device without load gets no block.

    Args:
        weight: Blocks × devices: the load that is planned there.
    """
    blocks, devices = weight.shape
    used = [d for d in range(devices) if weight[:, d].any()]
    middle = {d: float(weight[:, d] @ np.arange(blocks) / weight[:, d].sum()) for d in used}
    order = sorted(used, key=lambda d: (middle[d], d))
    if not order:
        return np.zeros(blocks, dtype=np.int32)
    best = np.zeros((blocks + 1, len(order)))
    came: NDArray[np.int64] = np.zeros((blocks + 1, len(order)), dtype=np.int64)
    for block in range(blocks):
        for k, device in enumerate(order):
            before = int(best[block, : k + 1].argmax())
            came[block + 1, k] = before
            best[block + 1, k] = best[block, before] + weight[block, device]
    k = int(best[blocks].argmax())
    chosen = np.zeros(blocks, dtype=np.int32)
    for block in range(blocks, 0, -1):
        chosen[block - 1] = order[k]
        k = int(came[block, k])
    return chosen


def runs(values: Sequence[int]) -> list[tuple[int, int]]:
    """(value, how often) of each run of equal values."""
    found: list[tuple[int, int]] = []
    for value in values:
        if found and found[-1][0] == value:
            found[-1] = (value, found[-1][1] + 1)
        else:
            found.append((value, 1))
    return found
