"""Marks the lengths of a language model's arguments as dynamic, before its first call is traced.

TorchDynamo takes a size for a constant until it has seen a second one, and then traces again. The
lengths of prompts and of caches that grow are known to vary: with marks, one graph serves all
prompts and one all tokens after them. A mark is a hint: where the model needs a constant, it stays
one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

_LENGTH = -2  # the dimension of a cache's keys and values that grows: batch, heads, length, size
_MAX_TOKEN_DIMS = 3  # tokens, positions and features of them are batch × length (× size)


class DynamicLengths:
    """Marks the first call of each kind; later ones are known to TorchDynamo by then."""

    def __init__(self, module: torch.nn.Module) -> None:
        # Models of transformers say what their main input is.
        self._applies = hasattr(module, "main_input_name") and hasattr(module, "config")
        self._seen: set[Hashable] = set()

    def mark(self, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Mark the lengths of a call's arguments."""
        if not self._applies:
            return
        values = [*enumerate(args), *kwargs.items()]
        kind = tuple((name, _kind(value)) for name, value in values)
        if kind in self._seen:
            return
        self._seen.add(kind)
        for _, value in values:
            if isinstance(value, torch.Tensor):
                if 2 <= value.dim() <= _MAX_TOKEN_DIMS and value.shape[1] > 1:
                    _mark(value, 1)
            else:
                for tensor in _growing_tensors(value):
                    _mark(tensor, tensor.dim() + _LENGTH)


def has_fixed_length(kwargs: Mapping[str, Any]) -> bool:
    """Whether a call has a cache in a bucket, so that all of its sizes are fixed."""
    cache = kwargs.get("past_key_values")
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", None)
    return bool(layers) and getattr(layers[0], "is_bucket", False)


def _kind(value: Any) -> Hashable:
    """What tells calls apart that have graphs of their own."""
    if isinstance(value, torch.Tensor):
        return value.dim(), value.dtype, tuple(min(size, 2) for size in value.shape)
    has_tensors = any(True for _ in _growing_tensors(value))
    return type(value).__name__, has_tensors


def _growing_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Keys and values of a cache that grows, and outputs of an encoder."""
    for part in ("self_attention_cache", "cross_attention_cache"):
        if hasattr(value, part):
            yield from _growing_tensors(getattr(value, part))
    for layer in getattr(value, "layers", None) or ():
        if getattr(layer, "is_compileable", False):  # its size is fixed
            continue
        for name in ("keys", "values"):
            tensor = getattr(layer, name, None)
            if isinstance(tensor, torch.Tensor) and tensor.dim() == 4:
                yield tensor
    hidden = getattr(value, "last_hidden_state", None)
    if isinstance(hidden, torch.Tensor) and hidden.dim() == 3:
        yield hidden


def _mark(tensor: torch.Tensor, dimension: int) -> None:
    if tensor.shape[dimension] > 1:
        torch._dynamo.maybe_mark_dynamic(tensor, dimension)
