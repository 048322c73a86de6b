"""Reads a GraphDef, a frozen graph or a SavedModel of TensorFlow as a Graph.

It uses the protobufs that tensorboard ships: TensorFlow itself is not needed, and weights are never
read. How a GraphDef becomes a Graph:

- constants and variables are weights, placeholders are inputs; a read of a variable is a view; a
  constant of one element is part of the op that reads it, as are constants that are settings of an
  op (the shape of a `Reshape`);
- a control edge is a tensor of no bytes, unless it starts or ends at a weight or an input;
- `_class` attributes become `colocate` labels; an update shares one with its variable;
- device strings are not part of the graph: see `device_hints`;
- function calls are inlined; a `While` is one op that costs its body times the trip count, if a
  counter against a constant gives it; an `If` is one op that costs its most expensive branch;
- loops of TensorFlow 1 (`Enter`, `NextIteration`, ...) are cut at their back edge: their body
  counts as one trip, and a warning lists them;
- ops that only initialise, save or restore variables are left out;
- ops that compute shapes are folded where possible.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewright.errors import FileError, GraphError, MissingDependency, nearest
from placewright.frontends.graph_builder import (
    GraphBuilder,
    check_sizes,
    first_line,
)
from placewright.frontends.graphdef.nodes import GraphDefReader
from placewright.frontends.protobuf import read_bytes
from placewright.frontends.text_files import file_label

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.graph import Graph

SAVED_MODEL_FILE = "saved_model.pb"


def from_tensorflow(
    path: str | Path,
    shapes: Mapping[str, Sequence[int]] | None = None,
    outputs: Sequence[str] | None = None,
    signature: str | None = None,
) -> Graph:
    """The graph of a `.pb` or `.pbtxt` file, or of a SavedModel's folder.

    Args:
        shapes: The shapes of ops' outputs that the file leaves open, by the op's name.
        outputs: Names of the ops to compute; by default all that a step runs.
        signature: The function of a SavedModel; by default "serving_default" or the only one.

    Raises:
        FileError: The file cannot be read, or holds something else.
        GraphError: The graph is malformed, or a shape is unknown.
    """
    return _read_graph(path, shapes, outputs, signature)[0]


def device_hints(
    path: str | Path,
    shapes: Mapping[str, Sequence[int]] | None = None,
    outputs: Sequence[str] | None = None,
    signature: str | None = None,
) -> dict[str, str]:
    """The device strings in the file, by op name."""
    graph, devices = _read_graph(path, shapes, outputs, signature)
    return {op.name: devices[op.name] for op in graph.ops if devices.get(op.name)}


def load_graph(path: str | Path) -> Any:
    """The GraphDef message of a `.pb` or `.pbtxt` file.

    Raises:
        FileError: The file cannot be read, or holds something else, such as a SavedModel.
    """
    path = Path(path)
    graph, signatures = _load_message(path)
    is_saved_model = path.is_dir() or path.suffix == ".meta" or path.name.startswith("saved_model.")
    if signatures or is_saved_model:
        raise FileError(f"{file_label(path)} is a SavedModel: expected a GraphDef; freeze it first")
    return graph


def _read_graph(
    path: str | Path,
    shapes: Mapping[str, Sequence[int]] | None,
    outputs: Sequence[str] | None,
    signature: str | None,
) -> tuple[Graph, dict[str, str]]:
    path = Path(path)
    check_sizes(shapes or {}, "shapes")
    graph, signatures = _load_message(path)
    file = file_label(path)
    name = path.name.removesuffix(".pbtxt").removesuffix(".pb") or str(path)
    if name == "saved_model":
        name = path.resolve().parent.name
    try:
        if outputs is None and (signatures or signature):
            outputs = _signature_outputs(signatures, signature)
        reader = GraphDefReader(graph, shapes or {}, GraphBuilder(name, "tensorflow"))
        return reader.graph(outputs), reader.devices
    except GraphError as error:
        raise GraphError(f"{file}: {error}") from None


def _signature_outputs(signatures: Mapping[str, Any], signature: str | None) -> list[str]:
    """The output ops of a signature of a SavedModel."""
    signature_names = [name for name in signatures if not name.startswith("__")]
    if signature is None:
        signature = "serving_default"
        if signature not in signature_names and len(signature_names) == 1:
            signature = signature_names[0]
    if signature not in signature_names:
        raise GraphError(
            f"there is no signature {signature!r}: {nearest(signature, signature_names)}"
        )
    return sorted({info.name.partition(":")[0] for info in signatures[signature].outputs.values()})


def _load_message(path: Path) -> tuple[Any, Mapping[str, Any]]:
    """The GraphDef of a file or folder, and a SavedModel's signatures."""
    try:
        from google.protobuf import text_format
        from google.protobuf.message import DecodeError
        from tensorboard.compat.proto import graph_pb2, meta_graph_pb2
    except ImportError:
        raise MissingDependency("tensorboard", "tensorflow") from None
    file = path
    if path.is_dir():
        candidates = [path / SAVED_MODEL_FILE, path / f"{SAVED_MODEL_FILE}txt"]
        file = next((candidate for candidate in candidates if candidate.is_file()), candidates[0])
        if not file.is_file():
            raise FileError(
                f"{file_label(path)} is a folder without {SAVED_MODEL_FILE!r}: "
                "expected a SavedModel"
            )
    data = read_bytes(file)
    is_saved_model = file.name.startswith("saved_model.") or data[:1] == b"\x08"  # its first field
    message: Any = _saved_model_class()() if is_saved_model else graph_pb2.GraphDef()
    if file.suffix == ".meta":
        message = meta_graph_pb2.MetaGraphDef()
    try:
        if file.suffix in (".pbtxt", ".txt"):
            text_format.Parse(data.decode(), message)
        else:
            message.ParseFromString(data)
    except DecodeError:
        raise FileError(f"{file_label(file)} is not a TensorFlow graph, or is truncated") from None
    except UnicodeDecodeError as error:
        raise FileError(
            f"{file_label(file)} is not text: byte {error.start} is not UTF-8"
        ) from None
    except (text_format.ParseError, RecursionError) as error:
        raise FileError(
            f"{file_label(file)} is not a TensorFlow graph: {first_line(error)}"
        ) from None
    signatures: Mapping[str, Any] = {}
    if is_saved_model:
        meta_graphs = [meta for meta in message.meta_graphs if "serve" in meta.meta_info_def.tags]
        meta_graphs = meta_graphs or list(message.meta_graphs)
        if not meta_graphs:
            raise FileError(f"{file_label(file)} holds no graph: is it a SavedModel?")
        message = meta_graphs[0]
    if hasattr(message, "graph_def"):
        signatures = dict(message.signature_def)
        message = message.graph_def
    if not message.node:
        raise FileError(f"{file_label(file)} holds no graph: is it a GraphDef, or truncated?")
    return message, signatures


def _saved_model_class() -> Any:
    """The message class of a `saved_model.pb`, which tensorboard does not ship."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from tensorboard.compat.proto import meta_graph_pb2

    pool = descriptor_pool.Default()
    inner = meta_graph_pb2.MetaGraphDef.DESCRIPTOR
    file = descriptor_pb2.FileDescriptorProto(
        name="placewright/saved_model.proto",
        package="placewright",
        syntax="proto3",
        dependency=[inner.file.name],
    )
    message = file.message_type.add(name="SavedModel")
    field = descriptor_pb2.FieldDescriptorProto
    message.field.add(
        name="saved_model_schema_version",
        number=1,
        label=field.LABEL_OPTIONAL,
        type=field.TYPE_INT64,
    )
    message.field.add(
        name="meta_graphs",
        number=2,
        label=field.LABEL_REPEATED,
        type=field.TYPE_MESSAGE,
        type_name=f".{inner.full_name}",
    )
    pool.Add(file)  # adding the same file again changes nothing
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("placewright.SavedModel"))
