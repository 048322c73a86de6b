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
    from collections.abc import Hashable, Iterator, Mapping, Sequence

_LENGTH = -2  # the dimension of a cache's keys and values that grows: batch, heads, length, size
_CACHE_DIMS = 4
_TOKENS = "decoder_input_ids", "input_ids", "inputs_embeds", "decoder_inputs_embeds"
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
        is_fixed = has_fixed_cache(kwargs)
        kind = is_fixed, *((name, _kind(value)) for name, value in values)
        if kind in self._seen:
            return
        self._seen.add(kind)
        if is_fixed:
            for _, value in values:
                _mark_fixed(value)
            return
        for _, value in values:
            if isinstance(value, torch.Tensor):
                if 2 <= value.dim() <= _MAX_TOKEN_DIMS and value.shape[1] > 1:
                    _mark(value, 1)
            else:
                for tensor in _growing_tensors(value):
                    _mark(tensor, tensor.dim() + _LENGTH)


def has_fixed_cache(kwargs: Mapping[str, Any]) -> bool:
    """Whether a call appends one token to a cache of a fixed length: many have the same sizes."""
    cache = kwargs.get("past_key_values")
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", None)
    tokens = next((kwargs[name] for name in _TOKENS if kwargs.get(name) is not None), None)
    return (
        bool(layers)
        and isinstance(tokens, torch.Tensor)
        and tokens.dim() > 1
        and tokens.shape[1] == 1
        and all(map(_is_fixed, layers or ()))
    )


def _is_fixed(layer: Any) -> bool:
    """Whether a layer of a cache has a fixed length, and no number that every token changes."""
    is_static = type(layer).__name__ == "StaticLayer" and layer.is_initialized
    return is_static or getattr(layer, "is_bucket", False)


_STATIC_DIMENSIONS = {3: (2,), _CACHE_DIMS: (1, 2)}
"""Sizes of features, and of masks, that no call changes, by the number of dimensions."""


def _mark_fixed(value: Any) -> None:
    """Mark all sizes as static but batch and length: of these, one trace serves all.

    Each has a graph of its own then, which is made of the one that was traced.
    """
    if isinstance(value, torch.Tensor):
        _mark_static(value, _STATIC_DIMENSIONS.get(value.dim(), ()))
        return
    items = list(value.values()) if isinstance(value, dict) else []
    parts = (getattr(value, f"{name}_attention_cache", None) for name in ("self", "cross"))
    for item in (*items, *(part for part in parts if part is not None)):
        _mark_fixed(item)
    for layer in getattr(value, "layers", None) or ():
        for tensor in (layer.keys, layer.values):
            _mark_static(tensor, (1, tensor.dim() - 1))


def _mark_static(tensor: torch.Tensor, dimensions: Sequence[int]) -> None:
    for dimension in dimensions:
        torch._dynamo.mark_static(tensor, dimension)


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
            if isinstance(tensor, torch.Tensor) and tensor.dim() == _CACHE_DIMS:
                yield tensor
    hidden = getattr(value, "last_hidden_state", None)
    if isinstance(hidden, torch.Tensor) and hidden.dim() == 3:
        yield hidden


def _mark(tensor: torch.Tensor, dimension: int) -> None:
    if tensor.dim() and tensor.shape[dimension] > 1:
        torch._dynamo.maybe_mark_dynamic(tensor, dimension % tensor.dim())
