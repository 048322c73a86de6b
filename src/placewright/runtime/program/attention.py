"""Attention kernels for other devices that stand in for ops only the CPU has.

A training step is captured on fake CPU tensors, so its attention is an op that only the CPU has.
Forward and backward may be on different devices, so both follow the CPU's convention: in addition
to the result they use the logsumexp, batch × heads × queries.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

_QUERY_ALIGNMENT = 32  # the efficient kernel pads its logsumexp to a multiple of this many queries


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`_scaled_dot_product_flash_attention_for_cpu` on other devices."""
    aten, kernel = torch.ops.aten, _choose_kernel(query, value, attn_mask)
    if kernel == "flash":
        outputs = aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, scale=scale
        )
        return outputs[0], outputs[1]
    if kernel == "efficient":
        outputs = aten._scaled_dot_product_efficient_attention(
            query, key, value, None, True, dropout_p, is_causal, scale=scale
        )
        return outputs[0], outputs[1][..., : query.shape[-2]]
    key, value = _expand_heads(query, key), _expand_heads(query, value)
    scores = _scores(query, key, is_causal, attn_mask, scale)
    logsumexp = scores.logsumexp(-1)
    weights = torch.exp(scores - logsumexp[..., None]).nan_to_num(0.0)
    return (weights @ value.to(scores.dtype)).to(query.dtype), logsumexp


def flash_attention_backward(
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
    """`_scaled_dot_product_flash_attention_for_cpu_backward` on other devices."""
    aten, kernel = torch.ops.aten, _choose_kernel(query, value, attn_mask)
    if kernel == "flash":
        rng_state = torch.zeros(2, dtype=torch.uint64, device=query.device)
        lengths = None, None, query.shape[-2], key.shape[-2]
        gradients = aten._scaled_dot_product_flash_attention_backward(
            grad_out, query, key, value, out, logsumexp.contiguous(), *lengths,
            dropout_p, is_causal, rng_state, rng_state[:0], scale=scale,
        )  # fmt: skip
        return gradients[0], gradients[1], gradients[2]
    if kernel == "efficient":
        rng_state = torch.zeros((), dtype=torch.int64, device=query.device)
        queries = logsumexp.shape[-1]
        padding = math.ceil(queries / _QUERY_ALIGNMENT) * _QUERY_ALIGNMENT - queries
        padded = torch.nn.functional.pad(logsumexp.contiguous(), (0, padding), value=math.inf)
        gradients = aten._scaled_dot_product_efficient_attention_backward(
            grad_out, query, key, value, None, out, padded, rng_state, rng_state,
            dropout_p, [True, True, True, False], is_causal, scale=scale,
        )  # fmt: skip
        return gradients[0], gradients[1], gradients[2]
    groups = key.shape[1]
    key, value = _expand_heads(query, key), _expand_heads(query, value)
    scores = _scores(query, key, is_causal, attn_mask, scale)
    weights = torch.exp(scores - logsumexp[..., None].to(scores.dtype)).nan_to_num(0.0)
    grad, dtype = grad_out.to(scores.dtype), scores.dtype
    inner = grad @ value.to(dtype).transpose(-1, -2)
    inner = weights * (inner - (grad * out.to(dtype)).sum(-1, keepdim=True))
    inner = inner * _scale(query, scale)
    gradients = inner @ key.to(dtype), inner.transpose(-1, -2) @ query.to(dtype)
    return (
        gradients[0].to(query.dtype),
        _sum_heads(gradients[1], groups).to(key.dtype),
        _sum_heads(weights.transpose(-1, -2) @ grad, groups).to(value.dtype),
    )


def _expand_heads(query: Tensor, shared_heads: Tensor) -> Tensor:
    """Keys or values for each head of the queries, where several heads share one."""
    return shared_heads.repeat_interleave(query.shape[1] // shared_heads.shape[1], dim=1)


def _sum_heads(gradients: Tensor, groups: int) -> Tensor:
    """Gradients of keys or values, summed over the heads that share one."""
    batch, _, *inner_shape = gradients.shape
    return gradients.reshape(batch, groups, -1, *inner_shape).sum(2)


def _choose_kernel(query: Tensor, value: Tensor, mask: Tensor | None) -> str:
    """The kernel to use, the same for forward and backward."""
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
    """The scores before the softmax, in float32 or wider."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(dtype) @ key.to(dtype).transpose(-1, -2) * _scale(query, scale)
    if mask is not None:
        if mask.dtype == torch.bool:
            return scores.masked_fill(~mask, -math.inf)
        return scores + mask
    if is_causal:
        causal_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        return scores.masked_fill(~causal_mask, -math.inf)
    return scores


NON_CPU_KERNELS: Mapping[str, Callable[..., Any]] = {
    "_scaled_dot_product_flash_attention_for_cpu": flash_attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": flash_attention_backward,
}
"""Ops that only the CPU has, by name, and their equivalents for other devices."""
