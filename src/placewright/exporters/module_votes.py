"""Chooses a device for each group of ops by where most of its time is planned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from placewright.exporters.base import ExportRequest

_Device = TypeVar("_Device", int, str)  # its position or its name


def planned_seconds(
    request: ExportRequest, group: NDArray[np.integer[Any]], count: int
) -> NDArray[np.float64]:
    """Groups × devices: computing time of the ops planned there; -1 is no group.

    An op counts with its time on the device that is fastest at it, so that a slow device does not
    make it more important.
    """
    a, device = request.problem.arrays, request.plan.placement
    is_grouped = group >= 0
    seconds_on = np.zeros((count, a.devices))
    seconds = a.compute.min(axis=1) * a.scheduled
    np.add.at(seconds_on, (group[is_grouped], device[is_grouped]), seconds[is_grouped])
    return seconds_on


def busiest(op_seconds: Iterable[tuple[_Device, float]]) -> _Device:
    """The device with the most seconds in pairs of device and seconds; the first of equals."""
    total: dict[_Device, float] = {}
    for device, seconds in op_seconds:
        total[device] = total.get(device, 0.0) + seconds
    return max(total, key=lambda device: total[device])


def group_loads(
    request: ExportRequest, group: NDArray[np.integer[Any]], count: int
) -> NDArray[np.float64]:
    """Groups × devices: `planned_seconds`, and a little for the bytes that are planned there.

    The bytes decide where a group has no computing time: their scale is so small that they never
    outweigh time.
    """
    a, device = request.problem.arrays, request.plan.placement
    is_grouped = group >= 0
    seconds_on = planned_seconds(request, group, count)
    bytes_on = np.zeros((count, a.devices))
    np.add.at(bytes_on, (group[is_grouped], device[is_grouped]), a.resident[is_grouped])
    smallest = seconds_on[seconds_on > 0].min(initial=1.0)
    load: NDArray[np.float64] = seconds_on + bytes_on * (
        1e-6 * smallest / max(bytes_on.max(initial=0.0), 1.0)
    )
    return load


def majority_devices(
    request: ExportRequest, group: NDArray[np.integer[Any]], count: int
) -> NDArray[np.int32]:
    """The device with most of a group's planned time; -1 for a group without time or bytes."""
    load = group_loads(request, group, count)
    return np.where(load.any(axis=1), load.argmax(axis=1), -1).astype(np.int32)


def contiguous_devices(load: NDArray[np.float64]) -> NDArray[np.int32]:
    """A device for each block; every device gets at most one contiguous segment of blocks.

    The devices are in the order of the centre of their load; the cuts between them keep as much
    load on its planned device as possible. A device without load gets no block.

    Args:
        load: Blocks × devices: the load that is planned there.
    """
    blocks, devices = load.shape
    loaded = [d for d in range(devices) if load[:, d].any()]
    centroid = {d: float(load[:, d] @ np.arange(blocks) / load[:, d].sum()) for d in loaded}
    order = sorted(loaded, key=lambda d: (centroid[d], d))
    if not order:
        return np.zeros(blocks, dtype=np.int32)
    best = np.zeros((blocks + 1, len(order)))
    previous: NDArray[np.int64] = np.zeros((blocks + 1, len(order)), dtype=np.int64)
    for block in range(blocks):
        for k, device in enumerate(order):
            source = int(best[block, : k + 1].argmax())
            previous[block + 1, k] = source
            best[block + 1, k] = best[block, source] + load[block, device]
    k = int(best[blocks].argmax())
    assignment = np.zeros(blocks, dtype=np.int32)
    for block in range(blocks, 0, -1):
        assignment[block - 1] = order[k]
        k = int(previous[block, k])
    return assignment


def run_lengths(values: Sequence[int]) -> list[tuple[int, int]]:
    """(value, length) of each run of equal values."""
    lengths: list[tuple[int, int]] = []
    for value in values:
        if lengths and lengths[-1][0] == value:
            lengths[-1] = (value, lengths[-1][1] + 1)
        else:
            lengths.append((value, 1))
    return lengths
