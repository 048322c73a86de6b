"""A graph in, the layers of the decoder that it is out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import PlanError
from placewright.graph import WEIGHT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.graph import Graph

_LAYER = re.compile(r"^(?:(.*?)\.)?(\d+)(?:\.|$)")
INPUT_SIDE, OUTPUT_SIDE = -1, -2
LARGE = 0.1  # share of the weights from which on a second stack of layers counts


@dataclass(frozen=True, eq=False)
class Layers:
    """The repeated layers of a decoder.

    Args:
        prefix: The path of their list, such as `model.layers`.
        count: How many there are.
        of: Each op's layer; what comes before the first is INPUT_SIDE, after the last OUTPUT_SIDE.
    """

    prefix: str
    count: int
    of: NDArray[np.int64]

    def folded(self) -> NDArray[np.int64]:
        """Each op's layer, with what comes before in the first and what comes after in the last."""
        ends = np.where(self.of == INPUT_SIDE, 0, self.count - 1)
        return np.where(self.of >= 0, self.of, ends)


def decoder_layers(graph: Graph, target: str) -> Layers:
    """The layers of a graph, as its module paths tell them.

    Raises:
        PlanError: It has no list of layers, or several, or is a training step.
    """
    if any(op.phase != "forward" for op in graph.ops):
        raise PlanError(f"graph {graph.name!r} is a training step: {target} runs inference alone")
    stacks: dict[str, int] = {}
    total = 0
    for op in graph.ops:
        if op.kind == WEIGHT:
            total += sum(op.outputs)
            found = _LAYER.match(op.module)
            if found:
                prefix = found[1] or ""
                stacks[prefix] = stacks.get(prefix, 0) + sum(op.outputs)
    large = sorted(prefix for prefix, size in stacks.items() if size > LARGE * total)
    if not large:
        raise PlanError(
            f"graph {graph.name!r} has no numbered layers: {target} takes decoder models, "
            "whose modules are named such as 'model.layers.0.mlp'"
        )
    if len(large) > 1:
        raise PlanError(
            f"graph {graph.name!r} has layers in {large[0]!r} and in {large[1]!r}: {target} takes "
            "decoder models, which have one list of them"
        )
    return _numbered(graph, large[0], target)


def _numbered(graph: Graph, prefix: str, target: str) -> Layers:
    own = np.full(len(graph), -1, dtype=np.int64)
    numbers: set[int] = set()
    for position, op in enumerate(graph.ops):
        found = _LAYER.match(op.module)
        if found and (found[1] or "") == prefix:
            own[position] = int(found[2])
            numbers.add(int(found[2]))
    if numbers != set(range(len(numbers))):
        raise PlanError(
            f"the layers of {prefix!r} are numbered {sorted(numbers)[:8]}: {target} expects 0 to "
            f"{len(numbers) - 1}"
        )
    turns = [at for at in range(len(graph)) if own[at] >= 0 and graph.ops[at].inputs]
    first, last = (turns[0], turns[-1]) if turns else (0, 0)
    of = own.copy()
    now = 0
    for position, op in enumerate(graph.ops):
        if own[position] >= 0:
            now = int(own[position]) if op.inputs else now
        elif op.inputs:  # between two layers it belongs to the one before
            of[position] = _side(position, first, last, now)
        else:
            of[position] = _side(_first_reader(graph, position), first, last, now)
    return Layers(prefix, len(numbers), of)


def _side(position: int, first: int, last: int, now: int) -> int:
    if position < first:
        return INPUT_SIDE
    return OUTPUT_SIDE if position > last else now


def _first_reader(graph: Graph, position: int) -> int:
    """The first op that reads a weight or input; one that nothing reads comes first."""
    readers = [
        reader
        for output in range(len(graph.ops[position].outputs))
        for reader in graph.readers.get((position, output), ())
    ]
    return min(readers, default=0)
