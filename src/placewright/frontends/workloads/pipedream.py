"""Reads a PipeDream profile (Narayanan et al. 2019) as a Problem.

The format is that of the code release of PipeDream (Narayanan et al., SOSP 2019): one line per
layer, with its measured forward and backward milliseconds, and one line per edge. A profile leaves
some things open; this is how they are read:

- Edges do not say which of a layer's outputs they carry, so a layer has one output, as large as all
  of them.
- An `Input` layer is data: it takes no time (some profiles have data loading in its place) and has
  no backward op.
- A backward op reads the gradients from its layer's readers, the layer's inputs and its weight. It
  outputs a gradient for each input that is not data, as large as that input, and the weight's
  gradient, which is kept to the end of the step.
- The backward op of a layer without readers begins the backward pass: it reads the layer's output.
- In training, a weight is colocated with the two ops that read it; without training it is free.
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from placewright.cluster import Cluster
from placewright.costs import Table
from placewright.device import Device
from placewright.errors import GraphError
from placewright.frontends.text_files import file_label
from placewright.frontends.workloads.checks import MAX_BYTES, MAX_MILLISECONDS, require_number
from placewright.graph import INPUT, STATE, VIEW, WEIGHT, Graph, Op, Tensor, sort_topologically
from placewright.problem import Problem

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_CLUSTER = "4xV100+cpu"  # a profile has none; this is one server of the paper's cluster A
PROFILED_DEVICE = Device(
    "reference",
    model="V100",  # the paper's GPU; its figures are those of NVIDIA's data sheet (SXM2, 2017)
    memory=16 * 2**30,
    rates={"float32": 15.7e12},
    memory_bandwidth=900e9,
)
LAYER_LINE = re.compile(
    r"node([0-9]{1,9}) -- (.*) -- forward_compute_time=([^,]+), backward_compute_time=([^,]+), "
    r"activation_size=([^,]+), parameter_size=([^, ]+)(?: -- stage_id=[0-9]+)?\s*"
)
EDGE_LINE = re.compile(r"\s+node([0-9]{1,9}) -- node([0-9]{1,9})\s*")


@dataclass(eq=False)
class _ProfileLayer:
    name: str
    description: str
    forward_ms: float
    backward_ms: float
    activation_bytes: int
    parameter_bytes: int
    sources: list[_ProfileLayer] = field(default_factory=list)
    readers: list[_ProfileLayer] = field(default_factory=list)

    @property
    def is_data(self) -> bool:
        return (
            self.description.startswith("Input") and not self.sources and not self.parameter_bytes
        )

    @property
    def kind(self) -> str:
        """The first word of its description, unless that is a kind with a meaning of its own."""
        if self.is_data:
            return INPUT
        word = re.split(r"\W", self.description, maxsplit=1)[0].lower()
        return word if word and word not in (WEIGHT, STATE, INPUT, VIEW) else "layer"


def read_profile(path: Path, text: str, training: bool, cluster: Cluster | None) -> Problem:
    """The problem of a profile's text: a training step, or its forward pass."""
    file = file_label(path)
    name = path.stem.removesuffix(".graph")
    unordered = _parse_layers(file, text)
    try:
        layers = _ordered_layers(name, unordered)
    except GraphError as error:
        raise GraphError(f"{file}: {error}") from None
    ops, milliseconds = _forward_ops(layers, training)
    if training:
        _add_backward(ops, milliseconds, layers)
    graph = Graph(name, tuple(ops))
    costs = Table(
        ops=tuple(op.name for op in graph.ops),
        columns=(PROFILED_DEVICE.model,),
        seconds=np.array(milliseconds)[:, None] / 1000,
        measured_on=PROFILED_DEVICE,
    )
    return Problem(graph, cluster or Cluster.parse(DEFAULT_CLUSTER), costs)


def _parse_layers(file: str, text: str) -> dict[int, _ProfileLayer]:
    """The layers by number, with their edges."""
    layers: dict[int, _ProfileLayer] = {}
    edges: list[tuple[str, int, int]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        location = f"{file}: line {number}"
        if match := LAYER_LINE.fullmatch(line):
            layer_id = int(match[1])
            if layer_id in layers:
                raise GraphError(f"{location} is node{layer_id} again: expected one line per layer")
            layers[layer_id] = _parse_layer(location, match)
        elif match := EDGE_LINE.fullmatch(line):
            edges.append((location, int(match[1]), int(match[2])))
        elif line.strip():
            raise GraphError(f"{location} is {reprlib.repr(line)}: expected a layer or an edge")
    for location, source, reader in edges:
        for node_id in (source, reader):
            if node_id not in layers:
                raise GraphError(f"{location} names node{node_id}: no layer has that name")
        if layers[source] not in layers[reader].sources:
            layers[reader].sources.append(layers[source])
            layers[source].readers.append(layers[reader])
    return layers


def _parse_layer(location: str, match: re.Match[str]) -> _ProfileLayer:
    outputs = match[5].removeprefix("[").removesuffix("]").split(";")
    sizes = [_parse_number(location, "activation_size", size, MAX_BYTES) for size in outputs]
    return _ProfileLayer(
        name=f"node{int(match[1])}",
        description=match[2],
        forward_ms=_parse_number(location, "forward_compute_time", match[3], MAX_MILLISECONDS),
        backward_ms=_parse_number(location, "backward_compute_time", match[4], MAX_MILLISECONDS),
        activation_bytes=int(require_number(location, "activation_size", sum(sizes), MAX_BYTES)),
        parameter_bytes=int(_parse_number(location, "parameter_size", match[6], MAX_BYTES)),
    )


def _parse_number(location: str, field: str, text: str, limit: float) -> float:
    try:
        value: object = float(text)
    except ValueError:
        value = text
    return require_number(location, field, value, limit)


def _ordered_layers(name: str, layers: dict[int, _ProfileLayer]) -> list[_ProfileLayer]:
    """The layers in topological order, ties by number."""
    numbered = [layers[number] for number in sorted(layers)]
    position = {layer.name: at for at, layer in enumerate(numbered)}
    unordered_ops = [
        Op(layer.name, inputs=tuple((position[source.name], 0) for source in layer.sources))
        for layer in numbered
    ]
    return [numbered[position[op.name]] for op in sort_topologically(name, unordered_ops).ops]


def _forward_ops(layers: list[_ProfileLayer], training: bool) -> tuple[list[Op], list[float]]:
    """An op per layer, before it its weight if it has one, and the milliseconds of each."""
    ops: list[Op] = []
    milliseconds: list[float] = []
    op_position: dict[str, int] = {}
    for layer in layers:
        inputs: list[Tensor] = [(op_position[source.name], 0) for source in layer.sources]
        colocation = layer.name if training and layer.parameter_bytes else None
        if layer.parameter_bytes:
            inputs.append((len(ops), 0))
            ops.append(
                Op(
                    f"{layer.name}.weight",
                    WEIGHT,
                    outputs=(layer.parameter_bytes,),
                    module=layer.description,
                    colocate=colocation,
                )
            )
            milliseconds.append(0.0)
        op_position[layer.name] = len(ops)
        ops.append(
            Op(
                layer.name,
                layer.kind,
                tuple(inputs),
                (layer.activation_bytes,),
                module=layer.description,
                colocate=colocation,
            )
        )
        milliseconds.append(0.0 if layer.is_data else layer.forward_ms)
    return ops, milliseconds


def _add_backward(ops: list[Op], milliseconds: list[float], layers: list[_ProfileLayer]) -> None:
    """Add a backward op for each layer that is not data, from the last to the first."""
    forward_positions = {op.name: position for position, op in enumerate(ops)}
    gradients: dict[tuple[str, str], Tensor] = {}  # (reader, layer) → the gradient from the reader
    for layer in reversed(layers):
        if layer.is_data:
            continue
        gradient_sources = [source for source in layer.sources if not source.is_data]
        for output, source in enumerate(gradient_sources):
            gradients[layer.name, source.name] = (len(ops), output)
        output_gradients = [gradients[reader.name, layer.name] for reader in layer.readers]
        forward_position = forward_positions[layer.name]
        outputs = [source.activation_bytes for source in gradient_sources]
        if layer.parameter_bytes:
            outputs.append(layer.parameter_bytes)
        ops.append(
            Op(
                f"{layer.name}.backward",
                layer.kind,
                (*(output_gradients or [(forward_position, 0)]), *ops[forward_position].inputs),
                tuple(outputs),
                module=layer.description,
                phase="backward",
                colocate=ops[forward_position].colocate,
            )
        )
        milliseconds.append(layer.backward_ms)
