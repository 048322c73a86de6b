"""Features of a problem's units for GO: kinds, edges, times, bytes and order.

Seconds are in terms of a mean unit's on its fastest device, bytes in terms of a device's memory.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from placewright.policies.go.initial_plans import layer_index
from placewright.scheduling.ranks import mean_transfer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.arrays import Arrays
    from placewright.problem import Problem

KIND_BUCKETS = 64
"""Kinds of op are told by a checksum of their name up to this, so that none is unknown."""
UNIT_WIDTH, GRAPH_WIDTH, DEVICE_WIDTH = 28, 8, 6
"""How many numbers tell a unit, a whole graph, and a device."""
WINDOWS = (32, 6)
"""Stretches of the order in which loads are compared, as parts of all work."""
_PHASES = {"forward": 0, "backward": 1, "update": 2}
_FREQUENCIES = (1, 2, 4, 8)  # how often what tells a unit's place among layers comes back


def unit_features(
    problem: Problem,
    unit: NDArray[np.int64],
    leader: NDArray[np.int64],
    legal: NDArray[np.bool_],
    seconds: NDArray[np.float64],
    path_lengths: tuple[NDArray[np.float64], NDArray[np.float64]],
    mean_seconds: float,
) -> dict[str, NDArray[np.generic]]:
    """All that the network reads."""
    rank, path_before = path_lengths
    a, units = problem.arrays, len(leader)
    fastest = np.where(legal, seconds, np.inf).min(axis=1)
    edges = _unit_edges(a, unit)
    source, target, tensor = edges
    transfer_seconds = (
        a.transfer[:, tensor] if len(a.transfer) else np.zeros((1, len(tensor)))
    ) / mean_seconds
    mean_transfer_seconds = mean_transfer(a)[tensor] / mean_seconds
    input_seconds = np.bincount(target, mean_transfer_seconds, units)
    output_seconds = np.bincount(source, mean_transfer_seconds, units)
    tensor_bytes = np.where((a.alias < 0) & ~a.is_resident[a.producer], a.sizes, 0)
    output_bytes = np.bincount(unit[a.producer], tensor_bytes, units)
    resident = np.bincount(unit, a.resident, units)
    workspace = np.zeros(units)
    np.maximum.at(workspace, unit, a.workspace)
    last_reader = np.arange(units)
    np.maximum.at(last_reader, source, target)
    last_reader[unit[a.producer[a.is_output]]] = units - 1
    device_memory = max(
        float(a.capacity[~a.is_host].mean() if (~a.is_host).any() else a.capacity.mean()), 1.0
    )
    longest = max(float((rank + path_before).max()), 1e-30)
    slowdown = np.where(legal, seconds, 0).max(axis=1) / np.maximum(fastest, 1e-3 * mean_seconds)
    slowest_op = _slowest_op(a, unit, leader)
    scale = fastest / mean_seconds + input_seconds + output_seconds
    unit_columns = [
        np.log1p(fastest / mean_seconds),
        np.log1p(input_seconds),
        np.log1p(output_seconds),
        np.log1p(resident * units / device_memory),
        np.log1p(output_bytes * units / device_memory),
        np.log1p(workspace * units / device_memory),
        np.log1p(np.bincount(target, minlength=units)),
        np.log1p(np.bincount(source, minlength=units)),
        path_before[leader] / longest,
        rank[leader] / longest,
        1 - (path_before + rank)[leader] / longest,
        np.arange(units) / units,
        *_phase_shares(problem, unit).T,
        (legal.sum(axis=1) == 1).astype(float),
        np.log1p(np.bincount(unit, a.scheduled, units)),
        np.log(np.maximum(slowdown, 1.0)),
        *_layer_features(problem)[:, leader],
    ]
    total = fastest.sum()
    device_seconds = np.where(legal, seconds, 0).sum(axis=0)
    speed = np.log(
        np.maximum(device_seconds, 1e-30)
        / max(float(device_seconds[device_seconds > 0].min(initial=np.inf)), 1e-30)
    )
    speed = np.clip(np.nan_to_num(speed, neginf=0.0), 0.0, 8.0)
    needed_bytes = resident.sum() + output_bytes.sum()
    capacity = np.maximum(a.capacity.astype(float), 1.0)
    link_seconds = _mean_link_seconds(a, tensor) / mean_seconds
    graph_columns = [
        np.log(units) / 10,
        np.log(a.devices),
        np.log1p(mean_transfer_seconds.sum() / max(total / mean_seconds, 1e-9)),
        np.log1p(
            needed_bytes / capacity[~a.is_host].sum()
            if (~a.is_host).any()
            else needed_bytes / capacity.sum()
        ),
        np.log(max(total / longest, 1e-3)),
        float(problem.discipline == "ready"),
        float(problem.objective == "period"),
        float((~a.is_host).sum() / a.devices),
    ]
    device_columns = [
        speed,
        a.is_host.astype(float),
        np.log1p(capacity / max(needed_bytes / a.devices, 1.0)),
        np.log1p(link_seconds),
        np.full(a.devices, 1 / a.devices),
        (np.where(legal.any(axis=0), legal.mean(axis=0), 0.0)),
    ]
    # The order of a list schedule, and for each unit the stretch of it around its own place.
    order = np.argsort(-rank[leader], kind="stable")
    work = fastest[order] + 1e-6 * max(total, 1e-30)
    midpoints = np.cumsum(work) - work / 2
    low, high = np.zeros((len(WINDOWS), units), np.int64), np.zeros((len(WINDOWS), units), np.int64)
    span = np.zeros((len(WINDOWS), units))
    boundaries = np.append(0.0, np.cumsum(work))
    for window, parts in enumerate(WINDOWS):
        half_width = work.sum() / parts / 2
        low[window, order] = np.searchsorted(midpoints, midpoints - half_width)
        high[window, order] = np.searchsorted(midpoints, midpoints + half_width, side="right")
        span[window] = boundaries[high[window]] - boundaries[low[window]]
    fair_share = 1 / max(
        float((1 / np.maximum(device_seconds[device_seconds > 0], 1e-30)).sum()), 1e-30
    )
    kind = [
        zlib.crc32(problem.graph.ops[op].kind.encode()) % KIND_BUCKETS for op in slowest_op.tolist()
    ]
    return {
        "kind": np.array(kind, dtype=np.int64),
        "told": np.stack(unit_columns, axis=1),
        "whole": np.array(graph_columns),
        "each": np.stack(device_columns, axis=1),
        "source": source,
        "target": target,
        "sent": transfer_seconds,
        "mean": mean_transfer_seconds
        + 0.1 * max(float(mean_transfer_seconds.mean()) if len(source) else 0.0, 1e-6),
        "between": _link_class_masks(a),
        "sent_and_none": np.vstack([transfer_seconds, np.zeros((1, len(tensor)))]),
        "link": np.where(a.link_class < 0, len(transfer_seconds), a.link_class).astype(np.int64),
        "own": np.maximum(scale, 1e-2),
        "seconds": seconds / mean_seconds,
        "slow": np.log(
            np.maximum(seconds, 1e-3 * mean_seconds)
            / np.maximum(fastest, 1e-3 * mean_seconds)[:, None]
        ),
        "share": np.array(fair_share / mean_seconds),
        "order": order.astype(np.int64),
        "low": low,
        "high": high,
        "span": span / mean_seconds,
        "last": last_reader.astype(np.int64),
        "resident": resident / device_memory,
        "held": output_bytes / device_memory,
        "capacity": capacity / device_memory,
        "legal": legal,
    }


def _fastest_seconds(a: Arrays) -> NDArray[np.float64]:
    """Ops: seconds on the fastest device."""
    return np.where(a.scheduled, a.compute.min(axis=1), 0.0)


def _slowest_op(a: Arrays, unit: NDArray[np.int64], leader: NDArray[np.int64]) -> NDArray[np.int64]:
    """Units: the op that takes longest, or the leader where none takes any time."""
    work = _fastest_seconds(a)
    order = np.lexsort((work, unit))
    last = np.append(np.flatnonzero(np.diff(unit[order])), len(order) - 1)
    longest = order[last]
    return np.where(work[longest] > 0, longest, leader)


def _phase_shares(problem: Problem, unit: NDArray[np.int64]) -> NDArray[np.float64]:
    """Units × phases: the share of a unit's work."""
    a = problem.arrays
    phase = np.array([_PHASES.get(str(op.phase), 0) for op in problem.graph.ops], dtype=np.int64)
    work = _fastest_seconds(a) + 1e-15
    share = np.zeros((int(unit.max()) + 1, len(_PHASES)))
    np.add.at(share, (unit, phase), work)
    shares: NDArray[np.float64] = share / share.sum(axis=1, keepdims=True)
    return shares


def _layer_features(problem: Problem) -> NDArray[np.float64]:
    """Numbers × ops: where each stands among layers, by the work before it.

    As a share of all, as waves so that neighbours can be told apart, and within the stretch that a
    device would have if all had equal ones.
    """
    a = problem.arrays
    _, group = np.unique(layer_index(problem), return_inverse=True)
    work = np.bincount(group, _fastest_seconds(a)) + 1e-15
    progress = ((np.cumsum(work) - work / 2) / work.sum())[group]
    accelerators = int((~a.is_host).sum()) or a.devices
    encodings = [
        function(2 * np.pi * frequency * progress)
        for frequency in _FREQUENCIES
        for function in (np.sin, np.cos)
    ]
    return np.stack([progress, *encodings, progress * accelerators % 1])


def _unit_edges(a: Arrays, unit: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    """Source and target units, and tensors that pass between them, each once."""
    tensor = a.inputs.astype(np.int64)
    source, target = unit[a.producer[tensor]], unit[a.reader]
    crossing = np.flatnonzero(source != target)
    _, first_edge = np.unique(target[crossing] * len(a.sizes) + tensor[crossing], return_index=True)
    distinct = crossing[first_edge]
    return source[distinct], target[distinct], tensor[distinct]


def _link_class_masks(a: Arrays) -> NDArray[np.float64]:
    """Link classes × devices × devices: whether this link is of this class."""
    count = max(len(a.transfer), 1)
    masks: NDArray[np.float64] = (a.link_class[None] == np.arange(count)[:, None, None]).astype(
        float
    )
    return masks


def _mean_link_seconds(a: Arrays, tensor: NDArray[np.int64]) -> NDArray[np.float64]:
    """Devices: the mean seconds of a tensor on links from and to it."""
    seconds = np.zeros(a.devices)
    if len(tensor) and len(a.transfer):
        class_seconds = a.transfer[:, tensor].mean(axis=1)
        for device in range(a.devices):
            links = np.append(a.link_class[device], a.link_class[:, device])
            links = links[links >= 0]
            seconds[device] = class_seconds[links].mean() if len(links) else 0.0
    return seconds
