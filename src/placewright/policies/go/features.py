"""What GO is told of a problem's units: who they are, how they hang together, numbers of each.

Seconds are in terms of a mean unit's on its fastest device, bytes in terms of a device's memory.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from placewright.policies.go.initial_plans import layer_order, mean_transfer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.arrays import Arrays
    from placewright.problem import Problem

KINDS = 64
"""Kinds of op are told by a checksum of their name up to this, so that none is unknown."""
UNIT, GRAPH, DEVICE = 28, 8, 6
"""How many numbers tell a unit, a whole graph, and a device."""
WINDOWS = (32, 6)
"""Stretches of the order in which loads are compared, as parts of all work."""
_PHASES = {"forward": 0, "backward": 1, "update": 2}
_WAVES = (1, 2, 4, 8)  # how often what tells a unit's place among layers comes back


def told_arrays(
    problem: Problem,
    unit: NDArray[np.int64],
    leader: NDArray[np.int64],
    legal: NDArray[np.bool_],
    seconds: NDArray[np.float64],
    ways: tuple[NDArray[np.float64], NDArray[np.float64]],
    mean: float,
) -> dict[str, NDArray[np.generic]]:
    """All that the network reads."""
    rank, before = ways
    a, units = problem.arrays, len(leader)
    fastest = np.where(legal, seconds, np.inf).min(axis=1)
    edges = _edges(a, unit)
    source, target, tensor = edges
    sent = (a.transfer[:, tensor] if len(a.transfer) else np.zeros((1, len(tensor)))) / mean
    on_average = mean_transfer(a)[tensor] / mean
    pulled = np.bincount(target, on_average, units)
    pushed = np.bincount(source, on_average, units)
    own_bytes = np.where((a.alias < 0) & ~a.stored[a.producer], a.sizes, 0)
    held = np.bincount(unit[a.producer], own_bytes, units)
    resident = np.bincount(unit, a.resident, units)
    workspace = np.zeros(units)
    np.maximum.at(workspace, unit, a.workspace)
    last = np.arange(units)
    np.maximum.at(last, source, target)
    last[unit[a.producer[a.kept]]] = units - 1
    room = max(float(a.capacity[~a.host].mean() if (~a.host).any() else a.capacity.mean()), 1.0)
    longest = max(float((rank + before).max()), 1e-30)
    slow = np.where(legal, seconds, 0).max(axis=1) / np.maximum(fastest, 1e-3 * mean)
    heaviest = _heaviest(a, unit, leader)
    own = fastest / mean + pulled + pushed
    told = [
        np.log1p(fastest / mean),
        np.log1p(pulled),
        np.log1p(pushed),
        np.log1p(resident * units / room),
        np.log1p(held * units / room),
        np.log1p(workspace * units / room),
        np.log1p(np.bincount(target, minlength=units)),
        np.log1p(np.bincount(source, minlength=units)),
        before[leader] / longest,
        rank[leader] / longest,
        1 - (before + rank)[leader] / longest,
        np.arange(units) / units,
        *_phases(problem, unit).T,
        (legal.sum(axis=1) == 1).astype(float),
        np.log1p(np.bincount(unit, a.turn, units)),
        np.log(np.maximum(slow, 1.0)),
        *_layers(problem)[:, leader],
    ]
    total = fastest.sum()
    devices = np.where(legal, seconds, 0).sum(axis=0)
    speed = np.log(
        np.maximum(devices, 1e-30) / max(float(devices[devices > 0].min(initial=np.inf)), 1e-30)
    )
    speed = np.clip(np.nan_to_num(speed, neginf=0.0), 0.0, 8.0)
    need = resident.sum() + held.sum()
    capacity = np.maximum(a.capacity.astype(float), 1.0)
    away = _away(a, tensor) / mean
    whole = [
        np.log(units) / 10,
        np.log(a.devices),
        np.log1p(on_average.sum() / max(total / mean, 1e-9)),
        np.log1p(need / capacity[~a.host].sum() if (~a.host).any() else need / capacity.sum()),
        np.log(max(total / longest, 1e-3)),
        float(problem.discipline == "ready"),
        float(problem.objective == "period"),
        float((~a.host).sum() / a.devices),
    ]
    each = [
        speed,
        a.host.astype(float),
        np.log1p(capacity / max(need / a.devices, 1.0)),
        np.log1p(away),
        np.full(a.devices, 1 / a.devices),
        (np.where(legal.any(axis=0), legal.mean(axis=0), 0.0)),
    ]
    # The order of a list schedule, and for each unit the stretch of it around its own place.
    order = np.argsort(-rank[leader], kind="stable")
    work = fastest[order] + 1e-6 * max(total, 1e-30)
    done = np.cumsum(work) - work / 2
    low, high = np.zeros((len(WINDOWS), units), np.int64), np.zeros((len(WINDOWS), units), np.int64)
    span = np.zeros((len(WINDOWS), units))
    edge = np.append(0.0, np.cumsum(work))
    for at, parts in enumerate(WINDOWS):
        half = work.sum() / parts / 2
        low[at, order] = np.searchsorted(done, done - half)
        high[at, order] = np.searchsorted(done, done + half, side="right")
        span[at] = edge[high[at]] - edge[low[at]]
    share = 1 / max(float((1 / np.maximum(devices[devices > 0], 1e-30)).sum()), 1e-30)
    kind = [zlib.crc32(problem.graph.ops[op].kind.encode()) % KINDS for op in heaviest.tolist()]
    return {
        "kind": np.array(kind, dtype=np.int64),
        "told": np.stack(told, axis=1),
        "whole": np.array(whole),
        "each": np.stack(each, axis=1),
        "source": source,
        "target": target,
        "sent": sent,
        "mean": on_average + 0.1 * max(float(on_average.mean()) if len(source) else 0.0, 1e-6),
        "between": _classes(a),
        "sent_and_none": np.vstack([sent, np.zeros((1, len(tensor)))]),
        "link": np.where(a.link_class < 0, len(sent), a.link_class).astype(np.int64),
        "own": np.maximum(own, 1e-2),
        "seconds": seconds / mean,
        "slow": np.log(
            np.maximum(seconds, 1e-3 * mean) / np.maximum(fastest, 1e-3 * mean)[:, None]
        ),
        "share": np.array(share / mean),
        "order": order.astype(np.int64),
        "low": low,
        "high": high,
        "span": span / mean,
        "last": last.astype(np.int64),
        "resident": resident / room,
        "held": held / room,
        "capacity": capacity / room,
        "legal": legal,
    }


def _work(a: Arrays) -> NDArray[np.float64]:
    """Ops: seconds on the fastest device."""
    return np.where(a.turn, a.compute.min(axis=1), 0.0)


def _heaviest(a: Arrays, unit: NDArray[np.int64], leader: NDArray[np.int64]) -> NDArray[np.int64]:
    """Units: the op that takes longest, or the leader where none takes any time."""
    work = _work(a)
    order = np.lexsort((work, unit))
    last = np.append(np.flatnonzero(np.diff(unit[order])), len(order) - 1)
    longest = order[last]
    return np.where(work[longest] > 0, longest, leader)


def _phases(problem: Problem, unit: NDArray[np.int64]) -> NDArray[np.float64]:
    """Units × phases: the share of a unit's work."""
    a = problem.arrays
    phase = np.array([_PHASES.get(str(op.phase), 0) for op in problem.graph.ops], dtype=np.int64)
    work = _work(a) + 1e-15
    share = np.zeros((int(unit.max()) + 1, len(_PHASES)))
    np.add.at(share, (unit, phase), work)
    found: NDArray[np.float64] = share / share.sum(axis=1, keepdims=True)
    return found


def _layers(problem: Problem) -> NDArray[np.float64]:
    """Numbers × ops: where each stands among layers, by the work before it.

    As a share of all, as waves so that neighbours can be told apart, and within the stretch that a
    device would have if all had equal ones.
    """
    a = problem.arrays
    _, group = np.unique(layer_order(problem), return_inverse=True)
    work = np.bincount(group, _work(a)) + 1e-15
    done = ((np.cumsum(work) - work / 2) / work.sum())[group]
    near = int((~a.host).sum()) or a.devices
    waves = [turn(2 * np.pi * often * done) for often in _WAVES for turn in (np.sin, np.cos)]
    return np.stack([done, *waves, done * near % 1])


def _edges(a: Arrays, unit: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    """Source and target units, and tensors that pass between them, each once."""
    reader = np.repeat(np.arange(a.ops), np.diff(a.first_input))
    tensor = a.inputs.astype(np.int64)
    source, target = unit[a.producer[tensor]], unit[reader]
    apart = np.flatnonzero(source != target)
    _, first = np.unique(target[apart] * len(a.sizes) + tensor[apart], return_index=True)
    kept = apart[first]
    return source[kept], target[kept], tensor[kept]


def _classes(a: Arrays) -> NDArray[np.float64]:
    """Link classes × devices × devices: whether this link is of this class."""
    count = max(len(a.transfer), 1)
    between: NDArray[np.float64] = (a.link_class[None] == np.arange(count)[:, None, None]).astype(
        float
    )
    return between


def _away(a: Arrays, tensor: NDArray[np.int64]) -> NDArray[np.float64]:
    """Devices: the mean seconds of a tensor on links from and to it."""
    away = np.zeros(a.devices)
    if len(tensor) and len(a.transfer):
        each = a.transfer[:, tensor].mean(axis=1)
        for device in range(a.devices):
            links = np.append(a.link_class[device], a.link_class[:, device])
            links = links[links >= 0]
            away[device] = each[links].mean() if len(links) else 0.0
    return away
