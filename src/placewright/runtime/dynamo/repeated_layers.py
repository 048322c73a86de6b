"""Finds the layers of a graph of TorchDynamo's that repeat, and leaves most of them out.

A model of 32 equal layers gives AOTAutograd 32 times the same work, and with symbolic sizes that is
half of a trace. So it gets a graph of the first three layers, and `layer_copies.py` copies what it
made of the third for all others. The shorter graph has all inputs and outputs of the whole one: an
output of a layer that is left out is a copy of the third layer's, and an input that such a layer
changes is overwritten.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from placewright.frontends.pytorch.shapes import Node

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KEPT_LAYERS = 3
"""Layers that AOTAutograd lowers: the first, and two that must have become the same."""
MIN_LAYERS = 6
"""Layers below which there is little to gain."""
_TRIES = 4  # runs that are looked at
NODE_INDEX = "placewright_node"
"""The key in a node's `custom` meta data, which AOTAutograd passes on, of the node's number."""

_ATOMS = (
    *(int, float, complex, bool, str, type(None), type(...)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
_PLAIN_TENSORS = torch.Tensor, torch.nn.Parameter, torch._subclasses.FakeTensor
_CHANGING = frozenset(
    {"index_copy_", "index_add_", "index_put_", "scatter_", "masked_fill_", "copy_", "fill_"}
    | {"zero_", "add_", "sub_", "mul_", "setitem", "iadd", "isub", "imul"}
)
"""Functions that change the data of their first argument, and nothing else."""
_WITHOUT_VALUE = "setitem", "_log_api_usage_once"


@dataclass(frozen=True, eq=False)
class RepeatedLayers:
    """A run of layers in a graph, each the same ops on inputs of its own.

    Args:
        graph: Of TorchDynamo's.
        nodes: Those of each layer, in order.
        sources: What each layer reads in place of what the last kept layer reads from outside.
    """

    graph: torch.fx.Graph
    nodes: list[list[Node]]
    sources: list[dict[Node, Node]]
    changed: list[Node] = field(default_factory=list)
    """The inputs that the last kept layer changes."""

    @property
    def model_layer(self) -> int:
        """The layer that all others are copies of."""
        return KEPT_LAYERS - 1


@dataclass(frozen=True, eq=False)
class ShortGraph:
    """A graph without most of its layers.

    Args:
        layers: The layers of the whole graph.
        places: The layer and the number in it of each node, by its number in `module`.
        readings: The layer and the node of the last kept layer that a node stands for, likewise.
        changes: The input that a node overwrites, likewise.
    """

    module: torch.fx.GraphModule
    layers: RepeatedLayers
    places: dict[int, tuple[int, int]]
    readings: dict[int, int]
    changes: dict[int, Node]


def find_layers(module: torch.fx.GraphModule) -> RepeatedLayers | None:
    """The run of equal layers in a graph that saves most, if there is one worth it."""
    nodes = [node for node in module.graph.nodes if node.op not in ("placeholder", "output")]
    for run in _longest_runs(_numbers(nodes))[:_TRIES]:
        layers = _layers_of(module.graph, nodes, *_from_boundary(nodes, *run))
        if layers is not None:
            return layers
    return None


def _layers_of(
    graph: torch.fx.Graph, nodes: Sequence[Node], start: int, period: int, count: int
) -> RepeatedLayers | None:
    """The layers of a run up to the first that reads otherwise than those before it."""
    parts = [list(nodes[start + at * period : start + (at + 1) * period]) for at in range(count)]
    places = {node: (at, k) for at, part in enumerate(parts) for k, node in enumerate(part)}
    model = [_reads(node, KEPT_LAYERS - 1, places) for node in parts[KEPT_LAYERS - 1]]
    sources: list[dict[Node, Node]] = [{}]  # the first layer may read what comes before it
    for at, part in enumerate(parts[1:], 1):
        found = _sources_of(part, at, model, places)
        if found is None:
            break
        sources.append(found)
    if len(sources) < MIN_LAYERS:
        return None
    return _with_changes(RepeatedLayers(graph, parts[: len(sources)], sources))


def shorten(module: torch.fx.GraphModule, layers: RepeatedLayers) -> ShortGraph:
    """The graph with the first layers alone."""
    graph = torch.fx.Graph(module)
    env: dict[Node, Node] = {}
    left_out = {node for part in layers.nodes[KEPT_LAYERS:] for node in part}
    within = {node: (at, k) for at, part in enumerate(layers.nodes) for k, node in enumerate(part)}
    last = layers.nodes[-1][-1]
    places: dict[int, tuple[int, int]] = {}
    readings: dict[int, int] = {}
    changes: dict[int, Node] = {}
    count = 0

    def number(node: Node) -> int:
        nonlocal count
        count += 1
        node.meta["custom"] = {**(node.meta.get("custom") or {}), NODE_INDEX: count}
        return count

    for node in module.graph.nodes:
        if node not in left_out:
            env[node] = graph.node_copy(node, env.__getitem__)
            if hasattr(node, "_dynamo_source"):  # AOTAutograd looks for it
                env[node]._dynamo_source = node._dynamo_source
            if node.op not in ("placeholder", "output"):
                index = number(env[node])
                if node in within:
                    places[index] = within[node]
        if node is last:
            clones = {}
            for reader in _readings(layers, within):
                at, k = within[reader]
                source = layers.nodes[min(at, layers.model_layer)][k]
                clones[reader] = graph.call_method("clone", (env[source],))
                readings[number(clones[reader])] = at
            env |= clones
            for at in range(KEPT_LAYERS, len(layers.nodes)):
                for target in layers.changed:
                    own = layers.sources[at][target]
                    copy = graph.call_method("copy_", (env[own], env[target]))
                    changes[number(copy)] = own
    short = torch.fx.GraphModule(module, graph)
    short.meta = dict(module.meta)
    if hasattr(module, "_param_name_to_source"):
        short._param_name_to_source = module._param_name_to_source
    return ShortGraph(short, layers, places, readings, changes)


def _readings(layers: RepeatedLayers, within: dict[Node, tuple[int, int]]) -> list[Node]:
    """The nodes of layers that anything after the layers reads."""
    return [
        node
        for part in layers.nodes
        for node in part
        if any(user not in within for user in node.users)
    ]


def _reads(
    node: Node, layer: int, places: dict[Node, tuple[int, int]]
) -> list[tuple[int, int] | Node]:
    """What a node reads: nodes of layers by their distance and number, others as they are."""
    found: list[tuple[int, int] | Node] = []
    for source in argument_nodes(node):
        at, k = places.get(source, (-1, -1))
        found.append(source if at < 0 else (layer - at, k))
    return found


def argument_nodes(node: Node) -> list[Node]:
    """The nodes among the arguments of a node, in order, as often as they are there."""
    found: list[Node] = []
    torch.fx.map_arg((node.args, node.kwargs), found.append)
    return found


def _sources_of(
    part: Sequence[Node],
    layer: int,
    model: Sequence[list[tuple[int, int] | Node]],
    places: dict[Node, tuple[int, int]],
) -> dict[Node, Node] | None:
    """What a layer reads in place of what the model layer reads; None: it is no repetition."""
    sources: dict[Node, Node] = {}
    for node, expected in zip(part, model, strict=True):
        reads = _reads(node, layer, places)
        if len(reads) != len(expected):
            return None
        for found, wanted in zip(reads, expected, strict=True):
            if not isinstance(found, Node) or not isinstance(wanted, Node):
                if found != wanted or not isinstance(found, tuple) or found[0] not in (0, 1):
                    return None
                continue
            if sources.setdefault(wanted, found) is not found:
                return None
            if found is not wanted and not _are_alike(found, wanted):
                return None
    return sources


def _are_alike(first: Node, second: Node) -> bool:
    """Whether two inputs of the graph have the same metadata."""
    is_input = first.op == second.op == "placeholder"
    metadata = _metadata(first)
    return is_input and metadata is not None and metadata == _metadata(second)


def _with_changes(layers: RepeatedLayers) -> RepeatedLayers | None:
    """The layers with the inputs that they change; None: they change what they share."""
    within = {node: at for at, part in enumerate(layers.nodes) for node in part}
    last_found = False
    changed: dict[Node, None] = {}
    for node in layers.graph.nodes:
        last_found |= node is layers.nodes[-1][-1]
        target = _changed_argument(node)
        if target is None:
            continue
        if node not in within:
            if last_found:  # it may change what a layer made
                return None
            continue
        if target.op == "placeholder":
            if within[node] == layers.model_layer:
                changed[target] = None
        elif within.get(target) != within[node]:
            return None
    for target in changed:
        own = [sources.get(target) for sources in layers.sources[1:]]
        if None in own or len(set(own)) < len(own):
            return None
        for at, placeholder in enumerate(own, 1):
            assert placeholder is not None
            if any(within.get(user, at) != at for user in placeholder.users):
                return None
    read = _readings(layers, {node: (at, 0) for node, at in within.items()})
    if not all(isinstance(node.meta.get("example_value"), torch.Tensor) for node in read):
        return None
    storages = {_storage(node) for node in layers.graph.nodes if node.op == "placeholder"} - {None}
    if any(_storage(node) in storages for node in read):
        return None  # it is a view of an input, which a copy is not
    return RepeatedLayers(layers.graph, layers.nodes, layers.sources, list(changed))


def _changed_argument(node: Node) -> Node | None:
    """The argument that a node changes, if its name says that it does."""
    if node.op not in ("call_function", "call_method"):
        return None
    name = str(getattr(node.target, "__name__", node.target))
    is_changing = name in _CHANGING or (name.endswith("_") and not name.endswith("__"))
    first = node.args[0] if node.args else None
    return first if is_changing and isinstance(first, Node) else None


def _storage(node: Node) -> int | None:
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    return int(value.untyped_storage()._cdata)


# -- equal nodes -----------------------------------------------------------------------------------


class _UnknownError(Exception):
    """Something of a node cannot be compared."""


def _numbers(nodes: Sequence[Node]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A number for each node: equal for nodes that do the same, whatever they read."""
    known: dict[Any, int] = {}
    numbers = []
    for at, node in enumerate(nodes):
        try:
            token: Any = _token(node)
        except _UnknownError:
            token = at
        numbers.append(known.setdefault(token, len(known)))
    return np.array(numbers, dtype=np.int64)


def _token(node: Node) -> tuple[Any, ...]:
    """All that says what a node does, but the nodes that it reads."""
    if node.op not in ("call_function", "call_method"):
        raise _UnknownError
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        raise _UnknownError
    name = getattr(node.target, "__name__", node.target)
    metadata = _metadata(node)
    if metadata is None and name not in _WITHOUT_VALUE:  # such as a mode that begins or ends
        raise _UnknownError
    target = node.target if isinstance(node.target, str) else id(node.target)
    reads = tuple(_metadata(source) for source in argument_nodes(node))
    return node.op, target, _text(node.args), _text(node.kwargs), metadata, reads


def _text(value: Any) -> str:
    """A value in words, in which every node is the same."""
    if isinstance(value, Node):
        return "node"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(_text, value))})"
    if isinstance(value, dict):
        return f"dict({', '.join(f'{key!r}: {_text(item)}' for key, item in value.items())})"
    if isinstance(value, slice):
        return f"slice({_text(value.start)}, {_text(value.stop)}, {_text(value.step)})"
    if type(value) in _ATOMS:
        return repr(value)
    raise _UnknownError


def _metadata(node: Node) -> Any:
    return _described(node.meta.get("example_value"))


def _described(value: Any) -> Any:
    """What lowering can know of a value; None: nothing is known."""
    if isinstance(value, list | tuple):
        parts = tuple(map(_described, value))
        return None if None in parts else parts
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return type(value), str(value)
    if isinstance(value, bool | int | float):
        return type(value), repr(value)
    if type(value) not in _PLAIN_TENSORS or value.layout != torch.strided:
        return None
    return (
        type(value),
        *(value.dtype, value.device, value.requires_grad, value.is_conj(), value.is_neg()),
        *(str(value.shape), str(value.stride()), str(value.storage_offset())),
    )


# -- runs ------------------------------------------------------------------------------------------


def _longest_runs(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> list[tuple[int, int, int]]:
    """Start, period and length of runs, one for each period, those that save most first."""
    runs: list[tuple[int, tuple[int, int, int]]] = []
    for period in _distances(numbers):
        equal = numbers[period:] == numbers[:-period]
        edges = np.flatnonzero(np.diff(np.concatenate(([False], equal, [False])).astype(np.int8)))
        found = [(end - start, start) for start, end in edges.reshape(-1, 2).tolist()]
        longest, start = max(found, key=lambda run: run[0])
        count = longest // period + 1
        if count >= MIN_LAYERS:
            runs.append(((count - KEPT_LAYERS) * period, (start, period, longest + period)))
    return [run for _, run in sorted(runs, key=lambda item: -item[0])]


def _from_boundary(
    nodes: Sequence[Node], start: int, period: int, length: int
) -> tuple[int, int, int]:
    """Start, period and number of repetitions from where fewest nodes are read across."""
    at = {node: index for index, node in enumerate(nodes[start : start + length])}
    crossings = [0] * period
    for node in nodes[start + period : start + 2 * period]:
        last = max((at[user] for user in node.users if user in at), default=at[node])
        for boundary in range(at[node] + 1, min(last, at[node] + period) + 1):
            crossings[boundary % period] += 1
    offset = crossings.index(min(crossings))
    return start + offset, period, (length - offset) // period


def _distances(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[int]:
    """Distances between equal nodes that follow each other, the shortest first."""
    order = np.argsort(numbers, kind="stable")
    same = numbers[order][1:] == numbers[order][:-1]
    yield from np.unique(np.diff(order)[same]).tolist()
