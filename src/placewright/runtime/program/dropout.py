"""Dropout on the CPU as PyTorch computes it without a compiler.

A compiler's graph has `native_dropout`, which scales after it masks, while PyTorch itself scales
the mask on the CPU. Gradients in bfloat16 then differ for 6 probabilities in 10, float32 outputs
for 1 in 10, and with a probability of one PyTorch draws no random numbers at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor


def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """`native_dropout`, with the values of `dropout`."""
    if not input.is_cpu or train is False or not 0.0 < p <= 1.0 or not input.numel():
        result: tuple[Tensor, Tensor] = torch.ops.aten.native_dropout.default(input, p, train)
        return result
    mask = torch.empty_like(input, dtype=torch.bool)
    if p == 1.0:
        return input * torch.zeros_like(input), mask.zero_()
    mask.bernoulli_(1.0 - p)
    return input * mask.to(input.dtype).div_(1.0 - p), mask


def native_dropout_backward(grad_output: Tensor, mask: Tensor, scale: float) -> Tensor:
    """`native_dropout_backward`, with the gradients of `dropout`."""
    if not grad_output.is_cpu:
        gradient: Tensor = torch.ops.aten.native_dropout_backward.default(grad_output, mask, scale)
        return gradient
    noise = mask.to(grad_output.dtype)
    return grad_output * (noise.div_(1.0 / scale) if scale else noise)


CPU_KERNELS: Mapping[str, Callable[..., Any]] = {
    "native_dropout": native_dropout,
    "native_dropout_backward": native_dropout_backward,
}
"""Functions that replace ops; on other devices they are the ops themselves."""


def replace_cpu_kernels(module: torch.fx.GraphModule) -> None:
    """Let a graph that PyTorch runs itself call these functions."""
    for node in module.graph.nodes:
        node.target = _cpu_kernel(node.target)
        if any(_cpu_kernel(value) is not value for value in node.args):
            node.target = _with_cpu_kernels(node.target)
    module.recompile()


def _with_cpu_kernels(run_op: Callable[..., Any]) -> Callable[..., Any]:
    """A function that runs the op which it gets, as those for the random states of checkpoints."""

    def run_cpu_kernel(*args: Any, **kwargs: Any) -> Any:
        return run_op(*map(_cpu_kernel, args), **kwargs)

    return run_cpu_kernel


def _cpu_kernel(function: Any) -> Any:
    """The function that replaces an op; anything else as it is."""
    name = getattr(getattr(function, "overloadpacket", None), "__name__", "")
    return CPU_KERNELS.get(name, function)
