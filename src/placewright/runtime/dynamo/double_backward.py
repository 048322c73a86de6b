"""Refuses a backward pass of a compiled backward pass, which no graph computes.

PyTorch does that itself since 2.12. Version 2.11 returns gradients without a graph where it finds
no argument of the backward graph that requires a gradient: what depends on them would silently add
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


def refuse_double_backward(gradients: Sequence[Any]) -> list[Any]:
    """The gradients; one that is differentiated raises an error."""
    tensors = [value for value in gradients if isinstance(value, torch.Tensor)]
    anchor = torch.empty(0, requires_grad=True)
    connected: Any = iter(_Refusal.apply(anchor, *tensors))  # type: ignore[no-untyped-call]
    return [next(connected) if isinstance(value, torch.Tensor) else value for value in gradients]


class _Refusal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, *gradients: torch.Tensor) -> Any:
        return tuple(gradient.view_as(gradient) for gradient in gradients)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            "a compiled call does not support double backward: make it inside model.placed.eager()"
        )
