"""What GO is told: a problem in, its units, what is known of each and how they hang together out.

A unit is an op with all that must be with it, such as its weights. Units stand in the order of the
graph, so they are in topological order of the ops that lead them.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from placewright.policies.go_start import (
    alike,
    by_first_use,
    first_plans,
    mean_transfer,
    ways,
)
from placewright.transforms import nested

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.arrays import Arrays
    from placewright.problem import Problem

KINDS = 64
"""Kinds of op are told by a checksum of their name up to this, so that none is unknown."""
UNIT, GRAPH, DEVICE = 18, 8, 6
"""How many numbers tell a unit, a whole graph, and a device."""
WINDOWS = (32, 6)
"""Stretches of the order in which loads are compared, as parts of all work."""
_PHASES = {"forward": 0, "backward": 1, "update": 2}


@dataclass(frozen=True, eq=False)
class Seen:
    """A problem as GO sees it.

    Args:
        unit: Ops: the unit of each.
        legal: Units × devices.
        seconds: Units × devices: all work of a unit there.
        starts: Plans × units: what a first pass may read, devices numbered by first use.
        classes: Devices that may change places.
        rank: Ops: the mean way to the end of the graph in seconds.
        clusters: Units in groups, from fine to coarse: levels × units.
    """

    problem: Problem
    unit: NDArray[np.int64]
    leader: NDArray[np.int64]
    legal: NDArray[np.bool_]
    seconds: NDArray[np.float64]
    starts: NDArray[np.int64]
    classes: list[list[int]]
    rank: NDArray[np.float64]
    mean: float  # seconds of a mean unit on its fastest device: the unit of all times
    arrays: dict[str, NDArray[np.generic]]
    moments: dict[bytes, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    """When units run under the plans that were asked about last."""
    _on: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    _clusters: list[NDArray[np.int64]] = field(default_factory=list)

    @classmethod
    def of(cls, problem: Problem, most: int, starts: int = 1) -> Seen:
        """The problem's units; merged along heavy edges where there are more than `most`."""
        a = problem.arrays
        leader, unit = _units(problem, most)
        rank, before = ways(a)
        legal = _legal(a, unit, leader)
        compute = np.where(a.turn[:, None], a.compute, 0.0)
        columns = [np.bincount(unit, column, len(leader)) for column in compute.T]
        seconds = np.stack(columns, axis=1).astype(float)
        classes = alike(a)
        plans = first_plans(problem, rank, starts)[:, leader]
        plans = np.where(legal[np.arange(len(leader)), plans], plans, legal.argmax(axis=1))
        begin = np.stack([by_first_use(plan, classes, np.arange(len(leader))) for plan in plans])
        mean = max(float(np.where(legal, seconds, np.inf).min(axis=1).mean()), 1e-30)
        arrays = _arrays(problem, unit, leader, legal, seconds, rank, before, mean)
        return cls(
            problem,
            unit,
            leader,
            legal,
            seconds,
            begin.astype(np.int64),
            classes,
            rank,
            mean,
            arrays,
        )

    def __len__(self) -> int:
        return len(self.leader)

    @property
    def start(self) -> NDArray[np.int64]:
        """The first of them."""
        return self.starts[0]

    @property
    def clusters(self) -> list[NDArray[np.int64]]:
        if not self._clusters:
            coarser = [each for each in nested(self.problem) if len(each) < len(self)]
            self._clusters.append(np.arange(len(self)))
            self._clusters.extend(each.group[self.leader].astype(np.int64) for each in coarser)
        return self._clusters

    def on(self, where: torch.device) -> dict[str, torch.Tensor]:
        """What it holds, as tensors on a device; made once."""
        key = str(where)
        if key not in self._on:
            made = {}
            for name, values in self.arrays.items():
                kind = torch.float32 if values.dtype.kind == "f" else None
                made[name] = torch.as_tensor(values, dtype=kind, device=where)
            units = len(self)
            index = torch.stack([made["target"], made["source"]])
            for name, weights in (("into", made["sent"]), ("near", made["mean"][None])):
                for at, weight in enumerate(weights):
                    made[f"{name}{at}"] = _sparse(index, weight, units)
                    made[f"{name}{at}t"] = _sparse(index.flip(0), weight, units)
            self._on[key] = made
        return self._on[key]

    def times(
        self, start: NDArray[np.float64], end: NDArray[np.float64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Plans × ops as plans × units: the first start and the last end, in terms of a unit's.

        What takes no turn has no time of its own.
        """
        turn = self.problem.arrays.turn
        ops = np.flatnonzero(turn)
        order = ops[np.argsort(self.unit[ops], kind="stable")]
        units, first = np.unique(self.unit[order], return_index=True)
        found = np.zeros((2, len(start), len(self)), dtype=np.float32)
        if len(units):
            found[0][:, units] = np.minimum.reduceat(start[:, order], first, axis=1) / self.mean
            found[1][:, units] = np.maximum.reduceat(end[:, order], first, axis=1) / self.mean
        return found[0], found[1]

    def settle(self, device: NDArray[np.integer]) -> NDArray[np.int32]:
        """Plans × units as lawful plans × ops."""
        return self.problem.settle(device[..., self.unit])


def _units(problem: Problem, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The op that leads each unit, rising, and the unit of each op."""
    a = problem.arrays
    label = a.leader.astype(np.int64)
    if len(np.unique(label)) > most:
        levels = nested(problem)
        fitting = next((each for each in levels if len(each) <= most), levels[-1])
        first = np.full(len(fitting), a.ops)
        np.minimum.at(first, fitting.group, label)
        label = first[fitting.group]
    leader, unit = np.unique(label, return_inverse=True)
    return leader, unit.astype(np.int64)


def _legal(a: Arrays, unit: NDArray[np.int64], leader: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Units × devices: where at least one op of a unit may be; the problem settles the rest."""
    leads = np.flatnonzero(a.leader == np.arange(a.ops))
    legal = np.zeros((len(leader), a.devices), dtype=bool)
    np.logical_or.at(legal, unit[leads], a.allowed[leads])
    return legal


def _sparse(index: torch.Tensor, values: torch.Tensor, units: int) -> torch.Tensor:
    check: Any = torch.sparse.check_sparse_tensor_invariants
    with check(False):  # PyTorch warns where nobody says
        return torch.sparse_coo_tensor(index, values, (units, units)).coalesce()


def _arrays(
    problem: Problem,
    unit: NDArray[np.int64],
    leader: NDArray[np.int64],
    legal: NDArray[np.bool_],
    seconds: NDArray[np.float64],
    rank: NDArray[np.float64],
    before: NDArray[np.float64],
    mean: float,
) -> dict[str, NDArray[np.generic]]:
    """All that the network reads; seconds are in terms of a mean unit's on its fastest device."""
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
    phase = np.zeros((units, 3))
    names = [_PHASES.get(str(problem.graph.ops[op].phase), 0) for op in leader.tolist()]
    phase[np.arange(units), names] = 1.0
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
        *phase.T,
        (legal.sum(axis=1) == 1).astype(float),
        np.log1p(np.bincount(unit, a.turn, units)),
        np.log(np.maximum(slow, 1.0)),
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
    kind = [zlib.crc32(problem.graph.ops[op].kind.encode()) % KINDS for op in leader.tolist()]
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
