"""An ONNX `If`, `Loop` or `Scan` in, one op with the cost of its subgraphs out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewright.errors import GraphError
from placewright.frontends.graph_builder import (
    Draft,
    Value,
    checked,
)
from placewright.frontends.op_costs import Tensor
from placewright.graph import INPUT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from placewright.frontends.onnx_graph.nodes import Reader, Scope

MOST_TRIPS = 2**31  # more is how exporters write "until the condition says so"
Tensors = list[Tensor | None]


def free(node: Any) -> set[str]:
    """The tensors that an op reads, its subgraphs' own ones left out."""
    names = {name for name in node.input if name}
    for graph in _subgraphs(node):
        made = {tensor.name for tensor in graph.initializer}
        made |= {info.name for info in graph.input}
        made |= {name for inner in graph.node for name in inner.output}
        read = {name for inner in graph.node for name in free(inner)}
        names |= (read | {info.name for info in graph.output}) - made
    return names


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


def _body(
    reader: Reader, scope: Scope, name: str, graph: Any, given: Sequence[Tensor | None]
) -> tuple[Draft, Tensors]:
    """A subgraph as a draft of its own, for inputs of these shapes, and what it makes."""
    if len(graph.input) != len(given):
        raise GraphError(f"its {name} takes {len(graph.input)} inputs: it is given {len(given)}")
    child = scope.draft.child(name)
    inner = scope.inner(child)
    reader.store(inner, graph)
    for info, tensor in zip(graph.input, given, strict=True):
        held = None if tensor is None else child.add(info.name, INPUT, (), [tensor])[0]
        inner.values[info.name] = held
    reader.nodes(inner, graph)
    values = [inner.read(info.name) for info in graph.output]
    return child, [value and value.tensor for value in values]


def _finish(
    scope: Scope, node: Any, bodies: Sequence[tuple[Draft, int]], made: Sequence[Tensor | None]
) -> None:
    """Add the op and name what it makes; nothing is added where a shape is not known."""
    if len(made) < len(node.output):
        raise GraphError(f"it names {len(node.output)} outputs: its subgraph makes {len(made)}")
    inputs = [scope.read(name) for name in node.input if name]
    known = [value for value in inputs if value is not None]
    tensors = [tensor for tensor in made if tensor is not None]
    if len(known) < len(inputs) or len(tensors) < len(made):
        scope.values.update(dict.fromkeys(filter(None, node.output)))
        return
    values = scope.draft.enclose(node.name or node.op_type, bodies, known, tensors)
    for name, value in zip(node.output, values, strict=False):
        if name:
            scope.values[name] = value


def _if(reader: Reader, scope: Scope, node: Any) -> None:
    [condition] = node.input
    held = scope.look(condition)
    known = held is not None and held.constant is not None and held.constant.size == 1
    if held is not None and known:
        graph = _subgraph(node, "then_branch" if held.constant.any() else "else_branch")
        inner = scope.inner(scope.draft)
        reader.store(inner, graph)
        reader.nodes(inner, graph)
        for name, info in zip(node.output, graph.output, strict=False):
            scope.values[name] = inner.read(info.name)
        return
    branches = [
        _body(reader, scope, name, _subgraph(node, name), ())
        for name in ("then_branch", "else_branch")
    ]
    branches.sort(key=lambda branch: (branch[0].flops, branch[0].moved), reverse=True)
    (costly, made), (cheap, others) = branches
    if len(made) != len(others):
        raise GraphError(
            f"its branches make {len(made)} and {len(others)} outputs: expected as many"
        )
    merged = [one or other for one, other in zip(made, others, strict=True)]
    _finish(scope, node, [(costly, 1), (cheap, 0)], merged)


def _loop(reader: Reader, scope: Scope, node: Any) -> None:
    graph = _subgraph(node, "body")
    names = [*node.input, "", ""]
    limit = scope.look(names[0]) if names[0] else None
    trips = None
    if limit is not None and limit.constant is not None and limit.constant.size == 1:
        most = int(limit.constant.reshape(-1)[0])
        trips = max(most, 0) if most <= MOST_TRIPS else None
    if trips is None:
        scope.draft.untimed.append(node.name or node.op_type)
    carried: Tensors = [_tensor(scope.look(name)) for name in node.input[2:]]
    state: Tensors = [Tensor((), "int64"), Tensor((), "bool")]
    bodies: list[tuple[Draft, int]] = []
    left = 1 if trips is None else trips
    while True:
        child, made = _body(reader, scope, "body", graph, [*state, *carried])
        after, stacked = made[1 : 1 + len(carried)], made[1 + len(carried) :]
        if len(after) < len(carried):
            raise GraphError(f"its body makes {len(made)} outputs: expected {len(carried) + 1}")
        if after == carried or left <= 1 or reader.passes == 0:
            bodies.append((child, left))
            break
        bodies.append((child, 1))
        reader.passes -= 1
        left -= 1
        carried = after
    final = after if left else carried
    count = 1 if trips is None else trips
    rows = [row and checked("it", (count, *row.shape), row.dtype) for row in stacked]
    _finish(scope, node, bodies, [*final, *rows])


def _scan(reader: Reader, scope: Scope, node: Any) -> None:
    graph = _subgraph(node, "body")
    settings = {entry.name: entry for entry in node.attribute}
    if "num_scan_inputs" not in settings or "" in node.input:
        raise GraphError("it has no num_scan_inputs: expected a Scan of opset 9 or later")
    scanned = int(settings["num_scan_inputs"].i)
    if not 0 < scanned <= len(node.input):
        raise GraphError(f"it has num_scan_inputs {scanned}: it has {len(node.input)} inputs")
    tensors: Tensors = [_tensor(scope.look(name)) for name in node.input]
    states, rows = tensors[:-scanned], tensors[-scanned:]
    axes = _axes(settings, "scan_input_axes", scanned)
    slices: Tensors = []
    length = 0
    for row, axis in zip(rows, axes, strict=True):
        if row is not None:
            if not -len(row.shape) <= axis < len(row.shape):
                raise GraphError(f"it scans axis {axis} of shape {row.shape}")
            axis %= len(row.shape)
            length = row.shape[axis]
            slices.append(Tensor(row.shape[:axis] + row.shape[axis + 1 :], row.dtype))
        else:
            slices.append(None)
    child, made = _body(reader, scope, "body", graph, [*states, *slices])
    final, stacked = made[: len(states)], made[len(states) :]
    ends = _axes(settings, "scan_output_axes", len(stacked))
    whole = [
        tensor and checked("it", _insert(tensor.shape, axis, length), tensor.dtype)
        for tensor, axis in zip(stacked, ends, strict=True)
    ]
    _finish(scope, node, [(child, length)], [*final, *whole])


def _axes(settings: Mapping[str, Any], name: str, count: int) -> list[int]:
    axes = [int(axis) for axis in settings[name].ints] if name in settings else [0] * count
    if len(axes) != count:
        raise GraphError(f"it has {len(axes)} {name}: expected {count}")
    return axes


def _insert(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    at = axis if axis >= 0 else len(shape) + 1 + axis
    return (*shape[:at], size, *shape[at:])


def _tensor(value: Value | None) -> Tensor | None:
    return value and value.tensor


FLOW: Mapping[str, Callable[[Reader, Scope, Any], None]] = {"If": _if, "Loop": _loop, "Scan": _scan}
"""How to read each op that holds subgraphs."""
