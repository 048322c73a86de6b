"""Graphs in files: ops in any order, with their inputs by name, without default values."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from typing import TYPE_CHECKING, Any

from placewright.errors import GraphError, nearest
from placewright.files import validation
from placewright.files.header import body, make_header
from placewright.graph import Graph, Op, Tensor, sort_topologically

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.files.validation import Data

_DEFAULTS = {field.name: field.default for field in fields(Op) if field.default is not MISSING}
_TO_PLAIN: dict[str, Callable[[Any], Any]] = {  # numpy's numbers and tuples are not plain data
    "outputs": lambda sizes: [int(size) for size in sizes],
    "flops": float,
    "bytes_moved": int,
    "resident": int,
    "workspace": int,
    "runs_on": list,
    "aliases": lambda pairs: [[int(output), int(source)] for output, source in pairs],
}


def graph_data(graph: Graph) -> Data:
    """A graph as plain data."""
    ops = graph.ops
    data = make_header("graph") | {"name": graph.name, "ops": [_op_data(op, ops) for op in ops]}
    if graph.outputs != Graph(graph.name, ops).outputs:
        data["outputs"] = _tensor_names(graph.outputs or (), ops)
    counts = {"samples": graph.samples, "tokens": graph.tokens}
    return data | {key: int(count) for key, count in counts.items() if count is not None}


def read_graph(data: object, where: str = "") -> Graph:
    """The graph that plain data describe."""
    values = validation.fields(body(data, "graph", where), _GRAPH, where, required=("name", "ops"))
    entries: list[Data] = values["ops"]
    position = {entry["name"]: at for at, entry in enumerate(entries)}
    if len(position) < len(entries):
        duplicate = next(e["name"] for at, e in enumerate(entries) if position[e["name"]] != at)
        raise GraphError(f"two ops are named {duplicate!r}: names must be unique")
    is_sorted = True
    for at, entry in enumerate(entries):
        inputs = entry.get("inputs")
        if inputs:
            entry["inputs"] = _find_tensors(inputs, position, f"op {entry['name']!r} reads from")
            is_sorted = is_sorted and max(entry["inputs"])[0] < at
    ops = [Op(**entry) for entry in entries]
    outputs = None
    if "outputs" in values:
        outputs = _find_tensors(values["outputs"], position, "the graph's outputs name")
    name: str = values["name"]
    counts = {key: values[key] for key in ("samples", "tokens") if key in values}
    if is_sorted:
        return Graph(name, tuple(ops), outputs, **counts)
    return replace(sort_topologically(name, ops, outputs), **counts)


def _op_data(op: Op, ops: tuple[Op, ...]) -> Data:
    data: Data = {"name": op.name}
    for key, default in _DEFAULTS.items():
        value = getattr(op, key)
        if value != default:
            data[key] = _TO_PLAIN[key](value) if key in _TO_PLAIN else value
    if op.inputs:
        data["inputs"] = _tensor_names(op.inputs, ops)
    return data


def _tensor_names(tensors: tuple[Tensor, ...], ops: tuple[Op, ...]) -> list[object]:
    """Each tensor as its op's name, with the index if it is not the first output."""
    return [
        [ops[source].name, int(output)] if output else ops[source].name
        for source, output in tensors
    ]


def _find_tensors(
    names: tuple[tuple[str, int], ...], position: dict[str, int], subject: str
) -> tuple[Tensor, ...]:
    try:
        return tuple([(position[name], output) for name, output in names])
    except KeyError:
        unknown = next(name for name, _ in names if name not in position)
        raise GraphError(
            f"{subject} op {unknown!r}, which is not there: {nearest(unknown, position)}"
        ) from None


def _read_tensor_names(value: object, where: str) -> tuple[tuple[str, int], ...]:
    """A list of tensors, each `"op"` or `["op", output]`."""
    return tuple(
        [
            (entry, 0) if type(entry) is str else _read_tensor_name(entry, where)
            for entry in validation.items(value, where)
        ]
    )


def _read_tensor_name(value: object, where: str) -> tuple[str, int]:
    if not (isinstance(value, list) and list(map(type, value)) == [str, int]):
        validation.refuse(value, where, 'an op\'s name or ["name", output]')
    return str(value[0]), validation.integer(value[1], where)


def _read_aliases(value: object, where: str) -> tuple[tuple[int, int], ...]:
    """A list of `[output, input]` pairs."""
    pairs = validation.items(value, where)
    for pair in pairs:
        if not (isinstance(pair, list) and list(map(type, pair)) == [int, int]):
            validation.refuse(pair, where, "[output, input]")
    return tuple((output, source) for output, source in pairs)


_OP = {
    "name": validation.text,
    "kind": validation.text,
    "inputs": _read_tensor_names,
    "outputs": validation.sizes,
    "flops": validation.number,
    "bytes_moved": validation.integer,
    "resident": validation.integer,
    "workspace": validation.integer,
    "dtype": validation.text,
    "module": validation.text,
    "phase": validation.text,
    "colocate": validation.text,
    "runs_on": validation.texts,
    "aliases": _read_aliases,
}


def _read_ops(value: object, where: str) -> list[Data]:
    return [
        validation.fields(
            entry, _OP, f"{where}[{at}]", required=("name",), renamed={"moved": "bytes_moved"}
        )
        for at, entry in enumerate(validation.items(value, where))
    ]


_GRAPH = {
    "name": validation.text,
    "ops": _read_ops,
    "outputs": _read_tensor_names,
    "samples": validation.integer,
    "tokens": validation.integer,
}
