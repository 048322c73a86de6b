"""Reads an ONNX file as a Graph.

Shapes are inferred op by op with onnx's own rules. Nodes that compute shapes are folded, so they
are no ops of the graph. Weights are never read: their sizes come from the model, also for external
data. `If`, `Loop` and `Scan` are one op each:

- an `If` costs its most expensive branch; if its condition is known, the branch's ops replace it;
  a branch that does not fit the shapes is left out with a warning;
- a `Loop` costs its body times its maximum trip count; a body whose shapes grow is costed trip by
  trip up to 64 trips; a loop of unknown trip count costs one trip and a warning lists it;
- a `Scan` costs its body times the length of the scanned axis.

A `Constant` of one element is part of the op that reads it, as are constants that are settings of
an op (the shape of a `Reshape`); all other constants and initializers are weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.errors import FileError, GraphError, MissingDependency
from placewright.frontends.graph_builder import (
    GraphBuilder,
    check_sizes,
    first_line,
    tensor_spec,
)
from placewright.frontends.inlining import check_inlined_ops, inlined_size
from placewright.frontends.onnx_graph.control_flow import nodes_within
from placewright.frontends.onnx_graph.nodes import OnnxReader
from placewright.frontends.onnx_graph.shapes import MAX_FOLDED, dtype_of
from placewright.frontends.op_costs import logger
from placewright.frontends.protobuf import is_utf8, read_bytes
from placewright.frontends.sample_counts import step_counts
from placewright.frontends.text_files import file_label
from placewright.logs import log_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.graph import Graph

MAX_INLINED_BYTES = 2**29
"""Bytes that calls of functions add to a model, small constants in the functions among them."""


def from_onnx(
    path: str | Path,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Graph:
    """The graph of an ONNX model.

    Args:
        dims: The sizes of symbolic dimensions, e.g. `{"batch": 8}`; or the value of an input of
            one element, which may decide the branch of an `If`.
        shapes: The shapes of tensors that the model leaves open, by the tensor's name.

    Raises:
        FileError: The file cannot be read, or is not an ONNX model.
        GraphError: The model is malformed, or a dimension or shape is unknown.
    """
    with log_duration(f"reading {path}"):
        return _read_model(path, dims, shapes)[0]


def from_onnx_with_nodes(
    path: str | Path,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> tuple[Graph, dict[str, list[str]]]:
    """The graph, and the ops of each node of the file, by the node's first output.

    A folded node has none; an `If` of known condition may have several.
    """
    return _read_model(path, dims, shapes)


def _read_model(
    path: str | Path,
    dims: Mapping[str, int] | None,
    shapes: Mapping[str, Sequence[int]] | None,
) -> tuple[Graph, dict[str, list[str]]]:
    path = Path(path)
    dims, shapes = dims or {}, shapes or {}
    check_sizes({name: (size,) for name, size in dims.items()}, "dims")
    check_sizes(shapes, "shapes")
    model = _load_model(path)
    try:
        reader = OnnxReader(model, dims, shapes, GraphBuilder(path.stem, "onnx"))
        _check_weights(path, model.graph)
        return reader.graph(model.graph).with_counts(**step_counts(dims)), reader.node_ops
    except GraphError as error:
        raise GraphError(f"{file_label(path)}: {error}") from None


def _load_model(path: Path) -> Any:
    """The model, with its functions inlined."""
    try:
        import onnx
        from google.protobuf.message import DecodeError
        from onnx import inliner
    except ImportError:
        raise MissingDependency("onnx", "onnx") from None
    data = read_bytes(path)
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError:
        raise FileError(f"{file_label(path)} is not an ONNX model, or is truncated") from None
    if not (model.HasField("graph") and model.opset_import):
        missing = "opset" if model.HasField("graph") else "graph"
        raise FileError(
            f"{file_label(path)} is not an ONNX model: it has no {missing}; is it truncated?"
        )
    if not is_utf8(model):
        raise FileError(f"{file_label(path)} holds text that is not UTF-8: is it damaged?")
    if model.functions:
        _drop_large_weights(model.graph)
        try:
            _check_calls(model)
        except GraphError as error:
            raise GraphError(f"{file_label(path)}: {error}") from None
        try:
            return inliner.inline_local_functions(model)
        except Exception as error:  # the C++ part of onnx raises its own classes
            raise GraphError(
                f"{file_label(path)}: its functions cannot be inlined: {first_line(error)}"
            ) from None
    return model


def _check_calls(model: Any) -> None:
    """Refuse functions whose calls have no end, or too many ops or bytes.

    Raises:
        GraphError: The message says how many.
    """
    bodies = {
        (function.domain, function.name, function.overload): function
        for function in model.functions
    }

    def calls_in(body: Any) -> list[tuple[str, str, str]]:
        keys = ((node.domain, node.op_type, node.overload) for node in nodes_within(body))
        return [key for key in keys if key in bodies]

    calls_of = {key: calls_in(body) for key, body in bodies.items()}
    calls = calls_in(model.graph)
    op_counts = {key: sum(1 for _ in nodes_within(body)) for key, body in bodies.items()}
    check_inlined_ops(inlined_size(calls, op_counts, calls_of))
    own_bytes = {key: body.ByteSize() for key, body in bodies.items()}
    size = inlined_size(calls, own_bytes, calls_of)
    if size > MAX_INLINED_BYTES:
        raise GraphError(
            f"its functions call for {size:,} bytes: expected at most {MAX_INLINED_BYTES:,}"
        )


def _drop_large_weights(graph: Any) -> None:
    """Drop the contents of large weights: only their sizes matter, and copies cost memory."""
    for tensor in graph.initializer:
        if len(tensor.raw_data) > 8 * MAX_FOLDED:
            tensor.ClearField("raw_data")


def _check_weights(path: Path, graph: Any) -> None:
    """Check that weights have the bytes of their shapes, and warn of missing external data."""
    missing = set()
    for tensor in graph.initializer:
        spec = tensor_spec(f"initializer {tensor.name!r}", tensor.dims, dtype_of(tensor.data_type))
        if tensor.data_location == tensor.EXTERNAL:
            location = next((e.value for e in tensor.external_data if e.key == "location"), "")
            if not location or "\0" in location or not (path.parent / location).is_file():
                missing.add(location)
        elif tensor.raw_data and len(tensor.raw_data) != spec.bytes:
            raise GraphError(
                f"initializer {tensor.name!r} holds {len(tensor.raw_data):,} bytes: expected "
                f"{spec.bytes:,} for shape {spec.shape}"
            )
    if missing:
        names = ", ".join(repr(name) for name in sorted(missing)[:4])
        logger.warning(
            "%s: external data %s not found: not needed, sizes come from the model",
            file_label(path),
            names + (", ..." if len(missing) > 4 else ""),
        )
