"""Exports a plan as a GraphDef with devices, through the protobufs of tensorboard."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import ConfigError, PlanError
from placewright.exporters.base import (
    ExportedPlan,
    ExportRequest,
    evaluate_export,
    general_notes,
)
from placewright.exporters.device_names import target_names
from placewright.exporters.module_votes import planned_seconds
from placewright.frontends.graphdef.frontend import from_tensorflow, load_graph

if TYPE_CHECKING:
    from numpy.typing import NDArray


def export(request: ExportRequest) -> ExportedPlan:
    """A GraphDef whose nodes name their device; as text if the model's file is.

    Raises:
        ConfigError: No file is given.
        PlanError: The file is not the one that the graph was read from.
    """
    if request.model is None:
        raise ConfigError(
            "tensorflow writes the model's file with the plan: name the file with --model or model="
        )
    position = request.problem.graph.position
    if (
        from_tensorflow(request.model, request.shapes).fingerprint
        != request.problem.graph.fingerprint
    ):
        raise PlanError(
            f"{request.model}: is not the model of the plan: give the file, with the same shapes, "
            "that the plan was made for"
        )
    graph = load_graph(request.model)
    names = target_names(request, "/device:GPU:{}", "/device:CPU:{}")
    node_devices: dict[str, str] = {}
    for node in graph.node:
        if node.name in position:
            node_devices[node.name] = node.device = names[
                request.plan.placement[position[node.name]]
            ]
    calls, placement = _place_calls(request, graph, node_devices, names)
    plan, cost, extra = evaluate_export(request, placement)
    notes = general_notes(request, "TensorFlow", can_stream=True, can_train=True)
    if calls:
        notes.append(
            f"functions: ops of {calls[0]!r}"
            + (f" and {len(calls) - 1} other calls" if len(calls) > 1 else "")
            + " have no node of their own; the call goes where most of them are"
        )
    if request.plan.staging is not None:
        notes.append(
            "streaming: TensorFlow sends a weight to its readers each step, without staging"
        )
    return ExportedPlan(
        target="tensorflow",
        text=json.dumps(node_devices, indent=2) + "\n",
        data=node_devices,
        usage="tf.graph_util.import_graph_def(graph_def); soft placement moves what has no kernel",
        notes=(*notes, *extra),
        cost=cost,
        plan=plan,
        model=_serialise(graph, request.model.suffix in (".pbtxt", ".txt")),
        source=request.model,
    )


def _place_calls(
    request: ExportRequest, graph: Any, node_devices: dict[str, str], names: list[str]
) -> tuple[list[str], NDArray[np.int32]]:
    """Place each function call where most of its ops' time is; the calls, and the placement."""
    a, placement = request.problem.arrays, request.plan.placement.copy()
    nodes = {node.name: node for node in graph.node if node.name not in node_devices}
    call_ops: dict[str, list[int]] = {}
    for at, op in enumerate(request.problem.graph.ops):
        if op.name not in node_devices:
            call = next((path for path in _enclosing_scopes(op.name) if path in nodes), None)
            if call is not None:
                call_ops.setdefault(call, []).append(at)
    call_of_op = np.full(a.ops, -1)
    for number, members in enumerate(call_ops.values()):
        call_of_op[members] = number
    call_devices = planned_seconds(request, call_of_op, len(call_ops)).argmax(axis=1)
    for (name, members), call_device in zip(call_ops.items(), call_devices.tolist(), strict=True):
        node_devices[name] = nodes[name].device = names[call_device]
        placement[members] = call_device
    return list(call_ops), placement


def _enclosing_scopes(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]


def _serialise(graph: Any, as_text: bool) -> bytes:
    from google.protobuf import text_format

    if as_text:
        return bytes(text_format.MessageToString(graph).encode())
    return bytes(graph.SerializeToString())
