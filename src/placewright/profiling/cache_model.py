"""Models the processor cache: which tensors an op meets cold.

What the op before has just made is warm. An activation that a backward pass reads again is not, if
more has been made meanwhile than a cache holds. What an op makes goes where something else was: it
is warm if that was freed just now, as in a forward pass that keeps nothing, and cold if it was the
step before, as in one that keeps all for its backward pass.
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
"""One part in so many of a cache is taken to hold what was made last; the rest, what was read."""


@dataclass(frozen=True)
class CacheState:
    """Of one op.

    Args:
        cold_inputs: Whether each is cold.
        cold_outputs: Whether what it makes is.
    """

    cold_inputs: tuple[bool, ...]
    cold_outputs: bool

    def __str__(self) -> str:
        return "".join(
            "c" if is_cold else "-" for is_cold in (*self.cold_inputs, self.cold_outputs)
        )


def cache_states(graph: Graph, cache: int) -> list[CacheState]:
    """Of every op, run in the graph's own order on one device with so large a cache."""
    threshold = cache // CACHE_DIVISOR
    bytes_before = _bytes_before(graph)
    reuse_distance = _reuse_distances(graph, bytes_before)

    def is_cold(source: int, at: int) -> bool:
        if graph.ops[source].kind in (WEIGHT, STATE):
            return True
        own_bytes = (
            bytes_before[source + 1] - bytes_before[source]
        )  # half of which passed after its middle was made
        return bytes_before[at] - bytes_before[source + 1] + own_bytes // 2 > threshold

    return [
        CacheState(
            tuple(is_cold(source, at) for source, _ in op.inputs), reuse_distance[at] > threshold
        )
        for at, op in enumerate(graph.ops)
    ]


def _bytes_before(graph: Graph) -> list[int]:
    """Bytes that have passed through a cache before each op, and in the end: made, or weights."""
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
    """What an op makes in memory of its own: outputs and their bytes."""
    if op.kind in (INPUT, STATE, WEIGHT):
        return []
    aliased = {output for output, _ in op.aliases}
    return [(at, size) for at, size in enumerate(op.outputs) if size and at not in aliased]


def _reuse_distances(graph: Graph, bytes_before: list[int]) -> list[int]:
    """Bytes that have passed since the memory was last used that each op writes to, at most.

    In a step that follows one like it. Memory is given out as an allocator does that keeps all: of
    the free pieces that are large enough the smallest, and of those the one that was freed last.
    """
    freed_sizes = _freed_sizes(graph)
    free_blocks: list[tuple[int, int]] = []  # bytes, and how many had passed when last used
    distances = [0] * len(graph.ops)
    for step_start in (0, bytes_before[-1]):
        for at, op in enumerate(graph.ops):
            distances[at] = 0
            for _, size in _owned_outputs(op):
                index = bisect_left(free_blocks, (size, 0))
                if index == len(free_blocks):  # memory of its own, used in the step before
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
    """The sizes of what each op is the last to use, views of it included."""
    last_user = last_uses(graph, storage_roots(graph))
    sizes: list[list[int]] = [[] for _ in graph.ops]
    for at, op in enumerate(graph.ops):
        for output, size in _owned_outputs(op):
            sizes[last_user[at, output]].append(size)
    return sizes
