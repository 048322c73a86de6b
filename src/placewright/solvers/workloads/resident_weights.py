"""Chooses which weights of a workload stay on a GPU that cannot hold all of them.

The others are split between copies to the GPU and the host (`host_split`), in each call by itself.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.disjoint_sets import DisjointSets
from placewright.graph import WEIGHT
from placewright.solvers.streamed import SIZE_CAPS
from placewright.solvers.workloads.host_split import HostSplit
from placewright.transforms.bundles import accelerators

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placewright.solvers.workloads.call_plans import Residency
    from placewright.workload import Workload

Flags = NDArray[np.bool_]

RUNS = (1, 2, 3, 6, 12, 1 << 30)
"""Consecutive weights that stay or go together, where those that stay are spread evenly; with the
last the first weights stay."""
COPIES_AHEAD = (1, 1.5, 2, 3, 4)
"""Times the largest read: bytes that are left for the staging buffer."""
VALUE_STEPS = (1.3, 8.0)
"""Factors between classes of weights by seconds saved per byte: the higher class stays first."""
_SMALL_SHARE = 16  # a weight of this fraction of another goes with it if one op reads both


class ResidentWeights:
    """The weights of a workload that may be on one GPU or on the host.

    Weights that stay or go together have one number: those that must share a device, and a bias
    and its matrix.

    Args:
        device: The GPU.
        host: The host.
    """

    def __init__(self, workload: Workload, device: int, host: int) -> None:
        self.workload, self.device, self.host = workload, device, host
        self.splits = [
            HostSplit(problem, positions, device, host)
            for problem, positions in zip(workload.problems, workload.weight_positions, strict=True)
        ]
        self.number = self._join_small_weights()
        """Weights: which of them stay or go together."""
        self.count = int(self.number.max(initial=-1)) + 1
        resident = np.array([sum(op.outputs) + op.resident for op in workload.weights.values()])
        self.bytes = np.bincount(self.number, resident, self.count).astype(np.int64)
        self.value, self.first_read, self.read_bytes = self._read_figures()
        self.movable = self._movable()
        self.fixed = self._fixed_residency()
        """The devices of the weights if all that are movable are on the GPU."""

    @classmethod
    def of(cls, workload: Workload) -> ResidentWeights | None:
        """For a cluster of one GPU and hosts, where the GPU cannot hold everything."""
        problem = workload.problems[0]
        devices, host = accelerators(problem), problem.cluster.host
        if len(devices) != 1 or host is None or int(devices[0]) == host:
            return None
        weights = cls(workload, int(devices[0]), host)
        movable_bytes = int(weights.bytes[weights.movable].sum())
        return weights if weights.free_bytes < movable_bytes > 0 else None

    @cached_property
    def free_bytes(self) -> int:
        """Bytes of the GPU for movable weights and staging buffers, in every call."""
        stays = (self.fixed == self.device) & ~self.movable[self.number]
        fixed = int(self.bytes[np.unique(self.number[stays])].sum())
        return min(split.free_bytes for split in self.splits) - fixed

    def residency(self, stays: Flags) -> Residency:
        """The devices of all weights if these numbers stay on the GPU."""
        goes = (self.movable & ~stays)[self.number]
        return np.where(goes, np.int32(self.host), self.fixed)

    def selections(self) -> Iterator[Flags]:
        """Which numbers stay, by several rules: each an even spread of those worth most."""
        seen: set[bytes] = set()
        for cap in self._size_caps():
            for ahead in COPIES_AHEAD:
                for run in RUNS:
                    for step in VALUE_STEPS:
                        stays = self._select(cap, ahead, run, step)
                        if stays is not None and stays.tobytes() not in seen:
                            seen.add(stays.tobytes())
                            yield stays

    def _size_caps(self) -> list[int]:
        """Bytes above which all weights stay."""
        sizes = self.read_bytes[self.movable]
        caps = [int(sizes.max())]
        while len(caps) < SIZE_CAPS and (sizes <= caps[-1] // 2).any():
            caps.append(int(sizes[sizes <= caps[-1] // 2].max()))
        return caps

    def _select(self, cap: int, ahead: float, run: int, step: float) -> Flags | None:
        """The numbers that stay; None if they do not fit.

        Args:
            cap: Bytes of a read above which its weights stay, unless they are hardly worth it.
            ahead: Times the largest copy: bytes for the staging buffer.
            run: Consecutive weights that stay or go together.
            step: The factor between classes of seconds saved per byte.
        """
        value = self.value / np.maximum(self.bytes, 1)
        typical = float(np.sum(value * self.bytes * self.movable) / self.bytes[self.movable].sum())
        is_worth = self.movable & (value > typical / 4)
        stays = is_worth & (self.read_bytes > cap)
        copied = self.read_bytes[is_worth & ~stays]
        left = self.free_bytes - int(self.bytes[stays].sum())
        left -= int(ahead * copied.max(initial=0))
        if left < 0:
            return None
        ratio = np.maximum(value, 1e-300) / max(typical, 1e-300)
        value_class = np.round(np.log(ratio) / np.log(step))
        for each in np.unique(value_class[self.movable & ~stays])[::-1]:
            members = np.flatnonzero(self.movable & ~stays & (value_class == each))
            members = members[np.argsort(self.first_read[members], kind="stable")]
            chosen = _spread_evenly(self.bytes[members], left, run)
            stays[members[chosen]] = True
            left -= int(self.bytes[members[chosen]].sum())
        return stays

    def _read_figures(self) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        """Of each number: seconds that it saves if it stays, its first read, its largest read."""
        value, first = np.zeros(self.count), np.full(self.count, np.iinfo(np.int64).max)
        largest, ordinal = np.zeros(self.count, dtype=np.int64), 0
        for at, split in enumerate(self.splits):
            number_of = self._by_op(at, self.number)
            for read in split.reads:
                sizes: dict[int, int] = {}
                seconds: dict[int, float] = {}
                for weight, size, copy_seconds in read.weights:
                    number = number_of[weight]
                    if number >= 0:
                        sizes[number] = sizes.get(number, 0) + size
                        seconds[number] = seconds.get(number, 0.0) + copy_seconds
                on_host = read.host_seconds + read.down - read.gpu_seconds
                on_host += sum(data.up for data in read.data)
                for number, size in sizes.items():
                    saved = max(0.0, min(on_host, seconds[number]))
                    value[number] += float(self.workload.counts[at]) * saved
                    largest[number] = max(largest[number], size)
                    first[number] = min(first[number], ordinal)
                ordinal += 1
        return value, first, largest

    def _by_op(self, at: int, numbers: NDArray[np.int64]) -> list[int]:
        """The numbers of weights for each op of a call, views of weights included; else -1."""
        unit = self.workload.problems[at].arrays.unit
        by_unit = np.full(len(unit), -1, dtype=np.int64)
        by_unit[unit[self.workload.weight_positions[at]]] = numbers
        by_op: list[int] = by_unit[unit].tolist()
        return by_op

    def _join_small_weights(self) -> NDArray[np.int64]:
        groups = self.workload.weight_groups
        sets = DisjointSets(int(groups.max(initial=-1)) + 1)
        for at, split in enumerate(self.splits):
            group_of = self._by_op(at, groups)
            for read in split.reads:
                largest, most, _ = max(read.weights, key=lambda weight: weight[1])
                for weight, size, _ in read.weights:
                    if (
                        size * _SMALL_SHARE <= most
                        and min(group_of[weight], group_of[largest]) >= 0
                    ):
                        sets.merge(group_of[largest], group_of[weight])
        heads = np.array([sets.find(group) for group in groups.tolist()], dtype=np.int64)
        return np.unique(heads, return_inverse=True)[1].astype(np.int64)

    def _movable(self) -> Flags:
        """The numbers that no state, op or constraint keeps where they are."""
        movable = np.ones(self.count, dtype=bool)
        for row, op in enumerate(self.workload.weights.values()):
            movable[self.number[row]] &= op.kind == WEIGHT
        for problem, positions in zip(
            self.workload.problems, self.workload.weight_positions, strict=True
        ):
            a = problem.arrays
            has_ops = np.zeros(a.ops, dtype=bool)
            has_ops[a.unit[~a.is_weight]] = True
            may = a.allowed[positions][:, [self.device, self.host]].all(axis=1)
            np.logical_and.at(movable, self.number, may & ~has_ops[a.unit[positions]])
        return movable

    def _fixed_residency(self) -> Residency:
        a, positions = self.workload.problems[0].arrays, self.workload.weight_positions[0]
        allowed = a.allowed[positions]
        return np.where(
            allowed[:, self.device], np.int32(self.device), allowed.argmax(axis=1)
        ).astype(np.int32)


def _spread_evenly(sizes: NDArray[np.int64], free: int, run: int) -> Flags:
    """An even share of runs of consecutive weights, then what still fits."""
    chosen = np.zeros(len(sizes), dtype=bool)
    total, used, passed = int(sizes.sum()), 0, 0
    share = min(1.0, free / max(1, total))
    for start in range(0, len(sizes), run):
        size = int(sizes[start : start + run].sum())
        passed += size
        if used + size <= min(free, share * passed):
            chosen[start : start + run] = True
            used += size
    for at, size in enumerate(sizes.tolist()):
        if not chosen[at] and used + size <= free:
            chosen[at], used = True, used + size
    return chosen
