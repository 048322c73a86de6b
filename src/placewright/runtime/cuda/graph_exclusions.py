"""Ops that are left out of CUDA graphs because of the memory they would take.

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
    alias_chain,
    last_uses,
    storage_roots,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from placewright.graph import Graph, Tensor

LARGE_OUTPUT_BYTES = 64 << 20
"""Bytes of an output that is not copied: more than graphs hold beside it."""
MAX_TAIL_OPS = 8
"""Ops at the end of a step that may be issued one by one."""
LARGE_TRANSFER_BYTES = 8 << 20
"""Bytes whose transfer takes many times as long as an op's start."""


def large_output_ops(graph: Graph) -> frozenset[int]:
    """The ops that make a large output, or are a view of it; none if there are others after them.

    Such as gradients, which are made all along a step.
    """
    ops: set[int] = set()
    for tensor in graph.outputs or ():
        if graph.ops[tensor[0]].outputs[tensor[1]] >= LARGE_OUTPUT_BYTES:
            ops |= {op for op, _ in alias_chain(graph, tensor)}
    tail_start = len(graph) - MAX_TAIL_OPS
    return frozenset() if any(op < tail_start for op in ops) else frozenset(ops)


def large_transfer_ops(
    graph: Graph,
    placement: Sequence[int],
    scheduled: Collection[int],
    reads: Iterable[tuple[int, Tensor]],
    sends: Iterable[Tensor],
) -> set[int]:
    """The ops that read or make something large that goes from device to device, and their like.

    Args:
        scheduled: The ops that take a turn in a step; stored tensors do not.
        reads: Ops, and what they read that was made or received in the step.
        sends: What goes to other devices.
    """

    def is_large(op: int, output: int) -> bool:
        return graph.ops[op].outputs[output] >= LARGE_TRANSFER_BYTES

    ops = {
        position
        for position, tensor in reads
        for op, output in alias_chain(graph, tensor)  # it may be a view of what came
        if placement[op] != placement[position] and is_large(op, output)
    }
    for tensor in sends:
        if is_large(*tensor):
            producers = {op for op, _ in alias_chain(graph, tensor)}
            ops |= {
                op for op in producers if op in scheduled and placement[op] == placement[tensor[0]]
            }
    return ops | {op for op in adjacent_ops(graph, ops) if op in scheduled}


def adjacent_ops(graph: Graph, large_ops: Collection[int]) -> set[int]:
    """The ops that make or read something large that such an op reads or makes.

    Otherwise it would have a place for good where a graph meets what is issued one by one.
    """
    adjacent = set()
    for position, op in enumerate(graph.ops):
        for tensor in op.inputs:
            for source, output in alias_chain(graph, tensor):
                if graph.ops[source].outputs[output] >= LARGE_TRANSFER_BYTES:
                    adjacent |= {source} if position in large_ops else set()
                    adjacent |= {position} if source in large_ops else set()
    return adjacent


def graph_resident_bytes(graph: Graph, workspace: Sequence[int] | None = None) -> int:
    """Bytes that graphs keep while those ops run: the most that is in use at once before them.

    Args:
        workspace: Bytes that each op needs for itself while it runs.
    """
    excluded = large_output_ops(graph)
    excluded_tensors = {
        (op, output) for op in excluded for output in range(len(graph.ops[op].outputs))
    }
    root_of = storage_roots(graph)
    last_use = last_uses(graph, root_of)
    live_bytes = peak = 0
    freed_after: dict[int, int] = {}
    for position, op in enumerate(graph.ops):
        for output, size in enumerate(op.outputs):
            tensor = position, output
            if (
                op.kind not in (INPUT, STATE, WEIGHT)
                and root_of[tensor] == tensor not in excluded_tensors
            ):
                live_bytes += size
                freed_after[last_use[tensor]] = freed_after.get(last_use[tensor], 0) + size
        workspace_bytes = (
            0 if workspace is None or position in excluded else int(workspace[position])
        )
        peak = max(peak, live_bytes + workspace_bytes)
        live_bytes -= freed_after.get(position, 0)
    return peak
