"""Finds the repeated layers of a decoder in a graph."""

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
STACK_SHARE = 0.1  # share of the weights above which a second stack of layers counts


@dataclass(frozen=True, eq=False)
class DecoderLayers:
    """The repeated layers of a decoder.

    Args:
        prefix: The path of their list, e.g. `model.layers`.
        count: Number of layers.
        op_layer: Each op's layer; INPUT_SIDE before the first layer, OUTPUT_SIDE after the last.
    """

    prefix: str
    count: int
    op_layer: NDArray[np.int64]

    def clamped(self) -> NDArray[np.int64]:
        """Each op's layer, with earlier ops in the first layer and later ops in the last."""
        ends = np.where(self.op_layer == INPUT_SIDE, 0, self.count - 1)
        return np.where(self.op_layer >= 0, self.op_layer, ends)


def find_layers(graph: Graph, target: str) -> DecoderLayers:
    """The layers of a graph, found by its module paths.

    Raises:
        PlanError: It has no list of layers, or several, or is a training step.
    """
    if any(op.phase != "forward" for op in graph.ops):
        raise PlanError(f"graph {graph.name!r} is a training step: {target} runs inference only")
    stacks: dict[str, int] = {}
    total = 0
    for op in graph.ops:
        if op.kind == WEIGHT:
            total += sum(op.outputs)
            match = _LAYER.match(op.module)
            if match:
                prefix = match[1] or ""
                stacks[prefix] = stacks.get(prefix, 0) + sum(op.outputs)
    large_stacks = sorted(prefix for prefix, size in stacks.items() if size > STACK_SHARE * total)
    if not large_stacks:
        raise PlanError(
            f"graph {graph.name!r} has no numbered layers: {target} takes decoder models, "
            "whose modules are named such as 'model.layers.0.mlp'"
        )
    if len(large_stacks) > 1:
        raise PlanError(
            f"graph {graph.name!r} has layers in {large_stacks[0]!r} and in {large_stacks[1]!r}: "
            f"{target} takes decoder models, which have one list of them"
        )
    return _number_ops(graph, large_stacks[0], target)


def _number_ops(graph: Graph, prefix: str, target: str) -> DecoderLayers:
    layer_number = np.full(len(graph), -1, dtype=np.int64)
    numbers: set[int] = set()
    for position, op in enumerate(graph.ops):
        match = _LAYER.match(op.module)
        if match and (match[1] or "") == prefix:
            layer_number[position] = int(match[2])
            numbers.add(int(match[2]))
    if numbers != set(range(len(numbers))):
        raise PlanError(
            f"the layers of {prefix!r} are numbered {sorted(numbers)[:8]}: {target} expects 0 to "
            f"{len(numbers) - 1}"
        )
    layer_ops = [at for at in range(len(graph)) if layer_number[at] >= 0 and graph.ops[at].inputs]
    first, last = (layer_ops[0], layer_ops[-1]) if layer_ops else (0, 0)
    op_layer = layer_number.copy()
    current = 0
    for position, op in enumerate(graph.ops):
        if layer_number[position] >= 0:
            current = int(layer_number[position]) if op.inputs else current
        elif op.inputs:  # between two layers: with the earlier one
            op_layer[position] = _side(position, first, last, current)
        else:
            op_layer[position] = _side(_first_reader(graph, position), first, last, current)
    return DecoderLayers(prefix, len(numbers), op_layer)


def _side(position: int, first: int, last: int, current: int) -> int:
    if position < first:
        return INPUT_SIDE
    return OUTPUT_SIDE if position > last else current


def _first_reader(graph: Graph, position: int) -> int:
    """The first op that reads a weight or input; 0 if nothing reads it."""
    readers = [
        reader
        for output in range(len(graph.ops[position].outputs))
        for reader in graph.readers.get((position, output), ())
    ]
    return min(readers, default=0)
