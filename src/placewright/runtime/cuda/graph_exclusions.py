"""A graph in, the ops out that are left out of CUDA graphs for the memory that would take.

What a captured run of ops makes, its next replay overwrites, so it is copied before it is handed
out. Of a large output, such as the logits of a long prompt, that would be as much memory again; so
the few ops that make it are issued one by one after the graph. What a graph reads from elsewhere,
or makes for others, has a place of its own for good; so the ops that read or make what is large and
goes from device to device, such as the gradient of an embedding, are issued one by one, too: next
to its transfer their start is nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.graph import INPUT, STATE, WEIGHT
from placewright.transforms.liveness import (
    last_users,
    memory_of,
    owners,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from placewright.graph import Graph, Tensor

LARGE = 64 << 20
"""Bytes of an output that is not copied: more than graphs hold beside it."""
LAST = 8
"""Ops at the end of a step that may be issued one by one."""
BULKY = 8 << 20
"""Bytes whose transfer takes many times as long as an op's start."""


def handed_out(graph: Graph) -> frozenset[int]:
    """The ops that make a large output, or are a view of it; none if there are others after them.

    Such as gradients, which are made all along a step.
    """
    found: set[int] = set()
    for tensor in graph.outputs or ():
        if graph.ops[tensor[0]].outputs[tensor[1]] >= LARGE:
            found |= {op for op, _ in memory_of(graph, tensor)}
    early = len(graph) - LAST
    return frozenset() if any(op < early for op in found) else frozenset(found)


def bulky_ops(
    graph: Graph,
    device: Sequence[int],
    turns: Collection[int],
    read: Iterable[tuple[int, Tensor]],
    sent: Iterable[Tensor],
) -> set[int]:
    """The ops that read or make something large that goes from device to device, and their like.

    Args:
        turns: The ops that take a turn in a step; stored tensors do not.
        read: Ops, and what they read that was made or received in the step.
        sent: What goes to other devices.
    """

    def large(op: int, output: int) -> bool:
        return graph.ops[op].outputs[output] >= BULKY

    found = {
        position
        for position, tensor in read
        for op, output in memory_of(graph, tensor)  # it may be a view of what came
        if device[op] != device[position] and large(op, output)
    }
    for tensor in sent:
        if large(*tensor):
            makers = {op for op, _ in memory_of(graph, tensor)}
            found |= {op for op in makers if op in turns and device[op] == device[tensor[0]]}
    return found | {op for op in beside_bulky(graph, found) if op in turns}


def beside_bulky(graph: Graph, bulky: Collection[int]) -> set[int]:
    """The ops that make or read something large that such an op reads or makes.

    Otherwise it would have a place for good where a graph meets what is issued one by one.
    """
    found = set()
    for position, op in enumerate(graph.ops):
        for tensor in op.inputs:
            for source, output in memory_of(graph, tensor):
                if graph.ops[source].outputs[output] >= BULKY:
                    found |= {source} if position in bulky else set()
                    found |= {position} if source in bulky else set()
    return found


def held_beside(graph: Graph, workspace: Sequence[int] | None = None) -> int:
    """Bytes that graphs keep while those ops run: the most that is in use at once before them.

    Args:
        workspace: Bytes that each op needs for itself while it runs.
    """
    handed = handed_out(graph)
    apart = {(op, output) for op in handed for output in range(len(graph.ops[op].outputs))}
    owner = owners(graph)
    last = last_users(graph, owner)
    alive = most = 0
    ending: dict[int, int] = {}
    for position, op in enumerate(graph.ops):
        for output, size in enumerate(op.outputs):
            tensor = position, output
            if op.kind not in (INPUT, STATE, WEIGHT) and owner[tensor] == tensor not in apart:
                alive += size
                ending[last[tensor]] = ending.get(last[tensor], 0) + size
        own = 0 if workspace is None or position in handed else int(workspace[position])
        most = max(most, alive + own)
        alive -= ending.get(position, 0)
    return most
