"""Reads the ONNX file of a plan's graph and finds the device of each node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewright.errors import ConfigError, MissingDependency, PlanError
from placewright.exporters.module_votes import busiest
from placewright.frontends import from_onnx_with_nodes
from placewright.frontends.protobuf import read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from placewright.exporters.base import ExportRequest


def load_model(request: ExportRequest, target: str) -> tuple[Any, dict[str, list[int]]]:
    """The ModelProto of the file, and the ops of each node by the node's first output.

    Raises:
        ConfigError: No file is given.
        PlanError: The file is not the one that the graph was read from, or has functions.
    """
    if request.model is None:
        raise ConfigError(
            f"{target} writes the model's file with the plan: name the file with --model or model="
        )
    try:
        import onnx
    except ImportError:
        raise MissingDependency("onnx", "onnx") from None
    graph, op_names = from_onnx_with_nodes(request.model, request.dims, request.shapes)
    if graph.fingerprint != request.problem.graph.fingerprint:
        raise PlanError(
            f"{request.model}: is not the model of the plan: give the file, with the same dims, "
            "that the plan was made for"
        )
    model = onnx.ModelProto.FromString(read_bytes(request.model))
    if model.functions:
        raise PlanError(
            f"{request.model}: has functions, whose nodes have no device of their own: inline them "
            "with onnx.inliner.inline_local_functions"
        )
    position = graph.position
    return model, {
        tensor: [position[name] for name in names if name in position]
        for tensor, names in op_names.items()
    }


def node_devices(
    request: ExportRequest, model: Any, ops: dict[str, list[int]], device: NDArray[np.int32]
) -> Iterator[tuple[Any, int]]:
    """Each node with ops, and the device of most of its time.

    `device` is changed: all ops of a node go there.
    """
    seconds = request.problem.arrays.compute
    for node in model.graph.node:
        node_ops = ops.get(next(filter(None, node.output), ""), [])
        if node_ops:
            node_device = busiest(
                (int(device[op]), float(seconds[op, device[op]])) for op in node_ops
            )
            device[node_ops] = node_device
            yield node, node_device


def external_data_note(request: ExportRequest, model: Any) -> list[str]:
    """A note if weights are in other files."""
    files = sorted(
        {
            entry.value
            for tensor in model.graph.initializer
            for entry in tensor.external_data
            if entry.key == "location"
        }
    )
    if not files or request.model is None:
        return []
    return [
        f"weights: {files[0]!r} must be next to the written file, as it is next to "
        f"{request.model.name!r}"
    ]
