"""The op name, arguments and tensor shapes of a node of a PyTorch graph."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from placewright.errors import GraphError
from placewright.frontends.op_costs import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

Node = torch.fx.Node


def op_name(node: Node) -> str:
    """The op's name without its overload; ops of other libraries keep their namespace."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return str(getattr(node.target, "__name__", node.target))
    name = str(node.target._schema.name)
    return name.removeprefix("aten::")


def named_arguments(node: Node) -> dict[str, Any]:
    """A node's arguments by name, with defaults filled in."""
    assert isinstance(node.target, torch._ops.OpOverload)
    values = {}
    for at, argument in enumerate(node.target._schema.arguments):
        value = node.args[at] if at < len(node.args) else node.kwargs.get(argument.name)
        values[argument.name] = argument.default_value if value is None else value
    return values


def node_specs(node: Node) -> list[TensorSpec | None]:
    """The output tensors of a node; None for an output that is not a tensor.

    A dimension of stride 0 does not multiply the bytes.
    """
    value = node.meta.get("val")
    if value is None and node.op == "get_attr":
        value = getattr(node.graph.owning_module, str(node.target), None)
    values = value if isinstance(value, list | tuple) else [value]
    return [_spec_of(item, node) if isinstance(item, torch.Tensor) else None for item in values]


def has_unknown_size(node: Node) -> bool:
    """Whether the size of an output depends on values."""
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    sizes: list[Any] = [
        size for item in values if isinstance(item, torch.Tensor) for size in item.shape
    ]
    return any(isinstance(size, torch.SymInt) and not size.node.has_hint() for size in sizes)


def has_unlimited_size(node: Node) -> bool:
    """Whether the size of an output depends on values and has no limit."""
    if not has_unknown_size(node):
        return False
    try:
        node_specs(node)
    except GraphError:
        return True
    return False


def shape(node: Node) -> tuple[int, ...]:
    """The shape of a node's tensor."""
    return _sizes(node.meta["val"].shape, node)


def layout(node: Node) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape and the strides of a node's tensor."""
    value = node.meta["val"]
    return _sizes(value.shape, node), _sizes(value.stride(), node)


def same_shape(node: Node, other: Node) -> bool:
    """Whether the tensors of two nodes have one shape, whatever its symbols stand for."""
    return _exact_sizes(node.meta["val"].shape) == _exact_sizes(other.meta["val"].shape)


def same_layout(node: Node, other: Node) -> bool:
    """Whether the tensors of two nodes have one shape and strides, likewise."""
    strides, other_strides = node.meta["val"].stride(), other.meta["val"].stride()
    return same_shape(node, other) and _exact_sizes(strides) == _exact_sizes(other_strides)


def _exact_sizes(sizes: Sequence[int | torch.SymInt]) -> list[Any]:
    return [size if isinstance(size, int) else size.node.expr for size in sizes]


def _spec_of(value: torch.Tensor, node: Node) -> TensorSpec:
    sizes = _sizes(value.shape, node)
    dtype = str(value.dtype).removeprefix("torch.")
    if value.layout is not torch.strided:
        return TensorSpec(sizes, dtype)
    strides = _sizes(value.stride(), node)
    repeats = [size > 1 and step == 0 for size, step in zip(sizes, strides, strict=True)]
    if not any(repeats):
        return TensorSpec(sizes, dtype)
    stored_sizes = [size for size, repeat in zip(sizes, repeats, strict=True) if not repeat]
    return TensorSpec(sizes, dtype, stored_elements=math.prod(stored_sizes))


def _sizes(sizes: Sequence[int | torch.SymInt], node: Node) -> tuple[int, ...]:
    return tuple(_size(size, node) for size in sizes)


def _size(size: int | torch.SymInt, node: Node) -> int:
    """A size; a symbolic one is the example's, if known, or its upper bound."""
    if isinstance(size, int):
        return size
    if size.node.has_hint():
        return int(size.node.hint)
    shape_env, expression = size.node.shape_env, size.node.expr
    known_values = getattr(shape_env, "real_tensor_prop_unbacked_vals", None)
    known_values = (
        getattr(shape_env, "unbacked_var_to_val", None) if known_values is None else known_values
    )
    upper_bound = shape_env.bound_sympy(expression.xreplace(known_values or {})).upper
    if not upper_bound <= 2**40:
        raise GraphError(
            f"op {op_name(node)!r} makes a tensor whose size depends on values and has no limit: "
            "limit it in the model, with torch._check(size <= 1000), or fix the sizes"
        )
    return int(upper_bound)
