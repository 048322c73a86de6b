"""The text of a PipeDream profile in, a Problem out.

The format is that of the code release of PipeDream (Narayanan et al., SOSP 2019): a line a layer,
with its measured forward and backward milliseconds, and a line an edge. What a profile leaves
open, and how it is read here:

- Edges do not say which of a layer's outputs they carry, so a layer makes one tensor, their sum.
- An `Input` layer is data: it takes no time (some profiles hold data loading in its place) and
  has no backward op.
- A backward op reads the gradients that its layer's readers send back, the layer's inputs and
  its weight. It makes a gradient for each input that is not data, as large as that input, and
  the weight's gradient, which stays to the end of the step.
- The backward op of a layer that nothing reads begins the backward pass: it reads the layer's
  own output.
- In training, a weight is colocated with the two ops that read it; forward alone, it is free.
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from placewright.cluster import Cluster, Device
from placewright.costs import Table
from placewright.errors import GraphError
from placewright.frontends.workloads.checks import (
    MOST_BYTES,
    MOST_MILLISECONDS,
    amount,
    place,
)
from placewright.graph import INPUT, STATE, VIEW, WEIGHT, Graph, Op, Tensor, in_order
from placewright.problem import Problem

if TYPE_CHECKING:
    from pathlib import Path

CLUSTER = "4xV100+cpu"  # a profile brings none; this is one server of the paper's cluster A
MEASURED_ON = Device(
    "reference",
    model="V100",  # the paper's GPU; its figures are those of NVIDIA's data sheet (SXM2, 2017)
    memory=16 * 2**30,
    rates={"float32": 15.7e12},
    bandwidth=900e9,
)
LAYER = re.compile(
    r"node([0-9]{1,9}) -- (.*) -- forward_compute_time=([^,]+), backward_compute_time=([^,]+), "
    r"activation_size=([^,]+), parameter_size=([^, ]+)(?: -- stage_id=[0-9]+)?\s*"
)
EDGE = re.compile(r"\s+node([0-9]{1,9}) -- node([0-9]{1,9})\s*")


@dataclass(eq=False)
class _Layer:
    name: str
    text: str
    forward: float
    backward: float
    activation: int
    parameters: int
    sources: list[_Layer] = field(default_factory=list)
    readers: list[_Layer] = field(default_factory=list)

    @property
    def data(self) -> bool:
        return self.text.startswith("Input") and not self.sources and not self.parameters

    @property
    def kind(self) -> str:
        """The first word of its text, unless that word means something else to us."""
        if self.data:
            return INPUT
        word = re.split(r"\W", self.text, maxsplit=1)[0].lower()
        return word if word and word not in (WEIGHT, STATE, INPUT, VIEW) else "layer"


def read_profile(path: Path, text: str, training: bool, cluster: Cluster | None) -> Problem:
    """The problem that a profile's text describes: one step of training, or the forward part."""
    where = place(path)
    name = path.stem.removesuffix(".graph")
    unordered = _layers(where, text)
    try:
        layers = _ordered(name, unordered)
    except GraphError as error:
        raise GraphError(f"{where}: {error}") from None
    ops, milliseconds = _forward(layers, training)
    if training:
        _add_backward(ops, milliseconds, layers)
    graph = Graph(name, tuple(ops))
    costs = Table(
        ops=tuple(op.name for op in graph.ops),
        columns=(MEASURED_ON.model,),
        seconds=np.array(milliseconds)[:, None] / 1000,
        measured_on=MEASURED_ON,
    )
    return Problem(graph, cluster or Cluster.parse(CLUSTER), costs)


def _layers(where: str, text: str) -> dict[int, _Layer]:
    """The layers by number, with their edges."""
    layers: dict[int, _Layer] = {}
    edges: list[tuple[str, int, int]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        spot = f"{where}: line {number}"
        if match := LAYER.fullmatch(line):
            identity = int(match[1])
            if identity in layers:
                raise GraphError(f"{spot} is node{identity} again: expected one line a layer")
            layers[identity] = _layer(spot, match)
        elif match := EDGE.fullmatch(line):
            edges.append((spot, int(match[1]), int(match[2])))
        elif line.strip():
            raise GraphError(f"{spot} is {reprlib.repr(line)}: expected a layer or an edge")
    for spot, source, reader in edges:
        for end in (source, reader):
            if end not in layers:
                raise GraphError(f"{spot} names node{end}: no layer has that name")
        if layers[source] not in layers[reader].sources:
            layers[reader].sources.append(layers[source])
            layers[source].readers.append(layers[reader])
    return layers


def _layer(spot: str, match: re.Match[str]) -> _Layer:
    outputs = match[5].removeprefix("[").removesuffix("]").split(";")
    sizes = [_number(spot, "activation_size", size, MOST_BYTES) for size in outputs]
    return _Layer(
        name=f"node{int(match[1])}",
        text=match[2],
        forward=_number(spot, "forward_compute_time", match[3], MOST_MILLISECONDS),
        backward=_number(spot, "backward_compute_time", match[4], MOST_MILLISECONDS),
        activation=int(amount(spot, "activation_size", sum(sizes), MOST_BYTES)),
        parameters=int(_number(spot, "parameter_size", match[6], MOST_BYTES)),
    )


def _number(spot: str, what: str, text: str, most: float) -> float:
    try:
        value: object = float(text)
    except ValueError:
        value = text
    return amount(spot, what, value, most)


def _ordered(name: str, layers: dict[int, _Layer]) -> list[_Layer]:
    """The layers in topological order, by number where that leaves a choice."""
    numbered = [layers[number] for number in sorted(layers)]
    position = {layer.name: at for at, layer in enumerate(numbered)}
    bare = [
        Op(layer.name, inputs=tuple((position[source.name], 0) for source in layer.sources))
        for layer in numbered
    ]
    return [numbered[position[op.name]] for op in in_order(name, bare).ops]


def _forward(layers: list[_Layer], training: bool) -> tuple[list[Op], list[float]]:
    """A weight (where a layer has one) and an op a layer, and the milliseconds of each."""
    ops: list[Op] = []
    milliseconds: list[float] = []
    made: dict[str, int] = {}
    for layer in layers:
        inputs: list[Tensor] = [(made[source.name], 0) for source in layer.sources]
        label = layer.name if training and layer.parameters else None
        if layer.parameters:
            inputs.append((len(ops), 0))
            ops.append(
                Op(
                    f"{layer.name}.weight",
                    WEIGHT,
                    outputs=(layer.parameters,),
                    module=layer.text,
                    colocate=label,
                )
            )
            milliseconds.append(0.0)
        made[layer.name] = len(ops)
        ops.append(
            Op(
                layer.name,
                layer.kind,
                tuple(inputs),
                (layer.activation,),
                module=layer.text,
                colocate=label,
            )
        )
        milliseconds.append(0.0 if layer.data else layer.forward)
    return ops, milliseconds


def _add_backward(ops: list[Op], milliseconds: list[float], layers: list[_Layer]) -> None:
    """Add a backward op for each layer that is not data, from the last to the first."""
    forward = {op.name: position for position, op in enumerate(ops)}
    gradients: dict[tuple[str, str], Tensor] = {}  # (reader, layer): what the reader sends back
    for layer in reversed(layers):
        if layer.data:
            continue
        wanted = [source for source in layer.sources if not source.data]
        for output, source in enumerate(wanted):
            gradients[layer.name, source.name] = (len(ops), output)
        sent_back = [gradients[reader.name, layer.name] for reader in layer.readers]
        own = forward[layer.name]
        outputs = [source.activation for source in wanted]
        if layer.parameters:
            outputs.append(layer.parameters)
        ops.append(
            Op(
                f"{layer.name}.backward",
                layer.kind,
                (*(sent_back or [(own, 0)]), *ops[own].inputs),
                tuple(outputs),
                module=layer.text,
                phase="backward",
                colocate=ops[own].colocate,
            )
        )
        milliseconds.append(layer.backward)
