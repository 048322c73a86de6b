"""A plan and a GraphDef in, the GraphDef with devices out, through the protobufs of tensorboard."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import ConfigError, PlanError
from placewright.exporters.base import (
    Ask,
    Exported,
    general_notes,
    priced,
)
from placewright.exporters.device_names import named
from placewright.frontends.graphdef.frontend import from_tensorflow, load_graph

if TYPE_CHECKING:
    from numpy.typing import NDArray


def export(ask: Ask) -> Exported:
    """A GraphDef whose nodes name their device; as text if the model's file is.

    Raises:
        ConfigError: No file is given.
        PlanError: The file is not the one that the graph was read from.
    """
    if ask.model is None:
        raise ConfigError("tensorflow writes the model's file anew: name it with --model or model=")
    position = ask.problem.graph.position
    if from_tensorflow(ask.model, ask.shapes).fingerprint != ask.problem.graph.fingerprint:
        raise PlanError(
            f"{ask.model}: is not the model of the plan: give the file, with the same shapes, that "
            "the plan was made for"
        )
    graph = load_graph(ask.model)
    names = named(ask, "/device:GPU:{}", "/device:CPU:{}")
    words: dict[str, str] = {}
    for node in graph.node:
        if node.name in position:
            words[node.name] = node.device = names[ask.plan.device[position[node.name]]]
    calls, device = _calls(ask, graph, words, names)
    plan, cost, more = priced(ask, device)
    notes = general_notes(ask, "TensorFlow", streams=True, trains=True)
    if calls:
        notes.append(
            f"functions: ops of {calls[0]!r}"
            + (f" and {len(calls) - 1} other calls" if len(calls) > 1 else "")
            + " have no node of their own; the call goes where most of them are"
        )
    if ask.plan.staging is not None:
        notes.append("streaming: TensorFlow sends a weight to its readers each step, unstaged")
    return Exported(
        target="tensorflow",
        text=json.dumps(words, indent=2) + "\n",
        data=words,
        usage="tf.graph_util.import_graph_def(graph_def); soft placement moves what has no kernel",
        notes=(*notes, *more),
        cost=cost,
        plan=plan,
        model=_written(graph, ask.model.suffix in (".pbtxt", ".txt")),
        source=ask.model,
    )


def _calls(
    ask: Ask, graph: Any, words: dict[str, str], names: list[str]
) -> tuple[list[str], NDArray[np.int32]]:
    """Put calls of functions where most of their ops' time is; which these are, and all devices."""
    a, device = ask.problem.arrays, ask.plan.device.copy()
    nodes = {node.name: node for node in graph.node if node.name not in words}
    inside: dict[str, list[int]] = {}
    for at, op in enumerate(ask.problem.graph.ops):
        if op.name not in words:
            call = next((path for path in _folders(op.name) if path in nodes), None)
            if call is not None:
                inside.setdefault(call, []).append(at)
    for name, members in inside.items():
        times = np.zeros(a.devices)
        np.add.at(times, device[members], a.compute.min(axis=1)[members] * a.turn[members])
        place = int(times.argmax())
        words[name] = nodes[name].device = names[place]
        device[members] = place
    return list(inside), device


def _folders(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]


def _written(graph: Any, as_text: bool) -> bytes:
    from google.protobuf import text_format

    if as_text:
        return bytes(text_format.MessageToString(graph).encode())
    return bytes(graph.SerializeToString())
