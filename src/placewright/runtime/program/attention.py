"""The CPU's attention ops in, the same on another device out.

A training step is captured on fake CPU tensors, so its attention is the CPU's own op, which no GPU
has. Forward and backward may be on different devices, so both keep to the CPU's convention: beside
the result stands the logarithm of the sum of exponents, batch × heads × queries.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

_ALIGNED = 32  # the efficient kernel pads its logarithms to so many queries


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`_scaled_dot_product_flash_attention_for_cpu` elsewhere."""
    aten, kernel = torch.ops.aten, _kernel(query, value, attn_mask)
    if kernel == "flash":
        made = aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, scale=scale
        )
        return made[0], made[1]
    if kernel == "efficient":
        made = aten._scaled_dot_product_efficient_attention(
            query, key, value, None, True, dropout_p, is_causal, scale=scale
        )
        return made[0], made[1][..., : query.shape[-2]]
    key, value = _for_each(query, key), _for_each(query, value)
    scores = _scores(query, key, is_causal, attn_mask, scale)
    total = scores.logsumexp(-1)
    weights = torch.exp(scores - total[..., None]).nan_to_num(0.0)
    return (weights @ value.to(scores.dtype)).to(query.dtype), total


def attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`_scaled_dot_product_flash_attention_for_cpu_backward` elsewhere."""
    aten, kernel = torch.ops.aten, _kernel(query, value, attn_mask)
    if kernel == "flash":
        none = torch.zeros(2, dtype=torch.uint64, device=query.device)
        lengths = None, None, query.shape[-2], key.shape[-2]
        made = aten._scaled_dot_product_flash_attention_backward(
            grad_out, query, key, value, out, logsumexp.contiguous(), *lengths,
            dropout_p, is_causal, none, none[:0], scale=scale,
        )  # fmt: skip
        return made[0], made[1], made[2]
    if kernel == "efficient":
        none = torch.zeros((), dtype=torch.int64, device=query.device)
        queries = logsumexp.shape[-1]
        missing = math.ceil(queries / _ALIGNED) * _ALIGNED - queries
        padded = torch.nn.functional.pad(logsumexp.contiguous(), (0, missing), value=math.inf)
        made = aten._scaled_dot_product_efficient_attention_backward(
            grad_out, query, key, value, None, out, padded, none, none,
            dropout_p, [True, True, True, False], is_causal, scale=scale,
        )  # fmt: skip
        return made[0], made[1], made[2]
    groups = key.shape[1]
    key, value = _for_each(query, key), _for_each(query, value)
    scores = _scores(query, key, is_causal, attn_mask, scale)
    weights = torch.exp(scores - logsumexp[..., None].to(scores.dtype)).nan_to_num(0.0)
    given, kind = grad_out.to(scores.dtype), scores.dtype
    inner = given @ value.to(kind).transpose(-1, -2)
    inner = weights * (inner - (given * out.to(kind)).sum(-1, keepdim=True))
    inner = inner * _scale(query, scale)
    made = inner @ key.to(kind), inner.transpose(-1, -2) @ query.to(kind)
    return (
        made[0].to(query.dtype),
        _of_each(made[1], groups).to(key.dtype),
        _of_each(weights.transpose(-1, -2) @ given, groups).to(value.dtype),
    )


def _for_each(query: Tensor, few: Tensor) -> Tensor:
    """Keys or values for each of the queries' heads, where several heads share one."""
    return few.repeat_interleave(query.shape[1] // few.shape[1], dim=1)


def _of_each(many: Tensor, groups: int) -> Tensor:
    """Gradients of keys or values, summed over the heads that share one."""
    batch, _, *rest = many.shape
    return many.reshape(batch, groups, -1, *rest).sum(2)


def _kernel(query: Tensor, value: Tensor, mask: Tensor | None) -> str:
    """Which kernel serves: both directions ask, and must get the same answer."""
    width = query.shape[-1]
    if query.device.type != "cuda" or mask is not None or width % 8 or width != value.shape[-1]:
        return "plain"
    if query.dtype in (torch.float16, torch.bfloat16) and width <= 256:
        return "flash"
    shared = query.shape[1] != value.shape[1]
    return "efficient" if query.dtype == torch.float32 and not shared else "plain"


def _scale(query: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _scores(
    query: Tensor, key: Tensor, is_causal: bool, mask: Tensor | None, scale: float | None
) -> Tensor:
    """What the softmax is taken of, in float32 or wider."""
    kind = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(kind) @ key.to(kind).transpose(-1, -2) * _scale(query, scale)
    if mask is not None:
        if mask.dtype == torch.bool:
            return scores.masked_fill(~mask, -math.inf)
        return scores + mask
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        return scores.masked_fill(~seen, -math.inf)
    return scores


ELSEWHERE: Mapping[str, Callable[..., Any]] = {
    "_scaled_dot_product_flash_attention_for_cpu": attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": attention_backward,
}
"""Ops of the CPU alone, by name, and what does the same on other devices."""
