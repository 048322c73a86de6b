"""Tensor liveness: aliasing, and the last op that uses each storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placewright.graph import Graph, Tensor


def alias_chain(graph: Graph, tensor: Tensor) -> list[Tensor]:
    """A tensor and the tensors that it aliases, one after the other; the last owns the memory."""
    chain = [tensor]
    while True:
        op, output = chain[-1]
        source = dict(graph.ops[op].aliases).get(output)
        if source is None:
            return chain
        chain.append(graph.ops[op].inputs[source])


def storage_roots(graph: Graph) -> dict[Tensor, Tensor]:
    """The tensor that owns each tensor's memory."""
    root_of: dict[Tensor, Tensor] = {}
    for position, op in enumerate(graph.ops):
        source = dict(op.aliases)
        for output in range(len(op.outputs)):
            tensor = position, output
            root_of[tensor] = root_of[op.inputs[source[output]]] if output in source else tensor
    return root_of


def last_uses(graph: Graph, root_of: Mapping[Tensor, Tensor]) -> dict[Tensor, int]:
    """The last op that writes or reads each storage."""
    last_use: dict[Tensor, int] = {}
    for position, op in enumerate(graph.ops):
        for tensor in (*op.inputs, *((position, output) for output in range(len(op.outputs)))):
            last_use[root_of[tensor]] = position
    return last_use
