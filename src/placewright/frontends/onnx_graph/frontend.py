"""Reads an ONNX file as a Graph.

Shapes are inferred op by op with onnx's own rules, and what computes shapes is computed while
reading, so that it is no op of the graph. Weights are never read: their sizes come from the model,
be they inside it or in external data. `If`, `Loop` and `Scan` are one op each:

- an `If` costs its costlier branch; where its condition is known, the branch's ops take its place;
- a `Loop` costs its body times its trip count, the most that it may run; a body whose shapes grow
  is costed trip by trip as far as 64 trips; a loop of unknown trip count costs one and is listed;
- a `Scan` costs its body times the length of what it scans.

A `Constant` of one element is part of the op that reads it, as are constants that only say how an
op works (the shape of a `Reshape`); all other constants and initializers are weights.
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
from placewright.frontends.onnx_graph.nodes import OnnxReader
from placewright.frontends.onnx_graph.shapes import MAX_FOLDED, dtype_of
from placewright.frontends.op_costs import logger
from placewright.frontends.protobuf import is_utf8, read_bytes
from placewright.frontends.workloads.checks import file_label

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.graph import Graph


def from_onnx(
    path: str | Path,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Graph:
    """The graph of an ONNX model.

    Args:
        dims: The sizes of symbolic dimensions, such as `{"batch": 8}`.
        shapes: The shapes of tensors that the model leaves open, by the tensor's name.

    Raises:
        FileError: The file cannot be read, or is not an ONNX model.
        GraphError: The model is malformed, or a dimension or shape is not known.
    """
    return _read_model(path, dims, shapes)[0]


def from_onnx_with_nodes(
    path: str | Path,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> tuple[Graph, dict[str, list[str]]]:
    """The graph, and for each node of the file, by the first tensor it makes, the ops it became.

    A node that was computed while reading became none; an `If` of known condition became several.
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
        return reader.graph(model.graph), reader.node_ops
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
            return inliner.inline_local_functions(model)
        except Exception as error:  # onnx's C++ part has classes of its own
            raise GraphError(
                f"{file_label(path)}: its functions cannot be inlined: {first_line(error)}"
            ) from None
    return model


def _drop_large_weights(graph: Any) -> None:
    """Drop the contents of large weights: only their sizes matter, and copies cost memory."""
    for tensor in graph.initializer:
        if len(tensor.raw_data) > 8 * MAX_FOLDED:
            tensor.ClearField("raw_data")


def _check_weights(path: Path, graph: Any) -> None:
    """Weights hold what their sizes say; external data that is missing is told, not needed."""
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
