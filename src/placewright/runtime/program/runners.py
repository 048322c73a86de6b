"""A node of a captured PyTorch graph in, a function that runs it on real tensors out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import torch

from placewright.errors import GraphError
from placewright.frontends.pytorch.shapes import (
    Node,
    arguments,
    op_name,
    tensors,
)
from placewright.runtime.program.attention import ELSEWHERE

Values = Sequence[torch.Tensor]
Runner = Callable[[Values], Values]
"""The tensors that an op reads, in the order of its inputs, in; the tensors it makes out."""

View = Callable[[torch.Tensor], torch.Tensor]
_DRAWING = threading.Lock()  # the CPU's random generator belongs to the whole process
_PARTS: Mapping[str, Callable[..., Any]] = {
    "slice_scatter": torch.ops.aten.slice.Tensor,
    "select_scatter": torch.ops.aten.select.int,
    "diagonal_scatter": torch.ops.aten.diagonal.default,
    "as_strided_scatter": torch.ops.aten.as_strided.default,
}
"""What part of its first argument an op writes."""
_LAZY: Mapping[str, View] = {"_conj": torch.conj_physical, "_neg_view": torch.neg}
"""Ops that only mark a tensor, as conjugate or negative, and what makes its values so."""


@dataclass(frozen=True)
class Read:
    """Where a value that a node reads comes from.

    Args:
        slot: Which of the op's inputs it is.
        views: Free views to be taken of it, in order.
    """

    slot: int
    views: tuple[View, ...] = ()

    def __call__(self, values: Values) -> torch.Tensor:
        value = values[self.slot]
        for view in self.views:
            value = view(value)
        return value


def runner(
    node: Node,
    reads: Mapping[Node, Read],
    device: torch.device,
    in_place: bool = False,
    seed: int | None = None,
) -> Runner:
    """A function that runs a node on one device.

    Args:
        reads: Where each node that it reads comes from. Of a tensor that is not among them only the
            shape is wanted, and an empty one stands in for it.
        in_place: Let a node that makes a changed copy of what it reads first change that instead.
        seed: Draw random numbers from here, the same on every device; None: as PyTorch does.

    Raises:
        GraphError: The node needs a number that only another node's values give, or the values of a
            tensor that is not among `reads`.
    """
    made = [tensor is not None for tensor in tensors(node)]
    call = _call(node, reads, device, in_place)
    if seed is not None and _random(node):
        call = _seeded(_call(node, reads, torch.device("cpu"), in_place), device, seed)
    if made == [True] and isinstance(node.meta.get("val"), torch.Tensor):
        return lambda values: (call(values),)
    return lambda values: [one for one, wanted in zip(call(values), made, strict=True) if wanted]


def view_of(node: Node, reads: Node, device: torch.device) -> View:
    """A function that takes the view that a node is of what it reads."""
    call = _call(node, {reads: Read(0)}, device, False)
    return lambda value: call((value,))


def _call(
    node: Node, reads: Mapping[Node, Read], device: torch.device, in_place: bool
) -> Callable[[Values], Any]:
    target, args = _target(node, device), list(node.args)
    kwargs = dict(node.kwargs)
    if in_place:
        target, args = _changing(node, target, args)
    _check_reads(node, reads)
    if not node.all_input_nodes and _takes_device(node):
        kwargs["device"] = device
    filled = [_filled(arg, reads, device) for arg in args]
    named = {name: _filled(arg, reads, device) for name, arg in kwargs.items()}
    if any(isinstance(value, _Getter) for value in named.values()):
        return lambda values: target(
            *(one(values) if isinstance(one, _Getter) else one for one in filled),
            **{
                name: one(values) if isinstance(one, _Getter) else one
                for name, one in named.items()
            },
        )
    getters = [(at, one.get) for at, one in enumerate(filled) if isinstance(one, _Getter)]

    def call(values: Values) -> Any:
        given = filled.copy()
        for at, get in getters:
            given[at] = get(values)
        return target(*given, **named)

    return call


def _check_reads(node: Node, reads: Mapping[Node, Read]) -> None:
    """Refuse to make up values: only `self` is ever there for its shape alone."""
    shown = arguments(node).get("self") if hasattr(node.target, "_schema") else None
    for source in node.all_input_nodes:
        held = source in reads or source is shown or source.op == "get_attr"
        if not held and isinstance(source.meta.get("val"), torch.Tensor):
            raise GraphError(
                f"op {op_name(node)!r} needs the values of {source.name!r}, which it was not "
                "found to read: such a model cannot be run op by op"
            )


def _takes_device(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(one.name == "device" for one in schema.arguments)


def attribute(node: Node) -> Any:
    """What a node that names an attribute of its graph's module stands for."""
    owner: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        owner = getattr(owner, part)
    return owner


class _Getter:
    """An argument that depends on the values that are read."""

    def __init__(self, get: Callable[[Values], Any]) -> None:
        self.get = get

    def __call__(self, values: Values) -> Any:
        return self.get(values)


def _filled(arg: Any, reads: Mapping[Node, Read], device: torch.device) -> Any:
    """An argument as it is to be given, or a getter of it."""
    if isinstance(arg, Node):
        if arg in reads:
            read = reads[arg]
            return _Getter(read if read.views else itemgetter(read.slot))
        return _other(arg, device)
    if isinstance(arg, torch.device):
        return device
    if isinstance(arg, list | tuple) and arg:
        parts = [_filled(one, reads, device) for one in arg]
        if any(isinstance(one, _Getter) for one in parts):
            return _Getter(
                lambda values: [one(values) if isinstance(one, _Getter) else one for one in parts]
            )
        return parts
    return arg


def _other(node: Node, device: torch.device) -> Any:
    """What a node that is not read stands for: a subgraph, a number, or a tensor's shape."""
    if node.op == "get_attr":
        return attribute(node)
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        sizes = [int(size) for size in value.shape]
        return _Getter(
            lambda values: torch.empty((), dtype=value.dtype, device=device).expand(sizes)
        )
    if isinstance(value, bool | int | float | str | None):
        return value
    raise GraphError(
        f"op {op_name(node)!r} makes a number out of a tensor's values, and a later op needs it: "
        "such a model cannot be run op by op"
    )


def _target(node: Node, device: torch.device) -> Callable[..., Any]:
    """What a node calls on a device: a few ops exist on the CPU alone, or are too strict."""
    name = op_name(node)
    if device.type != "cpu" and name in ELSEWHERE:
        return ELSEWHERE[name]
    if name in _LAZY and isinstance(node.target, torch._ops.OpOverload):
        return partial(_at_once, _LAZY[name], node.meta["val"].dtype, device)
    if name in ("view", "_unsafe_view") and isinstance(node.target, torch._ops.OpOverload):
        return _reshaped if isinstance(node.args[1], Sequence) else node.target
    if not callable(node.target):
        raise GraphError(f"node {node.name!r} calls {node.target!r}: expected a function")
    return node.target


def _at_once(
    function: View, dtype: torch.dtype, device: torch.device, value: torch.Tensor | complex
) -> torch.Tensor:
    """What a lazy op stands for, which no copy and no view can lose; of a number, too."""
    return function(torch.as_tensor(value, dtype=dtype, device=device))


def _reshaped(tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """A view; where another device laid the tensor out so that there is none, a copy."""
    return tensor.reshape(tuple(sizes))


def _changing(node: Node, target: Any, args: list[Any]) -> tuple[Callable[..., Any], list[Any]]:
    """The form of an op that changes what it reads first."""
    name, overload = op_name(node), getattr(node.target, "_overloadname", "default")
    if name in _PARTS:
        part = _PARTS[name]

        def write(base: torch.Tensor, rows: torch.Tensor, *place: Any, **named: Any) -> Any:
            part(base, *place, **named).copy_(rows)
            return base

        return write, args
    packet = getattr(torch.ops.aten, f"{name}_", None)
    if packet is not None and overload in packet.overloads():
        return getattr(packet, overload), args

    def replace(base: torch.Tensor, *rest: Any, **named: Any) -> Any:
        return base.copy_(target(base, *rest, **named))

    return replace, args


def _random(node: Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def _seeded(
    call: Callable[[Values], Any], device: torch.device, seed: int
) -> Callable[[Values], Any]:
    """Draw on the CPU, so that all devices draw the same."""

    def draw(values: Values) -> Any:
        there = [value.cpu() for value in values]
        with _DRAWING, torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            made = call(there)
        if isinstance(made, torch.Tensor):
            return made.to(device)
        return [one.to(device) if isinstance(one, torch.Tensor) else one for one in made]

    return draw
