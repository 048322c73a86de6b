"""A plan and the ONNX file of its graph in, the file's nodes with their devices out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewright.errors import ConfigError, MissingDependency, PlanError
from placewright.frontends import nodes_of_onnx
from placewright.frontends.protobuf import read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from placewright.exporters.base import Ask


def load(ask: Ask, target: str) -> tuple[Any, dict[str, list[int]]]:
    """The file as a message, and the ops of each of its nodes by the first tensor that it makes.

    Raises:
        ConfigError: No file is given.
        PlanError: The file is not the one that the graph was read from, or has functions.
    """
    if ask.model is None:
        raise ConfigError(f"{target} writes the model's file anew: name it with --model or model=")
    try:
        import onnx
    except ImportError:
        raise MissingDependency("onnx", "onnx") from None
    graph, became = nodes_of_onnx(ask.model, ask.dims, ask.shapes)
    if graph.fingerprint != ask.problem.graph.fingerprint:
        raise PlanError(
            f"{ask.model}: is not the model of the plan: give the file, with the same dims, that "
            "the plan was made for"
        )
    model = onnx.ModelProto.FromString(read_bytes(ask.model))
    if model.functions:
        raise PlanError(
            f"{ask.model}: has functions, whose nodes have no device of their own: inline them "
            "with onnx.inliner.inline_local_functions"
        )
    at = graph.position
    return model, {
        tensor: [at[name] for name in names if name in at] for tensor, names in became.items()
    }


def node_devices(
    ask: Ask, model: Any, ops: dict[str, list[int]], device: NDArray[np.int32]
) -> Iterator[tuple[Any, int]]:
    """Each node that became an op, and its device: where most of its time is.

    Ops of one node are put there in `device`, which is changed.
    """
    seconds = ask.problem.arrays.compute
    for node in model.graph.node:
        members = ops.get(next(filter(None, node.output), ""), [])
        if members:
            times: dict[int, float] = {}
            for op in members:
                times[int(device[op])] = times.get(int(device[op]), 0.0) + float(
                    seconds[op, device[op]]
                )
            place = max(times, key=lambda place: times[place])
            device[members] = place
            yield node, place


def external_note(ask: Ask, model: Any) -> list[str]:
    """That weights are in other files, if they are."""
    files = sorted(
        {
            entry.value
            for tensor in model.graph.initializer
            for entry in tensor.external_data
            if entry.key == "location"
        }
    )
    if not files or ask.model is None:
        return []
    return [f"weights: {files[0]!r} must lie beside the written file, as beside {ask.model.name!r}"]
