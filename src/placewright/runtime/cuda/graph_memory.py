"""Ops that are left out of CUDA graphs because of the memory they would take.

A replay overwrites the outputs of the replay before, so outputs are copied before the caller gets
them. For a large output, such as the logits of a long prompt, that would take its memory twice; so
the few ops that compute it are issued one by one after the graph. Tensors that a graph receives
from other devices, or computes for them, keep their memory permanently. So the ops that read or
compute a large tensor that goes from device to device, such as the gradient of an embedding, are
issued one by one, too: next to its transfer their launch is short.
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
"""Bytes of an output that is too large to be copied."""
MAX_TAIL_OPS = 8
"""Ops at the end of a step that may be issued one by one."""
LARGE_TRANSFER_BYTES = 8 << 20
"""Bytes whose transfer takes many times as long as an op's launch."""


def large_output_ops(graph: Graph) -> frozenset[int]:
    """The ops that compute a large output, or a view of it, if they are the last of the step.

    None otherwise: gradients, for example, are computed all along a step.
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
    """The ops that read or compute a large tensor that goes from device to device.

    With those that share a large tensor with them (`adjacent_ops`).

    Args:
        scheduled: The ops that run in a step; resident tensors are not.
        reads: Ops, and the tensors they read that were computed or received in the step.
        sends: Tensors that go to other devices.
    """

    def is_large(op: int, output: int) -> bool:
        return graph.ops[op].outputs[output] >= LARGE_TRANSFER_BYTES

    ops = {
        position
        for position, tensor in reads
        for op, output in alias_chain(graph, tensor)  # it may be a view of the received tensor
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
    """The ops that compute or read a large tensor which one of `large_ops` reads or computes.

    Otherwise that tensor would keep its memory permanently, as input or output of a graph.
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
    """Bytes that graphs keep while excluded ops run: the peak of all ops before them.

    Args:
        workspace: Bytes of workspace of each op.
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
