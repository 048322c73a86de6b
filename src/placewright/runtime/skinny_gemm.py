"""Products of few rows on the host, by a kernel that reads the weight at the speed of memory.

A product of one row reads every weight once and computes next to nothing, so it takes as long as
the read. PyTorch's kernels take 1.4 to 2.4 times as long on one core. The compiled kernel widens
weights in registers, sums in float32 and rounds each output once.

Its threads are the OpenMP team that PyTorch has for the calling thread. A pool of our own would
compete with that team, whose threads spin for a moment after each op, for the same cores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from placewright.runtime import _skinny_gemm
from placewright.runtime.openmp import team_launcher

if TYPE_CHECKING:
    from collections.abc import Mapping

DTYPES: Mapping[torch.dtype, int] = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
"""The dtypes of the kernel, with its numbers of them."""


def can_use_threads(threads: int) -> bool:
    """Whether the kernel can run on this many threads: on several only with PyTorch's OpenMP."""
    return threads == 1 or team_launcher() != 0


def multiply(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    threads: int | None = None,
    instructions: str = "",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The product of x (M x K) and a weight (K x N, of any layout with a contiguous dimension).

    It equals `x @ weight + bias` within the dtype's rounding; equal inputs and threads give equal
    bits. Gradients are not recorded, and tensors are not checked: see `host_products`.

    Args:
        threads: By default as many as PyTorch uses.
        instructions: The instruction set, of those that the processor has; by default the best.
        out: Where to write it; rows must be contiguous.

    Raises:
        ValueError: No dimension of the weight is contiguous.
    """
    (rows, depth), columns = x.shape, weight.shape[1]
    transposed = weight.stride(1) == 1 or columns == 1
    if transposed and weight.stride(0) == 1 and columns == 1:
        transposed = False  # one column: a dot product reads it as one stream
    if not transposed and weight.stride(0) != 1 and depth != 1:
        raise ValueError(
            f"a weight of strides {weight.stride()} has no contiguous dimension: make it contiguous"
        )
    if bias is not None:
        bias = bias.contiguous()
    if out is None:
        out = torch.empty((rows, columns), dtype=x.dtype)
    threads = torch.get_num_threads() if threads is None else threads
    _skinny_gemm.multiply(
        DTYPES[x.dtype],
        x.data_ptr(),
        rows,
        depth,
        x.stride(0),
        x.stride(1),
        weight.data_ptr(),
        columns,
        weight.stride(0 if transposed else 1),
        transposed,
        0 if bias is None else bias.data_ptr(),
        out.data_ptr(),
        out.stride(0),
        team_launcher() if threads > 1 else 0,
        threads,
        instructions,
    )
    return out


def read_tensor(tensor: torch.Tensor, threads: int | None = None) -> None:
    """Read a dense tensor in a plain loop: the speed that a product is compared with."""
    threads = torch.get_num_threads() if threads is None else threads
    launcher = team_launcher() if threads > 1 else 0
    _skinny_gemm.read(tensor.data_ptr(), tensor.nbytes, launcher, threads)
