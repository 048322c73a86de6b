"""Random sample inputs that a node of a captured graph can run on.

Numbers are drawn between 0.5 and 1.5: roots, logarithms, divisors and variances are valid, and none
is so small that a processor takes a slow path. Integers are valid for the op: indices within range,
classes that exist, ends of groups in order.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from placewright.frontends.pytorch.shapes import (
    Node,
    named_arguments,
    op_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_INDEX_OPS = ("gather", "scatter", "scatter_add", "scatter_reduce", "index_select", "index_add")
_UNIQUE_INDEX_OPS = ("index_copy", "index_fill")
_EMBEDDING_OPS = ("embedding", "_embedding_bag", "embedding_renorm", "_embedding_bag_forward_only")
_CLASS_LOSSES = (
    "nll_loss",
    "nll_loss_forward",
    "nll_loss2d_forward",
    "nll_loss_nd",
    "cross_entropy",
)
_CLASS_LOSSES_BACKWARD = ("nll_loss_backward", "nll_loss2d_backward")
_GROUPED_OPS = ("_grouped_mm", "grouped_mm_fallback", "grouped_weight_gradient")
_MAX_RANDOM = 1 << 20  # numbers that are drawn, then repeated: drawing is slow on the host


def index_limits(node: Node) -> dict[Node, int]:
    """The exclusive upper limit of each node that is read as indices or classes."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return {}
    return {source: limit for source, limit in _iter_limits(node) if isinstance(source, Node)}


def _iter_limits(node: Node) -> Iterator[tuple[Any, int]]:
    name, args = op_name(node), named_arguments(node)
    base = name.removesuffix("_backward")
    if name in (*_INDEX_OPS, *_UNIQUE_INDEX_OPS):
        self_shape = _shape(args["self"])
        yield args["index"], self_shape[int(args["dim"])] if self_shape else 1
    elif base in ("gather", "index_select") and "index" in args:
        sizes = _shape(args["self"]) if isinstance(args.get("self"), Node) else ()
        yield args["index"], sizes[int(args["dim"])] if sizes else 1
    elif name in ("index", "index_put", "_unsafe_index", "_unsafe_index_put", "_index_put_impl"):
        for size, index in zip(_shape(args["self"]), args["indices"], strict=False):
            if index is not None:
                yield index, size
    elif name in _EMBEDDING_OPS:
        weight = next(args[key] for key in ("weight", "self") if isinstance(args.get(key), Node))
        yield args["indices"], _shape(weight)[0]
        yield args.get("offsets"), 1
    elif name == "embedding_dense_backward":
        yield args["indices"], int(args["num_weights"])
    elif name in (*_CLASS_LOSSES, *_CLASS_LOSSES_BACKWARD):
        sizes = _shape(args["self"])
        yield args["target"], sizes[1] if len(sizes) > 1 else sizes[0]
    elif name == "max_pool2d_with_indices_backward" or name.startswith("max_unpool"):
        yield args["indices"], math.prod(_shape(args["self"])[-2:])
    elif name in ("one_hot", "bincount"):
        yield args["self"], max(1, int(args.get("num_classes") or 1))
    elif name == "take":
        yield args["index"], math.prod(_shape(args["self"]))


def needs_unique_indices(node: Node) -> bool:
    """Whether the indices that a node writes to must differ."""
    return op_name(node) in _UNIQUE_INDEX_OPS


def group_rows(node: Node) -> dict[Node, int]:
    """The node that a grouped product reads as ends of its groups, and how many rows these share.

    A kernel of a GPU ends the process where an end is below the one before.
    """
    if op_name(node) not in _GROUPED_OPS or not isinstance(node.target, torch._ops.OpOverload):
        return {}
    args = named_arguments(node)
    ends = args.get("offs")
    if not isinstance(ends, Node):
        return {}
    rows = _shape(args["self"] if "self" in args else args["input"])
    return {ends: rows[-1] if len(rows) == 2 and _is_summed(node) else rows[0]}


def _is_summed(node: Node) -> bool:
    """Whether groups share what is summed over: of a product of two matrices."""
    args = named_arguments(node)
    return "mat2" in args and len(_shape(args["mat2"])) == 2


def sample_ends(template: torch.Tensor, device: torch.device, rows: int) -> torch.Tensor:
    """Ends of groups of about equal size, which share `rows`."""
    groups = template.numel()
    ends = torch.arange(1, groups + 1, device=device) * rows // max(1, groups)
    return ends.to(template.dtype)


def sample_like(
    template: torch.Tensor, device: torch.device, limit: int | None = None, is_unique: bool = False
) -> torch.Tensor:
    """A random tensor of the shape, strides and dtype of a template, which needs no data.

    Args:
        limit: Integers are below this; None: below two.
        is_unique: No integer occurs twice, if the limit permits.
    """
    sizes, steps = [int(dim) for dim in template.shape], [int(dim) for dim in template.stride()]
    length = 1 + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
    length = 0 if 0 in sizes else length
    return _random_values(length, template.dtype, device, limit or 2, is_unique).as_strided(
        sizes, steps
    )


def _random_values(
    length: int, dtype: torch.dtype, device: torch.device, limit: int, is_unique: bool
) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        if dtype.itemsize == 1:  # 8-bit floats have no generator
            return torch.ones(length, device=device).to(dtype)
        values = torch.empty(min(length, _MAX_RANDOM), dtype=dtype, device=device)
        values = values.uniform_(0.5, 1.5) if dtype.is_floating_point else values.normal_()
        return values.repeat(max(1, -(-length // _MAX_RANDOM)))[:length]  # repeated
    if dtype is torch.bool:
        return torch.randint(2, (length,), device=device).to(torch.bool)
    if is_unique and limit >= length:
        return torch.randperm(limit, device=device)[:length].to(dtype)
    upper = min(limit, int(torch.iinfo(dtype).max))
    return torch.randint(max(upper, 1), (length,), device=device).to(dtype)


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in node.meta["val"].shape)


def describe(value: Any, names: Mapping[Node, str]) -> str:
    """An argument as text, the same for equal arguments; `names` are texts of nodes."""
    if isinstance(value, Node):
        return names.get(value, "?")
    if isinstance(value, list | tuple):
        return f"[{','.join(describe(item, names) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{describe(item, names)}' for key, item in value.items())}}}"
    return repr(value)
