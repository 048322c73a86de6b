"""A program and a cache in, which tensors an op meets in memory rather than in that cache out.

What the op before has just made is warm. An activation that a backward pass reads again is not, if
more has been made meanwhile than a cache holds; and one that is kept for so long does not take the
place of one that was just freed, so to write it is no quicker than to read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from placewright.graph import STATE, WEIGHT

if TYPE_CHECKING:
    from placewright.graph import Graph

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
    made = list(accumulate((sum(op.outputs) for op in graph.ops), initial=0))
    last = list(range(len(graph.ops)))
    for at, op in enumerate(graph.ops):
        for source, _ in op.inputs:
            last[source] = max(last[source], at)
    return [
        Coldness(
            tuple(
                graph.ops[source].kind in (WEIGHT, STATE) or made[at] - made[source + 1] > far
                for source, _ in op.inputs
            ),
            made[last[at]] - made[at + 1] > far,
        )
        for at, op in enumerate(graph.ops)
    ]
