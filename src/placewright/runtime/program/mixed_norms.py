"""Norms of mixed dtypes on GPUs: inputs in bfloat16 with weights in float32.

Autocast of the host leaves such norms to kernels that compute in float32, which only the host has.
"""

from __future__ import annotations

from functools import reduce, wraps
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

NORMS = frozenset(
    {
        "layer_norm",
        "native_layer_norm",
        "native_layer_norm_backward",
        "group_norm",
        "native_group_norm",
        "native_group_norm_backward",
    }
)
"""Ops whose kernels for GPUs want one dtype."""


def in_widest_dtype(norm: Callable[..., Any]) -> Callable[..., Any]:
    """A norm that computes in the widest of its dtypes; its first output has that of its first."""

    @wraps(norm)
    def compute(*args: Any, **kwargs: Any) -> Any:
        dtypes = {arg.dtype for arg in args if _is_floating(arg)}
        if len(dtypes) < 2:
            return norm(*args, **kwargs)
        widest = reduce(torch.promote_types, dtypes)
        outputs = norm(*(arg.to(widest) if _is_floating(arg) else arg for arg in args), **kwargs)
        if isinstance(outputs, torch.Tensor):
            return outputs.to(args[0].dtype)
        first, *others = outputs
        return first if first is None else first.to(args[0].dtype), *others

    return compute


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
