"""Reads an ONNX `If`, `Loop` or `Scan` as one op with the cost of its subgraphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewright.errors import GraphError
from placewright.frontends.graph_builder import (
    GraphBuilder,
    TensorValue,
    tensor_spec,
)
from placewright.frontends.op_costs import TensorSpec, logger
from placewright.graph import INPUT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from placewright.frontends.onnx_graph.nodes import OnnxReader, OnnxScope

MAX_TRIPS = 2**31  # more means "until the condition is false"
OptionalSpecs = list[TensorSpec | None]


def free_names(node: Any) -> set[str]:
    """The tensors that a node and its subgraphs read from outside."""
    names = {name for name in node.input if name}
    for graph in _subgraphs(node):
        defined = {tensor.name for tensor in graph.initializer}
        defined |= {info.name for info in graph.input}
        defined |= {name for inner in graph.node for name in inner.output}
        reads = {name for inner in graph.node for name in free_names(inner)}
        names |= (reads | {info.name for info in graph.output}) - defined
    return names


def nodes_within(graph: Any) -> Iterator[Any]:
    """The nodes of a graph or function, and those of their subgraphs."""
    for node in graph.node:
        yield node
        for subgraph in _subgraphs(node):
            yield from nodes_within(subgraph)


def _subgraphs(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _subgraph(node: Any, name: str) -> Any:
    for attribute in node.attribute:
        if attribute.name == name and attribute.HasField("g"):
            return attribute.g
    raise GraphError(f"it has no subgraph {name!r}")


def _build_body(
    reader: OnnxReader,
    scope: OnnxScope,
    name: str,
    graph: Any,
    input_specs: Sequence[TensorSpec | None],
) -> tuple[GraphBuilder, OptionalSpecs]:
    """A child builder with the ops of a subgraph, for these inputs, and its outputs."""
    if len(graph.input) != len(input_specs):
        raise GraphError(
            f"its {name} takes {len(graph.input)} inputs: it is given {len(input_specs)}"
        )
    child = scope.builder.child(name)
    inner_scope = scope.child(child)
    reader.add_initializers(inner_scope, graph)
    for info, tensor in zip(graph.input, input_specs, strict=True):
        input_value = None if tensor is None else child.add(info.name, INPUT, (), [tensor])[0]
        inner_scope.values[info.name] = input_value
    reader.add_nodes(inner_scope, graph)
    values = [inner_scope.read(info.name) for info in graph.output]
    return child, [value and value.tensor for value in values]


def _add_op(
    scope: OnnxScope,
    node: Any,
    bodies: Sequence[tuple[GraphBuilder, int]],
    output_specs: Sequence[TensorSpec | None],
) -> None:
    """Add the op and name its outputs, unless a shape is unknown."""
    if len(output_specs) < len(node.output):
        raise GraphError(
            f"it names {len(node.output)} outputs: its subgraph makes {len(output_specs)}"
        )
    inputs = [scope.read(name) for name in node.input if name]
    known_inputs = [value for value in inputs if value is not None]
    tensors = [tensor for tensor in output_specs if tensor is not None]
    if len(known_inputs) < len(inputs) or len(tensors) < len(output_specs):
        scope.values.update(dict.fromkeys(filter(None, node.output)))
        return
    values = scope.builder.add_subgraph(node.name or node.op_type, bodies, known_inputs, tensors)
    for name, value in zip(node.output, values, strict=False):
        if name:
            scope.values[name] = value


def _if(reader: OnnxReader, scope: OnnxScope, node: Any) -> None:
    if len(node.input) != 1:
        raise GraphError(f"it has {len(node.input)} inputs: expected its condition alone")
    condition = node.input[0]
    condition_value = scope.lookup(condition)
    is_known = (
        condition_value is not None
        and condition_value.constant is not None
        and condition_value.constant.size == 1
    )
    if condition_value is not None and is_known:
        graph = _subgraph(node, "then_branch" if condition_value.constant.any() else "else_branch")
        inner = scope.child(scope.builder)
        reader.add_initializers(inner, graph)
        reader.add_nodes(inner, graph)
        for name, info in zip(node.output, graph.output, strict=False):
            scope.values[name] = inner.read(info.name)
        return
    branches = _fitting_branches(reader, scope, node)
    branches.sort(key=lambda branch: (branch[0].flops, branch[0].bytes_moved), reverse=True)
    if len(branches) == 1:
        [(only, outputs)] = branches
        _add_op(scope, node, [(only, 1)], outputs)
        return
    (costly, outputs), (cheap, other_outputs) = branches
    if len(outputs) != len(other_outputs):
        raise GraphError(
            f"its branches make {len(outputs)} and {len(other_outputs)} outputs: "
            "expected the same number"
        )
    merged = [spec or other for spec, other in zip(outputs, other_outputs, strict=True)]
    _add_op(scope, node, [(costly, 1), (cheap, 0)], merged)


def _fitting_branches(
    reader: OnnxReader, scope: OnnxScope, node: Any
) -> list[tuple[GraphBuilder, OptionalSpecs]]:
    """The branches of an `If` whose ops fit the shapes: often only one does.

    Raises:
        GraphError: No branch fits; the error is that of the first one.
    """
    branches = []
    errors: dict[str, GraphError] = {}
    for name in ("then_branch", "else_branch"):
        graph = _subgraph(node, name)
        try:
            with scope.builder.forget_on_error():
                branches.append(_build_body(reader, scope, name, graph, ()))
        except GraphError as error:
            errors[name] = error
    if not branches:
        raise next(iter(errors.values()))
    for name, reason in errors.items():
        logger.warning(
            "If %r: its %s does not fit the shapes and is left out: %s",
            node.name or "without a name",
            name,
            reason,
        )
    return branches


def _loop(reader: OnnxReader, scope: OnnxScope, node: Any) -> None:
    graph = _subgraph(node, "body")
    names = [*node.input, "", ""]
    limit = scope.lookup(names[0]) if names[0] else None
    trips = None
    if limit is not None and limit.constant is not None and limit.constant.size == 1:
        limit_count = int(limit.constant.reshape(-1)[0])
        trips = max(limit_count, 0) if limit_count <= MAX_TRIPS else None
    if trips is None:
        scope.builder.unbounded_loops.append(node.name or node.op_type)
    carried: OptionalSpecs = [_spec_of(scope.lookup(name)) for name in node.input[2:]]
    state: OptionalSpecs = [TensorSpec((), "int64"), TensorSpec((), "bool")]
    bodies: list[tuple[GraphBuilder, int]] = []
    trips_left = 1 if trips is None else trips
    while True:
        child, outputs = _build_body(reader, scope, "body", graph, [*state, *carried])
        next_carried, stacked = outputs[1 : 1 + len(carried)], outputs[1 + len(carried) :]
        if len(next_carried) < len(carried):
            raise GraphError(f"its body makes {len(outputs)} outputs: expected {len(carried) + 1}")
        if next_carried == carried or trips_left <= 1 or reader.passes_left == 0:
            bodies.append((child, trips_left))
            break
        bodies.append((child, 1))
        reader.passes_left -= 1
        trips_left -= 1
        carried = next_carried
    final = next_carried if trips_left else carried
    count = 1 if trips is None else trips
    rows = [row and tensor_spec("it", (count, *row.shape), row.dtype) for row in stacked]
    _add_op(scope, node, bodies, [*final, *rows])


def _scan(reader: OnnxReader, scope: OnnxScope, node: Any) -> None:
    graph = _subgraph(node, "body")
    settings = {entry.name: entry for entry in node.attribute}
    if "num_scan_inputs" not in settings or "" in node.input:
        raise GraphError("it has no num_scan_inputs: expected a Scan of opset 9 or later")
    scan_count = int(settings["num_scan_inputs"].i)
    if not 0 < scan_count <= len(node.input):
        raise GraphError(f"it has num_scan_inputs {scan_count}: it has {len(node.input)} inputs")
    tensors: OptionalSpecs = [_spec_of(scope.lookup(name)) for name in node.input]
    states, rows = tensors[:-scan_count], tensors[-scan_count:]
    axes = _axes(settings, "scan_input_axes", scan_count)
    slices: OptionalSpecs = []
    length = 0
    for row, axis in zip(rows, axes, strict=True):
        if row is not None:
            if not -len(row.shape) <= axis < len(row.shape):
                raise GraphError(f"it scans axis {axis} of shape {row.shape}")
            axis %= len(row.shape)
            length = row.shape[axis]
            slices.append(TensorSpec(row.shape[:axis] + row.shape[axis + 1 :], row.dtype))
        else:
            slices.append(None)
    child, outputs = _build_body(reader, scope, "body", graph, [*states, *slices])
    final, stacked = outputs[: len(states)], outputs[len(states) :]
    output_axes = _axes(settings, "scan_output_axes", len(stacked))
    stacked_specs = [
        tensor and tensor_spec("it", _insert_axis(tensor.shape, axis, length), tensor.dtype)
        for tensor, axis in zip(stacked, output_axes, strict=True)
    ]
    _add_op(scope, node, [(child, length)], [*final, *stacked_specs])


def _axes(settings: Mapping[str, Any], name: str, count: int) -> list[int]:
    axes = [int(axis) for axis in settings[name].ints] if name in settings else [0] * count
    if len(axes) != count:
        raise GraphError(f"it has {len(axes)} {name}: expected {count}")
    return axes


def _insert_axis(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    position = axis if axis >= 0 else len(shape) + 1 + axis
    return (*shape[:position], size, *shape[position:])


def _spec_of(value: TensorValue | None) -> TensorSpec | None:
    return value and value.tensor


CONTROL_FLOW: Mapping[str, Callable[[OnnxReader, OnnxScope, Any], None]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
}
"""How to read each op that contains subgraphs."""
