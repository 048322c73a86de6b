"""Runners: functions that run a node of a captured PyTorch graph on real tensors."""

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
    named_arguments,
    node_specs,
    op_name,
)
from placewright.runtime.program.attention import NON_CPU_KERNELS
from placewright.runtime.program.dropout import CPU_KERNELS
from placewright.runtime.program.mixed_norms import NORMS, in_widest_dtype
from placewright.runtime.program.scalars import Scalars, is_scalar

Values = Sequence[torch.Tensor]
Runner = Callable[[Values], Values]
"""From an op's input tensors, in order, to its output tensors."""

View = Callable[[torch.Tensor], torch.Tensor]
_RNG_LOCK = threading.Lock()  # the CPU's random generator is shared by the whole process
_SCATTER_VIEWS: Mapping[str, Callable[..., Any]] = {
    "slice_scatter": torch.ops.aten.slice.Tensor,
    "select_scatter": torch.ops.aten.select.int,
    "diagonal_scatter": torch.ops.aten.diagonal.default,
    "as_strided_scatter": torch.ops.aten.as_strided.default,
}
"""The part of its first argument that an op writes."""
_LAZY_OPS: Mapping[str, View] = {"_conj": torch.conj_physical, "_neg_view": torch.neg}
"""Ops that only mark a tensor as conjugate or negative, and ops that compute the values."""


@dataclass(frozen=True)
class InputRead:
    """How a node reads one of an op's inputs.

    Args:
        slot: The index of the input.
        views: Views of it, to be applied in order.
    """

    slot: int
    views: tuple[View, ...] = ()

    def __call__(self, values: Values) -> torch.Tensor:
        value = values[self.slot]
        for view in self.views:
            value = view(value)
        return value


def node_runner(
    node: Node,
    reads: Mapping[Node, InputRead],
    device: torch.device,
    in_place: bool = False,
    seed: int | None = None,
    scalars: Scalars | None = None,
    target: Callable[..., Any] | None = None,
) -> Runner:
    """A function that runs a node on one device.

    Args:
        reads: How each node that it reads is read. Of other tensors only the shape is needed: an
            empty tensor replaces them.
        in_place: Let a node that returns a changed copy of its first input change that instead.
        seed: Seed of random numbers, the same on every device; None: as PyTorch draws them.
        scalars: The numbers that symbols stand for, if the graph has symbolic sizes.
        target: The function that it calls, with the node's arguments; None: the node's own.

    Raises:
        GraphError: The node needs a number that depends on another node's values, or the values of
            a tensor that is not among `reads`.
    """
    tensor_mask = [tensor is not None for tensor in node_specs(node)]
    call = _node_call(node, reads, device, in_place, scalars, target)
    if seed is not None and is_random(node):
        cpu_call = _node_call(node, reads, torch.device("cpu"), in_place, scalars)
        call = _seeded_call(cpu_call, device, seed)
    if tensor_mask == [True] and isinstance(node.meta.get("val"), torch.Tensor):
        return lambda values: (call(values),)
    return lambda values: [
        output for output, is_tensor in zip(call(values), tensor_mask, strict=True) if is_tensor
    ]


def view_function(
    node: Node, source: Node, device: torch.device, scalars: Scalars | None = None
) -> View:
    """A function that applies a view node to its input."""
    call = _node_call(node, {source: InputRead(0)}, device, False, scalars)
    return lambda value: call((value,))


def _node_call(
    node: Node,
    reads: Mapping[Node, InputRead],
    device: torch.device,
    in_place: bool,
    scalars: Scalars | None,
    target: Callable[..., Any] | None = None,
) -> Callable[[Values], Any]:
    target, args = target or _target(node, device), list(node.args)
    kwargs = dict(node.kwargs)
    if in_place:
        target, args = _in_place_form(node, target, args)
    _check_reads(node, reads)
    if all(is_scalar(source) for source in node.all_input_nodes) and _takes_device(node):
        kwargs["device"] = device
    call_args = [_argument(arg, reads, device, scalars) for arg in args]
    call_kwargs = {name: _argument(arg, reads, device, scalars) for name, arg in kwargs.items()}
    if any(isinstance(value, _Getter) for value in call_kwargs.values()):
        return lambda values: target(
            *(item(values) if isinstance(item, _Getter) else item for item in call_args),
            **{
                name: item(values) if isinstance(item, _Getter) else item
                for name, item in call_kwargs.items()
            },
        )
    getters = [(at, item.get) for at, item in enumerate(call_args) if isinstance(item, _Getter)]

    def call(values: Values) -> Any:
        actual = call_args.copy()
        for at, get in getters:
            actual[at] = get(values)
        return target(*actual, **call_kwargs)

    return call


def _check_reads(node: Node, reads: Mapping[Node, InputRead]) -> None:
    """Refuse unread values: only `self` may be present for its shape alone."""
    shape_only = named_arguments(node).get("self") if hasattr(node.target, "_schema") else None
    for source in node.all_input_nodes:
        is_available = source in reads or source is shape_only or source.op == "get_attr"
        if not is_available and isinstance(source.meta.get("val"), torch.Tensor):
            raise GraphError(
                f"op {op_name(node)!r} needs the values of {source.name!r}, which it was not "
                "found to read: such a model cannot be run op by op"
            )


def _takes_device(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(argument.name == "device" for argument in schema.arguments)


def module_attribute(node: Node) -> Any:
    """The attribute of the graph's module that a `get_attr` node names."""
    owner: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        owner = getattr(owner, part)
    return owner


class _Getter:
    """An argument that depends on the input values."""

    def __init__(self, get: Callable[[Values], Any]) -> None:
        self.get = get

    def __call__(self, values: Values) -> Any:
        return self.get(values)


def _argument(
    arg: Any, reads: Mapping[Node, InputRead], device: torch.device, scalars: Scalars | None
) -> Any:
    """An argument of the call, or a getter of it."""
    if isinstance(arg, Node):
        if arg in reads:
            read = reads[arg]
            return _Getter(read if read.views else itemgetter(read.slot))
        return _unread_argument(arg, device, scalars)
    if isinstance(arg, torch.device):
        return device
    if isinstance(arg, list | tuple) and arg:
        items = [_argument(item, reads, device, scalars) for item in arg]
        if any(isinstance(item, _Getter) for item in items):
            return _Getter(
                lambda values: [
                    item(values) if isinstance(item, _Getter) else item for item in items
                ]
            )
        return items
    return arg


def _unread_argument(node: Node, device: torch.device, scalars: Scalars | None) -> Any:
    """The argument of a node that is not read: a subgraph, a number, or an empty tensor."""
    if node.op == "get_attr":
        return module_attribute(node)
    value = node.meta.get("val")
    if scalars is not None and is_scalar(node):
        return _Getter(lambda values: scalars.values[node])
    if isinstance(value, torch.Tensor):
        if scalars is not None and not all(isinstance(size, int) for size in value.shape):
            return _Getter(
                lambda values: torch.empty((), dtype=value.dtype, device=device).expand(
                    [scalars.size(size) for size in value.shape]
                )
            )
        sizes = [int(size) for size in value.shape]
        return _Getter(
            lambda values: torch.empty((), dtype=value.dtype, device=device).expand(sizes)
        )
    if isinstance(value, bool | int | float | str | None):
        return value
    raise GraphError(
        f"op {op_name(node)!r} makes a number of a tensor's values, and a later op needs it: "
        "such a model cannot be run op by op"
    )


def _target(node: Node, device: torch.device) -> Callable[..., Any]:
    """The function that a node calls on a device: some ops exist on the CPU only, or are strict."""
    name = op_name(node)
    if device.type != "cpu" and name in NON_CPU_KERNELS:
        return NON_CPU_KERNELS[name]
    if device.type != "cpu" and name in NORMS and callable(node.target):
        return in_widest_dtype(node.target)
    if device.type == "cpu" and name in CPU_KERNELS:
        return CPU_KERNELS[name]
    if name in _LAZY_OPS and isinstance(node.target, torch._ops.OpOverload):
        return partial(_materialise, _LAZY_OPS[name], node.meta["val"].dtype, device)
    if name in ("view", "_unsafe_view") and isinstance(node.target, torch._ops.OpOverload):
        return _reshape if isinstance(node.args[1], Sequence) else node.target
    if not callable(node.target):
        raise GraphError(f"node {node.name!r} calls {node.target!r}: expected a function")
    return node.target


def _materialise(
    function: View, dtype: torch.dtype, device: torch.device, value: torch.Tensor | complex
) -> torch.Tensor:
    """The values of a lazy op, which survive copies and views; also of a number."""
    return function(torch.as_tensor(value, dtype=dtype, device=device))


def _reshape(tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """A view; or a copy, if the tensor's layout on another device permits no view."""
    return tensor.reshape(tuple(sizes))


def _in_place_form(
    node: Node, target: Any, args: list[Any]
) -> tuple[Callable[..., Any], list[Any]]:
    """The form of an op that writes into its first input."""
    name, overload = op_name(node), getattr(node.target, "_overloadname", "default")
    if name in _SCATTER_VIEWS:
        part = _SCATTER_VIEWS[name]

        def write(base: torch.Tensor, source: torch.Tensor, *view_args: Any, **named: Any) -> Any:
            part(base, *view_args, **named).copy_(source)
            return base

        return write, args
    packet = getattr(torch.ops.aten, f"{name}_", None)
    if packet is not None and overload in packet.overloads():
        return getattr(packet, overload), args

    def replace(base: torch.Tensor, *rest: Any, **named: Any) -> Any:
        return base.copy_(target(base, *rest, **named))

    return replace, args


def is_random(node: Node) -> bool:
    """Whether a node draws random numbers."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def _seeded_call(
    call: Callable[[Values], Any], device: torch.device, seed: int
) -> Callable[[Values], Any]:
    """Draw on the CPU, so that all devices get the same numbers."""

    def draw(values: Values) -> Any:
        cpu_values = [value.cpu() for value in values]
        with _RNG_LOCK, torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            outputs = call(cpu_values)
        if isinstance(outputs, torch.Tensor):
            return outputs.to(device)
        return [
            output.to(device) if isinstance(output, torch.Tensor) else output for output in outputs
        ]

    return draw
