"""Places like Hugging Face Accelerate's `device_map="auto"`, for comparison.

This is the usual default today. It counts the bytes of weights only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from placewright.plan import NO_STAGING
from placewright.solvers.memory_retry import best_overflow, place_with_margin
from placewright.transforms.bundles import accelerators

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placewright.cluster import Cluster, Link
    from placewright.costs import CostModel, FusedParts, Seconds
    from placewright.graph import Graph
    from placewright.problem import Problem
    from placewright.solvers.search import Search

_MAX_ATTEMPTS = 4  # as a user who runs out of memory lowers `max_memory` and tries again


@dataclass(frozen=True)
class Accelerate:
    """Weights in graph order to one accelerator after another until it is full, then to the host.

    Ops run where their weights are; those whose weights are on the host run on the first
    accelerator, and each weight is copied there just before its op, without prefetching: the
    staging buffer holds one op's weights. These copies are synchronous and from pageable memory,
    which is slower than the link. As in the original, the first accelerator keeps free memory for
    the largest layer.

    Args:
        copy_rate: Bytes per second of such a copy. Calibrated: 16 transformer blocks on an H200,
            ten of them on the host, took 591 ms per step: 6.3 GB/s on a link of 55 GB/s.
    """

    copy_rate: float = 6.3e9
    name = "accelerate"

    def as_executed(self, problem: Problem) -> Problem:
        """The problem as Accelerate's runtime runs it: weights are copied slowly."""
        return replace(problem, costs=_SynchronousCopies(problem.costs, self.copy_rate))

    def run(self, search: Search) -> None:
        capacity = search.problem.arrays.capacity

        def place(margin: NDArray[np.int64]) -> NDArray[np.int64]:
            placement, staging = _fill(search.problem, margin)
            return best_overflow(search.judge(placement, staging=staging), capacity)

        place_with_margin(search, place, _MAX_ATTEMPTS, parts=32)


def _fill(
    problem: Problem, memory_margin: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    a, host = problem.arrays, problem.cluster.host
    order = accelerators(problem).tolist()
    free_bytes = np.maximum(a.capacity - memory_margin, 0)
    weights_of = _weights_by_first_reader(problem)
    largest_bytes = max(
        (sum(int(a.resident[w]) for w in ws) for ws in weights_of.values()), default=0
    )
    if sum(int(size) for size in a.resident) > free_bytes[order[0]]:
        free_bytes[order[0]] -= largest_bytes
    placement = np.full(a.ops, -1, dtype=np.int32)
    current, used_bytes, staged_bytes = 0, 0, 0
    for op in np.flatnonzero(a.scheduled).tolist():
        weights = weights_of.get(op, [])
        size = int(a.resident[op]) + sum(int(a.resident[weight]) for weight in weights)
        if weights:
            while current < len(order) and used_bytes + size > free_bytes[order[current]]:
                current, used_bytes = current + 1, 0
            used_bytes += size
        if current < len(order):
            placement[weights] = placement[op] = order[current]
        else:
            placement[op] = order[0]
            placement[weights] = order[-1] if host is None else host
            staged_bytes = max(staged_bytes, sum(int(a.resident[weight]) for weight in weights))
    placement = np.where(placement < 0, placement[a.leader], placement)
    placement = np.where(placement < 0, 0, placement)[a.unit_head]
    is_allowed = a.allowed[np.arange(a.ops), placement]
    placement = np.where(is_allowed, placement, a.allowed.argmax(axis=1)).astype(np.int32)
    staging = np.full(a.devices, NO_STAGING, dtype=np.int64)
    if staged_bytes:
        staging[order[0]] = max(staged_bytes, int(a.required_staging(placement)[order[0]]))
    return placement, staging


def _weights_by_first_reader(problem: Problem) -> dict[int, list[int]]:
    """The weights that each op is the first to read, views of weights among them."""
    a = problem.arrays
    weights_of: dict[int, list[int]] = {}
    is_assigned = np.zeros(a.ops, dtype=bool)
    unit_weights: dict[int, list[int]] = {}
    for weight in np.flatnonzero(a.is_weight).tolist():
        unit_weights.setdefault(int(a.unit_head[weight]), []).append(weight)
    for op in np.flatnonzero(a.scheduled).tolist():
        for tensor in a.inputs[a.first_input[op] : a.first_input[op + 1]]:
            weight_op = int(a.producer[tensor])
            if a.is_weight[weight_op] and not is_assigned[weight_op]:
                members = unit_weights[int(a.unit_head[weight_op])]
                is_assigned[members] = True
                weights_of.setdefault(op, []).extend(members)
    return weights_of


@dataclass(frozen=True, eq=False)
class _SynchronousCopies:
    """The base costs, with weights copied no faster than `copy_rate`."""

    base: CostModel
    copy_rate: float

    def op_seconds(self, graph: Graph, cluster: Cluster) -> Seconds:
        return self.base.op_seconds(graph, cluster)

    def transfer_seconds(self, graph: Graph, links: Sequence[Link]) -> Seconds:
        seconds = self.base.transfer_seconds(graph, links)
        outputs = [(op.kind, size) for op in graph.ops for size in op.outputs]
        copied_bytes = np.array(
            [size if kind in ("weight", "view") else 0 for kind, size in outputs]
        )
        slowed: Seconds = np.maximum(seconds, copied_bytes / self.copy_rate)
        return slowed

    def fused_parts(self, graph: Graph, cluster: Cluster) -> FusedParts:
        return self.base.fused_parts(graph, cluster)
