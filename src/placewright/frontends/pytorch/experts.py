"""A gradient of transformers' grouped matrix product that is captured by shapes alone.

`transformers::grouped_mm_fallback` multiplies the rows of each expert by that expert's weight; its
backward pass reads how many rows each expert has, which a capture does not know. The gradients here
are two grouped products.
"""

from __future__ import annotations

import contextlib
from typing import Any
from unittest import mock

import torch

GROUPED_PRODUCT = "transformers::grouped_mm_fallback"


@torch.library.custom_op("placewright::grouped_weight_gradient", mutates_args=())
def grouped_weight_gradient(
    input: torch.Tensor, gradient: torch.Tensor, offs: torch.Tensor
) -> torch.Tensor:
    """The gradient of each expert's weight: the rows of its input times those of the gradient.

    Args:
        input: Rows × width, sorted by expert.
        gradient: That of the product: rows × output width.
        offs: The position after the last row of each expert.
    """
    result = input.new_zeros(offs.shape[0], input.shape[1], gradient.shape[1])
    start = 0
    for expert, end in enumerate(offs.tolist()):
        torch.mm(input[start:end].T, gradient[start:end], out=result[expert])
        start = end
    return result


@grouped_weight_gradient.register_fake
def _grouped_weight_shape(
    input: torch.Tensor, gradient: torch.Tensor, offs: torch.Tensor
) -> torch.Tensor:
    return input.new_empty(offs.shape[0], input.shape[1], gradient.shape[1])


def _product_backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    input, weight = context.saved_tensors
    product = torch.ops.transformers.grouped_mm_fallback
    return (
        product(gradient, weight.transpose(1, 2), context.offs),
        grouped_weight_gradient(input, gradient, context.offs),
        None,
    )


def grouped_gradients() -> contextlib.AbstractContextManager[Any]:
    """A context in which the grouped product has these gradients, if transformers is imported."""
    from torch._library.custom_ops import OPDEFS

    product = OPDEFS.get(GROUPED_PRODUCT)
    if product is None:
        return contextlib.nullcontext()
    return mock.patch.object(product, "_backward_fn", _product_backward)
