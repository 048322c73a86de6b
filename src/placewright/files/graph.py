"""Graphs in files: ops in any order, each naming its inputs, with what is not default."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from placewright.errors import GraphError, nearest
from placewright.files import validation
from placewright.files.header import body, head
from placewright.graph import Graph, Op, Tensor, in_order

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.files.validation import Data

_DEFAULTS = {field.name: field.default for field in fields(Op) if field.default is not MISSING}
_PLAIN: dict[str, Callable[[Any], Any]] = {  # numpy's numbers and tuples are not plain data
    "outputs": lambda sizes: [int(size) for size in sizes],
    "flops": float,
    "moved": int,
    "resident": int,
    "workspace": int,
    "runs_on": list,
    "aliases": lambda pairs: [[int(output), int(source)] for output, source in pairs],
}


def graph_data(graph: Graph) -> Data:
    """A graph as plain data."""
    ops = graph.ops
    data = head("graph") | {"name": graph.name, "ops": [_op_data(op, ops) for op in ops]}
    if graph.outputs != Graph(graph.name, ops).outputs:
        data["outputs"] = _tensor_names(graph.outputs or (), ops)
    return data


def read_graph(data: object, where: str = "") -> Graph:
    """The graph that plain data describe."""
    found = validation.fields(body(data, "graph", where), _GRAPH, where, need=("name", "ops"))
    entries: list[Data] = found["ops"]
    position = {entry["name"]: at for at, entry in enumerate(entries)}
    if len(position) < len(entries):
        twice = next(e["name"] for at, e in enumerate(entries) if position[e["name"]] != at)
        raise GraphError(f"two ops are named {twice!r}: names must be unique")
    sorted_already = True
    for at, entry in enumerate(entries):
        inputs = entry.get("inputs")
        if inputs:
            entry["inputs"] = _tensors(inputs, position, f"op {entry['name']!r} reads from")
            sorted_already = sorted_already and max(entry["inputs"])[0] < at
    ops = [Op(**entry) for entry in entries]
    outputs = None
    if "outputs" in found:
        outputs = _tensors(found["outputs"], position, "the graph's outputs name")
    name: str = found["name"]
    return Graph(name, tuple(ops), outputs) if sorted_already else in_order(name, ops, outputs)


def _op_data(op: Op, ops: tuple[Op, ...]) -> Data:
    data: Data = {"name": op.name}
    for key, default in _DEFAULTS.items():
        value = getattr(op, key)
        if value != default:
            data[key] = _PLAIN[key](value) if key in _PLAIN else value
    if op.inputs:
        data["inputs"] = _tensor_names(op.inputs, ops)
    return data


def _tensor_names(tensors: tuple[Tensor, ...], ops: tuple[Op, ...]) -> list[object]:
    """Each tensor as its op's name, with the index where that is not the first output."""
    return [
        [ops[source].name, int(output)] if output else ops[source].name
        for source, output in tensors
    ]


def _tensors(
    names: tuple[tuple[str, int], ...], position: dict[str, int], what: str
) -> tuple[Tensor, ...]:
    try:
        return tuple([(position[name], output) for name, output in names])
    except KeyError:
        unknown = next(name for name, _ in names if name not in position)
        raise GraphError(
            f"{what} op {unknown!r}, which is not there: {nearest(unknown, position)}"
        ) from None


def _named_tensors(value: object, where: str) -> tuple[tuple[str, int], ...]:
    """A list of tensors, each `"op"` or `["op", output]`."""
    return tuple(
        [
            (one, 0) if type(one) is str else _named_tensor(one, where)
            for one in validation.items(value, where)
        ]
    )


def _named_tensor(value: object, where: str) -> tuple[str, int]:
    if not (isinstance(value, list) and list(map(type, value)) == [str, int]):
        validation.refuse(value, where, 'an op\'s name or ["name", output]')
    return str(value[0]), validation.integer(value[1], where)


def _aliases(value: object, where: str) -> tuple[tuple[int, int], ...]:
    """A list of `[output, input]` pairs."""
    pairs = validation.items(value, where)
    for pair in pairs:
        if not (isinstance(pair, list) and list(map(type, pair)) == [int, int]):
            validation.refuse(pair, where, "[output, input]")
    return tuple((output, source) for output, source in pairs)


_OP = {
    "name": validation.text,
    "kind": validation.text,
    "inputs": _named_tensors,
    "outputs": validation.sizes,
    "flops": validation.number,
    "moved": validation.integer,
    "resident": validation.integer,
    "workspace": validation.integer,
    "dtype": validation.text,
    "module": validation.text,
    "phase": validation.text,
    "colocate": validation.text,
    "runs_on": validation.texts,
    "aliases": _aliases,
}


def _ops(value: object, where: str) -> list[Data]:
    return [
        validation.fields(one, _OP, f"{where}[{at}]", need=("name",))
        for at, one in enumerate(validation.items(value, where))
    ]


_GRAPH = {"name": validation.text, "ops": _ops, "outputs": _named_tensors}
