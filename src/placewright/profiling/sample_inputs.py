"""A node of a captured graph in, random tensors that it can be run on out.

Numbers are drawn between a half and one and a half: roots, logarithms, divisors and variances are
valid, and none is so small that a processor takes a slow path. Whole numbers are what the op takes
them for: places that are there, classes that are known.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from placewright.frontends.pytorch.shapes import (
    Node,
    arguments,
    op_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ALONG = ("gather", "scatter", "scatter_add", "scatter_reduce", "index_select", "index_add")
_ALONG_ONCE = ("index_copy", "index_fill")
_ROWS = ("embedding", "_embedding_bag", "embedding_renorm", "_embedding_bag_forward_only")
_CLASSES = ("nll_loss", "nll_loss_forward", "nll_loss2d_forward", "nll_loss_nd", "cross_entropy")
_CLASSES_BACK = ("nll_loss_backward", "nll_loss2d_backward")
_DRAWN = 1 << 20  # numbers that are drawn: the host draws hundreds of millions a second, one by one


def index_limits(node: Node) -> dict[Node, int]:
    """For each node that is read for places or classes: one more than the largest it may hold."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return {}
    return {source: limit for source, limit in _limits(node) if isinstance(source, Node)}


def _limits(node: Node) -> Iterator[tuple[Any, int]]:
    name, given = op_name(node), arguments(node)
    base = name.removesuffix("_backward")
    if name in (*_ALONG, *_ALONG_ONCE):
        along = _shape(given["self"])
        yield given["index"], along[int(given["dim"])] if along else 1
    elif base in ("gather", "index_select") and "index" in given:
        sizes = _shape(given["self"]) if isinstance(given.get("self"), Node) else ()
        yield given["index"], sizes[int(given["dim"])] if sizes else 1
    elif name in ("index", "index_put", "_unsafe_index", "_unsafe_index_put", "_index_put_impl"):
        for size, index in zip(_shape(given["self"]), given["indices"], strict=False):
            if index is not None:
                yield index, size
    elif name in _ROWS:
        weight = next(given[key] for key in ("weight", "self") if isinstance(given.get(key), Node))
        yield given["indices"], _shape(weight)[0]
        yield given.get("offsets"), 1
    elif name == "embedding_dense_backward":
        yield given["indices"], int(given["num_weights"])
    elif name in (*_CLASSES, *_CLASSES_BACK):
        sizes = _shape(given["self"])
        yield given["target"], sizes[1] if len(sizes) > 1 else sizes[0]
    elif name == "max_pool2d_with_indices_backward" or name.startswith("max_unpool"):
        yield given["indices"], math.prod(_shape(given["self"])[-2:])
    elif name in ("one_hot", "bincount"):
        yield given["self"], max(1, int(given.get("num_classes") or 1))
    elif name == "take":
        yield given["index"], math.prod(_shape(given["self"]))


def distinct(node: Node) -> bool:
    """Whether the places that a node writes to must all differ."""
    return op_name(node) in _ALONG_ONCE


def sample(
    like: torch.Tensor, device: torch.device, limit: int | None = None, once: bool = False
) -> torch.Tensor:
    """A random tensor of the shape, steps in memory and dtype of another, which needs no data.

    Args:
        limit: Whole numbers are below this; None: below two.
        once: No whole number comes twice, where there are enough.
    """
    sizes, steps = [int(one) for one in like.shape], [int(one) for one in like.stride()]
    length = 1 + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
    length = 0 if 0 in sizes else length
    return _filled(length, like.dtype, device, limit or 2, once).as_strided(sizes, steps)


def _filled(
    length: int, dtype: torch.dtype, device: torch.device, limit: int, once: bool
) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        if dtype.itemsize == 1:  # eight bits have no generator
            return torch.ones(length, device=device).to(dtype)
        drawn = torch.empty(min(length, _DRAWN), dtype=dtype, device=device)
        drawn = drawn.uniform_(0.5, 1.5) if dtype.is_floating_point else drawn.normal_()
        return drawn.repeat(max(1, -(-length // _DRAWN)))[:length]  # the same again and again
    if dtype is torch.bool:
        return torch.randint(2, (length,), device=device).to(torch.bool)
    if once and limit >= length:
        return torch.randperm(limit, device=device)[:length].to(dtype)
    most = min(limit, int(torch.iinfo(dtype).max))
    return torch.randint(max(most, 1), (length,), device=device).to(dtype)


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in node.meta["val"].shape)


def described(value: Any, names: Mapping[Node, str]) -> str:
    """An argument as text, the same for equal arguments; `names` says what to call nodes."""
    if isinstance(value, Node):
        return names.get(value, "?")
    if isinstance(value, list | tuple):
        return f"[{','.join(described(one, names) for one in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{described(one, names)}' for key, one in value.items())}}}"
    return repr(value)
