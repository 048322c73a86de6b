"""A program and a cache in, which tensors an op meets in memory rather than in that cache out.

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
from placewright.transforms.liveness import last_users, owners

if TYPE_CHECKING:
    from placewright.graph import Graph, Op

SHARE = 4
"""One part in so many of a cache is taken to hold what was made last; the rest, what was read."""


@dataclass(frozen=True)
class Coldness:
    """Of one op.

    Args:
        inputs: Whether each is cold.
        outputs: Whether what it makes is.
    """

    inputs: tuple[bool, ...]
    outputs: bool

    def __str__(self) -> str:
        return "".join("c" if one else "-" for one in (*self.inputs, self.outputs))


def coldness(graph: Graph, cache: int) -> list[Coldness]:
    """Of every op, run in the graph's own order on one device with so large a cache."""
    far = cache // SHARE
    passed = _passed(graph)
    since = _written_over(graph, passed)

    def cold(source: int, at: int) -> bool:
        if graph.ops[source].kind in (WEIGHT, STATE):
            return True
        own = passed[source + 1] - passed[source]  # half of which passed after its middle was made
        return passed[at] - passed[source + 1] + own // 2 > far

    return [
        Coldness(tuple(cold(source, at) for source, _ in op.inputs), since[at] > far)
        for at, op in enumerate(graph.ops)
    ]


def _passed(graph: Graph) -> list[int]:
    """Bytes that have passed through a cache before each op, and in the end: made, or weights."""
    found = [0]
    for op in graph.ops:
        read = sum(
            graph.ops[source].outputs[output]
            for source, output in dict.fromkeys(op.inputs)
            if graph.ops[source].kind in (WEIGHT, STATE)
        )
        found.append(found[-1] + read + sum(size for _, size in _made(op)))
    return found


def _made(op: Op) -> list[tuple[int, int]]:
    """What an op makes in memory of its own: outputs and their bytes."""
    if op.kind in (INPUT, STATE, WEIGHT):
        return []
    others = {output for output, _ in op.aliases}
    return [(at, size) for at, size in enumerate(op.outputs) if size and at not in others]


def _written_over(graph: Graph, passed: list[int]) -> list[int]:
    """Bytes that have passed since the memory was last used that each op writes to, at most.

    In a step that follows one like it. Memory is given out as an allocator does that keeps all: of
    the free pieces that are large enough the smallest, and of those the one that was freed last.
    """
    freed = _freed(graph)
    pieces: list[tuple[int, int]] = []  # bytes, and how many had passed when last used
    found = [0] * len(graph.ops)
    for begun in (0, passed[-1]):
        for at, op in enumerate(graph.ops):
            found[at] = 0
            for _, size in _made(op):
                first = bisect_left(pieces, (size, 0))
                if first == len(pieces):  # memory of its own, used in the step before
                    found[at] = passed[-1]
                    continue
                largest = pieces[first][0], begun + passed[-1] + 1
                space, used = pieces.pop(bisect_left(pieces, largest) - 1)
                found[at] = max(found[at], begun + passed[at] - used)
                if space > size:
                    insort(pieces, (space - size, used))
            for size in freed[at]:
                insort(pieces, (size, begun + passed[at + 1]))
    return found


def _freed(graph: Graph) -> list[list[int]]:
    """The sizes of what each op is the last to use, views of it included."""
    last = last_users(graph, owners(graph))
    found: list[list[int]] = [[] for _ in graph.ops]
    for at, op in enumerate(graph.ops):
        for output, size in _made(op):
            found[last[at, output]].append(size)
    return found
