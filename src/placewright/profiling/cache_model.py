"""Models the processor cache: which tensors an op meets cold.

The output of the previous op is warm. An activation that a backward pass reads again is cold, if
more bytes than the cache holds have passed in between. An output is written to reused memory: warm
memory if it was freed recently, as in inference; cold memory if it was freed in the previous step,
as in a forward pass that keeps all activations for its backward pass.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

from placewright.graph import INPUT, STATE, WEIGHT
from placewright.transforms.liveness import last_uses, storage_roots

if TYPE_CHECKING:
    from placewright.graph import Graph, Op

CACHE_DIVISOR = 4
"""This fraction of a cache is taken to hold the latest outputs; the rest holds inputs."""


@dataclass(frozen=True)
class CacheState:
    """Which tensors of one op are cold.

    Args:
        cold_inputs: Whether each input is cold.
        cold_outputs: Whether the memory of its outputs is cold.
    """

    cold_inputs: tuple[bool, ...]
    cold_outputs: bool

    def __str__(self) -> str:
        return "".join(
            "c" if is_cold else "-" for is_cold in (*self.cold_inputs, self.cold_outputs)
        )


def cache_states(graph: Graph, cache: int) -> list[CacheState]:
    """The cache state of every op, run in the graph's order on a device with this cache."""
    threshold = cache // CACHE_DIVISOR
    bytes_before = _bytes_before(graph)
    reuse_distance = _reuse_distances(graph, bytes_before)

    def is_cold(source: int, at: int) -> bool:
        if graph.ops[source].kind in (WEIGHT, STATE):
            return True
        # On average half of a tensor's own bytes pass after one of its bytes was written.
        own_bytes = bytes_before[source + 1] - bytes_before[source]
        return bytes_before[at] - bytes_before[source + 1] + own_bytes // 2 > threshold

    return [
        CacheState(
            tuple(is_cold(source, at) for source, _ in op.inputs), reuse_distance[at] > threshold
        )
        for at, op in enumerate(graph.ops)
    ]


def _bytes_before(graph: Graph) -> list[int]:
    """Bytes of outputs and weights that pass through a cache before each op, and in total."""
    totals = [0]
    for op in graph.ops:
        weight_bytes = sum(
            graph.ops[source].outputs[output]
            for source, output in dict.fromkeys(op.inputs)
            if graph.ops[source].kind in (WEIGHT, STATE)
        )
        totals.append(totals[-1] + weight_bytes + sum(size for _, size in _owned_outputs(op)))
    return totals


def _owned_outputs(op: Op) -> list[tuple[int, int]]:
    """Outputs that an op allocates, and their bytes."""
    if op.kind in (INPUT, STATE, WEIGHT):
        return []
    aliased = {output for output, _ in op.aliases}
    return [(at, size) for at, size in enumerate(op.outputs) if size and at not in aliased]


def _reuse_distances(graph: Graph, bytes_before: list[int]) -> list[int]:
    """Bytes that have passed since the memory of each op's outputs was last used, at most.

    In a step that follows an equal one. Memory is allocated as by an allocator that retains all:
    the smallest free block that is large enough, and of these the one that was freed last.
    """
    freed_sizes = _freed_sizes(graph)
    free_blocks: list[tuple[int, int]] = []  # size, and bytes that had passed at its last use
    distances = [0] * len(graph.ops)
    for step_start in (0, bytes_before[-1]):
        for at, op in enumerate(graph.ops):
            distances[at] = 0
            for _, size in _owned_outputs(op):
                index = bisect_left(free_blocks, (size, 0))
                if index == len(free_blocks):  # its own memory, last used in the previous step
                    distances[at] = bytes_before[-1]
                    continue
                upper_key = free_blocks[index][0], step_start + bytes_before[-1] + 1
                block_size, last_used = free_blocks.pop(bisect_left(free_blocks, upper_key) - 1)
                distances[at] = max(distances[at], step_start + bytes_before[at] - last_used)
                if block_size > size:
                    insort(free_blocks, (block_size - size, last_used))
            for size in freed_sizes[at]:
                insort(free_blocks, (size, step_start + bytes_before[at + 1]))
    return distances


def _freed_sizes(graph: Graph) -> list[list[int]]:
    """Sizes of the tensors that each op is the last to use, through views or directly."""
    last_user = last_uses(graph, storage_roots(graph))
    sizes: list[list[int]] = [[] for _ in graph.ops]
    for at, op in enumerate(graph.ops):
        for output, size in _owned_outputs(op):
            sizes[last_user[at, output]].append(size)
    return sizes
