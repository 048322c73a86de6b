"""Tensor frames: how a tensor is written for another rank, as bytes of a size that both know.

A frame is a header of fixed size and the tensor's elements. The header says which tensor of which
step it is, its dtype, its sizes and its strides; nothing in it is executed, and all of it is
compared with what the receiver's own program says before the tensor is used. Elements are written
in the order of the strides, so that a transposed tensor arrives transposed, and ops run the same
kernels as in one process.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import torch

from placewright.errors import ExecutionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.graph import Tensor

MAGIC = b"PWT1"
MAX_DIMENSIONS = 16
MAX_GAPS = 4
"""A tensor that spans more than this many times its elements arrives without the gaps."""
_FIXED = struct.Struct("<4sBBxxQII")  # magic, dtype, dimensions, step, op, output
_SIZES = struct.Struct(f"<{2 * MAX_DIMENSIONS}q")
HEADER_BYTES = 320
"""A multiple of 64, so that the elements are as aligned as PyTorch aligns tensors."""
DTYPES: tuple[torch.dtype, ...] = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
"""A dtype's position is its code: new ones go to the end."""


def frame_bytes(template: torch.Tensor) -> int:
    """Bytes of the frame of a tensor like this one."""
    return HEADER_BYTES + template.numel() * template.element_size()


def pack_tensor(
    value: torch.Tensor, template: torch.Tensor, step: int, key: Tensor
) -> torch.Tensor:
    """The frame of a tensor.

    Args:
        template: What the program says of its shape and dtype.
        key: The op and the output that it is of.

    Raises:
        ExecutionError: It is not as the program says, or of a dtype that no frame has.
    """
    if value.shape != template.shape or value.dtype != template.dtype:
        raise ExecutionError(
            f"a tensor for another rank is of shape {tuple(value.shape)} and {value.dtype}: "
            f"expected {tuple(template.shape)} and {template.dtype}"
        )
    if value.dtype not in DTYPES or value.dim() > MAX_DIMENSIONS:
        raise ExecutionError(
            f"a tensor of {value.dtype} and {value.dim()} dimensions cannot go to another rank: "
            "place the ops that read it with the op that makes it"
        )
    value = value.detach().resolve_conj().resolve_neg()
    frame = torch.empty(frame_bytes(template), dtype=torch.uint8)
    header = _FIXED.pack(MAGIC, DTYPES.index(value.dtype), value.dim(), step, *key)
    padding = [0] * (MAX_DIMENSIONS - value.dim())
    header += _SIZES.pack(*value.shape, *padding, *value.stride(), *padding)
    frame[: len(header)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
    if value.numel():
        _elements(frame, value.dtype, value.shape, value.stride()).copy_(value)
    return frame


def unpack_tensor(
    frame: torch.Tensor, template: torch.Tensor, step: int, key: Tensor
) -> torch.Tensor:
    """The tensor of a frame; it shares the frame's memory where its layout permits.

    Raises:
        ExecutionError: It is not the expected tensor.
    """
    data = frame[:HEADER_BYTES].numpy().tobytes()
    magic, code, dimensions, at, *found = _FIXED.unpack_from(data)
    numbers = _SIZES.unpack_from(data, _FIXED.size)
    sizes, strides = numbers[:dimensions], numbers[MAX_DIMENSIONS:][:dimensions]
    if (magic, at, tuple(found)) != (MAGIC, step, tuple(key)):
        raise ExecutionError(
            f"another rank sent tensor {tuple(found)} of step {at}: expected {tuple(key)} of step "
            f"{step}; the ranks do not run the same plan"
        )
    is_alike = (
        code < len(DTYPES)
        and DTYPES[code] == template.dtype
        and sizes == tuple(template.shape)
        and len(frame) == frame_bytes(template)
        and all(stride >= 0 for stride in strides)
    )
    if not is_alike:
        raise ExecutionError(
            f"another rank sent a tensor of sizes {sizes} and strides {strides}: expected sizes "
            f"{tuple(template.shape)} and {template.dtype}"
        )
    if not template.numel():
        return torch.empty(sizes, dtype=template.dtype)
    elements = _elements(frame, template.dtype, sizes, strides)
    if elements.stride() == strides:
        return elements
    for dimension, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        if size > 1 and stride == 0:  # expanded: one element stands for all
            elements = elements.narrow(dimension, 0, 1)
    span = 1 + sum(
        stride * (size - 1) for size, stride in zip(elements.shape, strides, strict=True)
    )
    if span > MAX_GAPS * elements.numel() or _overlaps(elements.shape, strides):
        return elements.expand(sizes)
    gapped = torch.empty_strided(tuple(elements.shape), strides, dtype=template.dtype)
    return gapped.copy_(elements).as_strided(sizes, strides)


def _elements(
    frame: torch.Tensor, dtype: torch.dtype, sizes: Sequence[int], strides: Sequence[int]
) -> torch.Tensor:
    """The elements of a frame, dense, with dimensions in the order of these strides."""
    order = sorted(range(len(sizes)), key=lambda at: (-strides[at], at))
    dense, step = [0] * len(sizes), 1
    for dimension in reversed(order):
        dense[dimension] = step
        step *= max(1, sizes[dimension])
    span = frame[HEADER_BYTES:].view(dtype)
    return span.as_strided(tuple(sizes), tuple(dense), span.storage_offset())


def _overlaps(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements of these sizes and strides share memory."""
    reach = 0
    for stride, size in sorted((s, n) for n, s in zip(sizes, strides, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False
