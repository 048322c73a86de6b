"""Accelerate: a problem in, what `device_map="auto"` of Hugging Face Accelerate would do out.

The default that people use today, for comparison. It looks at weight bytes only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from placewright.plan import NO_STAGING
from placewright.transforms.bundles import accelerators

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placewright.cluster import Cluster, Link
    from placewright.costs import CostModel, FusedParts, Seconds
    from placewright.graph import Graph
    from placewright.problem import Problem
    from placewright.solvers.search import Search

_TRIES = 4  # a person whose model runs out of memory lowers `max_memory` and tries again


@dataclass(frozen=True)
class Accelerate:
    """Weights in graph order to one accelerator after another until it is full, then to the host.

    Ops run where their weights are; those whose weights are on the host run on the first
    accelerator, and each weight is copied there just before its op, nothing ahead: the staging room
    holds one op's weights. These copies are synchronous and from pageable memory, which is slower
    than the link. As in the original, room for the largest layer is left on the first accelerator.

    Args:
        copy_rate: Bytes a second of such a copy. Calibrated: 16 transformer blocks on an H200, ten
            of them on the host, took 591 ms a step, which is 6.3 GB/s on a link of 55 GB/s.
    """

    copy_rate: float = 6.3e9
    name = "accelerate"

    def as_run(self, problem: Problem) -> Problem:
        """The problem as Accelerate's runtime runs it: weights are copied slowly."""
        return replace(problem, costs=_Synchronous(problem.costs, self.copy_rate))

    def run(self, search: Search) -> None:
        a = search.problem.arrays
        kept_back = np.zeros(a.devices, dtype=np.int64)
        for _ in range(_TRIES):
            device, staging = _fill(search.problem, kept_back)
            verdict = search.judge(device, staging=staging)
            if search.over:
                return
            over = np.maximum(verdict.peak[0] - a.capacity, 0)
            if not over.any():
                return
            kept_back = 2 * kept_back + np.where(over, np.maximum(over, a.capacity // 32), 0)


def _fill(
    problem: Problem, kept_back: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    a, host = problem.arrays, problem.cluster.host
    order = accelerators(problem).tolist()
    room = np.maximum(a.capacity - kept_back, 0)
    needs = _weights_read_first(problem)
    largest = max((sum(int(a.resident[w]) for w in ws) for ws in needs.values()), default=0)
    if sum(int(size) for size in a.resident) > room[order[0]]:
        room[order[0]] -= largest
    device = np.full(a.ops, -1, dtype=np.int32)
    at, used, staged = 0, 0, 0
    for op in np.flatnonzero(a.turn).tolist():
        weights = needs.get(op, [])
        size = int(a.resident[op]) + sum(int(a.resident[weight]) for weight in weights)
        if weights:
            while at < len(order) and used + size > room[order[at]]:
                at, used = at + 1, 0
            used += size
        if at < len(order):
            device[weights] = device[op] = order[at]
        else:
            device[op] = order[0]
            device[weights] = order[-1] if host is None else host
            staged = max(staged, sum(int(a.resident[weight]) for weight in weights))
    device = np.where(device < 0, device[a.leader], device)
    device = np.where(device < 0, 0, device)[a.head]
    legal = a.allowed[np.arange(a.ops), device]
    device = np.where(legal, device, a.allowed.argmax(axis=1)).astype(np.int32)
    staging = np.full(a.devices, NO_STAGING, dtype=np.int64)
    if staged:
        staging[order[0]] = max(staged, _most_streamed(problem, device, order[0]))
    return device, staging


def _weights_read_first(problem: Problem) -> dict[int, list[int]]:
    """The weights that each op is the first to read, views of weights among them."""
    a = problem.arrays
    first: dict[int, list[int]] = {}
    taken = np.zeros(a.ops, dtype=bool)
    units: dict[int, list[int]] = {}
    for weight in np.flatnonzero(a.weight).tolist():
        units.setdefault(int(a.head[weight]), []).append(weight)
    for op in np.flatnonzero(a.turn).tolist():
        for tensor in a.inputs[a.first_input[op] : a.first_input[op + 1]]:
            source = int(a.producer[tensor])
            if a.weight[source] and not taken[source]:
                members = units[int(a.head[source])]
                taken[members] = True
                first.setdefault(op, []).extend(members)
    return first


def _most_streamed(problem: Problem, device: NDArray[np.int32], place: int) -> int:
    """The most bytes of weights from elsewhere that one op on this device reads."""
    a = problem.arrays
    reader = np.repeat(np.arange(a.ops), np.diff(a.first_input))
    source = a.producer[a.inputs]
    apart = (
        a.weight[source] & a.turn[reader] & (device[reader] == place) & (device[source] != place)
    )
    sums = np.bincount(reader[apart], weights=a.sizes[a.inputs[apart]], minlength=1)
    return int(sums.max())


@dataclass(frozen=True, eq=False)
class _Synchronous:
    """The given costs, with weights copied no faster than `rate`."""

    base: CostModel
    rate: float

    def op_seconds(self, graph: Graph, cluster: Cluster) -> Seconds:
        return self.base.op_seconds(graph, cluster)

    def transfer_seconds(self, graph: Graph, links: Sequence[Link]) -> Seconds:
        seconds = self.base.transfer_seconds(graph, links)
        kinds = [(op.kind, size) for op in graph.ops for size in op.outputs]
        copied = np.array([size if kind in ("weight", "view") else 0 for kind, size in kinds])
        slow: Seconds = np.maximum(seconds, copied / self.rate)
        return slow

    def fused_parts(self, graph: Graph, cluster: Cluster) -> FusedParts:
        return self.base.fused_parts(graph, cluster)
