"""A graph in, whose memory each of its tensors is, and which op uses that last, out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placewright.graph import Graph, Tensor


def memory_of(graph: Graph, tensor: Tensor) -> list[Tensor]:
    """A tensor, and those whose memory it is in turn: the last one has it of its own."""
    found = [tensor]
    while True:
        op, output = found[-1]
        source = dict(graph.ops[op].aliases).get(output)
        if source is None:
            return found
        found.append(graph.ops[op].inputs[source])


def owners(graph: Graph) -> dict[Tensor, Tensor]:
    """For each tensor the one whose memory it is, in the end."""
    found: dict[Tensor, Tensor] = {}
    for at, op in enumerate(graph.ops):
        source = dict(op.aliases)
        for output in range(len(op.outputs)):
            tensor = at, output
            found[tensor] = found[op.inputs[source[output]]] if output in source else tensor
    return found


def last_users(graph: Graph, owner: Mapping[Tensor, Tensor]) -> dict[Tensor, int]:
    """The last op that makes or reads what is in each owner's memory."""
    found: dict[Tensor, int] = {}
    for at, op in enumerate(graph.ops):
        for tensor in (*op.inputs, *((at, output) for output in range(len(op.outputs)))):
            found[owner[tensor]] = at
    return found
