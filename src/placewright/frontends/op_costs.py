"""A kind of op and the shapes it reads and makes in, its FLOPs and the bytes it moves out.

The one table of costs that all frontends share. A multiply-add is two FLOPs; an element-wise op is
one for each element it makes; a cast, a copy or a lookup is none. An op moves every byte it reads
and makes once, but a view moves nothing and a lookup reads only the rows it picks.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placewright.errors import GraphError, nearest
from placewright.graph import INPUT, STATE, VIEW, WEIGHT

BITS: Mapping[str, int] = {
    "float64": 64, "float32": 32, "float16": 16, "bfloat16": 16,
    "float8_e4m3fn": 8, "float8_e5m2": 8, "float8_e4m3fnuz": 8, "float8_e5m2fnuz": 8,
    "float8_e8m0fnu": 8, "float4_e2m1fn": 4, "float4_e2m1fn_x2": 8,
    "int64": 64, "int32": 32, "int16": 16, "int8": 8, "int4": 4, "int2": 2,
    "uint64": 64, "uint32": 32, "uint16": 16, "uint8": 8, "uint4": 4, "uint2": 2,
    "bool": 8, "complex128": 128, "complex64": 64, "complex32": 32,
}  # fmt: skip

# FLOPs an element, for ops that are no products.
NORM = 8  # mean, variance, difference, root, quotient, scale, shift
SOFTMAX = 5  # maximum, difference, exponential, sum, quotient
OPTIMIZER = {"sgd": 2, "momentum": 4, "adam": 12}  # for each parameter

logger = logging.getLogger("placewright")


@dataclass(frozen=True)
class Tensor:
    """The shape and dtype of what an op reads or makes.

    Args:
        stored: How many elements are in memory, where the shape shows some of them repeatedly.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    stored: int | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        stored = self.elements if self.stored is None else self.stored
        return -(-stored * bits(self.dtype) // 8)


def bits(dtype: str) -> int:
    """Bits of one element.

    Raises:
        GraphError: The dtype is unknown.
    """
    if dtype not in BITS:
        raise GraphError(f"dtype {dtype!r} is unknown: {nearest(dtype, BITS)}")
    return BITS[dtype]


Tensors = Sequence[Tensor]
Cost = tuple[float, int]


def cost(kind: str, inputs: Tensors, outputs: Tensors, **attributes: Any) -> Cost:
    """The FLOPs of an op and the bytes it moves.

    The attributes that a kind knows are the keyword arguments of its function below. A kind that
    is not in the table costs the bytes it reads and makes: see `list_unknown`.
    """
    if kind not in _TABLE:
        return 0.0, _moved(inputs, outputs)
    return _TABLE[kind](inputs, outputs, **attributes)


def list_unknown(framework: str, unknown: Mapping[str, int]) -> None:
    """Tell the user which ops of a framework have no cost in the table, and how many of each."""
    if unknown:
        names = ", ".join(f"{name} ({count})" for name, count in sorted(unknown.items()))
        logger.warning(
            "%s ops without a known cost, counted by their bytes alone: %s", framework, names
        )


def _moved(inputs: Tensors, outputs: Tensors) -> int:
    return sum(tensor.bytes for tensor in (*inputs, *outputs))


def _free(inputs: Tensors, outputs: Tensors) -> Cost:
    return 0.0, 0


def _matmul(inputs: Tensors, outputs: Tensors, *, contracted: int, bias: bool = False) -> Cost:
    """`contracted` is the size of the dimension that is summed over."""
    made = outputs[0].elements
    return 2.0 * made * contracted + made * bias, _moved(inputs, outputs)


def _convolution(
    inputs: Tensors,
    outputs: Tensors,
    *,
    kernel_elements: int,
    made: int | None = None,
    products: int = 1,
    bias: bool = False,
) -> Cost:
    """`kernel_elements` is the kernel's spatial size times the input channels of one group.

    Args:
        made: Elements of the convolution's output, where that is not the op's first output: for a
            transposed convolution its input's elements, for gradients those of the forward output.
        products: How many of the two gradients, of input and kernel, the op makes.
    """
    made = outputs[0].elements if made is None else made
    return 2.0 * made * kernel_elements * products + made * bias, _moved(inputs, outputs)


def _attention(
    inputs: Tensors,
    outputs: Tensors,
    *,
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    width: int,
    value_width: int | None = None,
    backward: bool = False,
) -> Cost:
    """Softmax(queries · keys) · values; masked scores are computed like the others.

    Backward, five products: the scores again, and the gradients of values, scores, queries, keys.
    """
    scores = batch * heads * queries * keys
    value_width = width if value_width is None else value_width
    products = 2 * (3 * width + 2 * value_width) if backward else 2 * (width + value_width)
    softmax = 2 * SOFTMAX if backward else SOFTMAX
    return float(scores * (products + softmax)), _moved(inputs, outputs)


def _per_made(ops: float) -> Callable[..., Cost]:
    """So many FLOPs for each element of the first output, unless the caller says `ops`."""

    def flops(
        inputs: Tensors, outputs: Tensors, *, ops: float = ops, made: int | None = None
    ) -> Cost:
        """`made` is how many elements count, where those are not the first output's."""
        made = outputs[0].elements if made is None else made
        return float(ops * made), _moved(inputs, outputs)

    return flops


def _reduce(inputs: Tensors, outputs: Tensors, *, ops: float = 1) -> Cost:
    """One FLOP for each element of the first input."""
    return float(ops * inputs[0].elements), _moved(inputs, outputs)


def _pool(inputs: Tensors, outputs: Tensors, *, window: int, made: int | None = None) -> Cost:
    """`made` is how many windows there are, where that is not the first output's elements."""
    made = outputs[0].elements if made is None else made
    return float(made * window), _moved(inputs, outputs)


def _gather(
    inputs: Tensors, outputs: Tensors, *, ops: float = 0, picked: int | None = None
) -> Cost:
    """The table is the first input: only the rows that are picked are read.

    Args:
        ops: FLOPs for each element that is picked, such as 1 where rows are summed.
        picked: Elements read from the table, where those are not as many as are made.
    """
    picked = sum(tensor.elements for tensor in outputs) if picked is None else picked
    read = -(-picked * bits(inputs[0].dtype) // 8)
    return float(ops * picked), read + _moved(inputs[1:], outputs)


def _scatter(inputs: Tensors, outputs: Tensors, *, ops: float = 0, in_place: bool = False) -> Cost:
    """The first input is written into, the last one holds the rows that are written.

    In place, only those rows are read and written; otherwise the first input is copied whole.
    `ops` is 1 where rows are added rather than put.
    """
    rows = inputs[-1]
    moved = _moved(inputs[1:], [rows]) if in_place else _moved(inputs, outputs)
    return float(ops * rows.elements), moved


def _recurrent(
    inputs: Tensors,
    outputs: Tensors,
    *,
    rows: int,
    gates: int,
    hidden: int,
    widths: Sequence[int],
) -> Cost:
    """A layer and direction for each of `widths`, the widths of what they read.

    `rows` is batch × steps; an LSTM has 4 gates, a GRU 3, a plain cell 1. For each element of the
    state a gate costs a sum, two biases and an activation, and joining the gates costs 5 more.
    """
    products = sum(2 * gates * (width + hidden) + 4 * gates + 5 for width in widths)
    return float(rows * hidden * products), _moved(inputs, outputs)


def _sort(inputs: Tensors, outputs: Tensors, *, width: int) -> Cost:
    """`width` is the size of the sorted dimension."""
    comparisons = inputs[0].elements * math.ceil(math.log2(max(width, 2)))
    return float(comparisons), _moved(inputs, outputs)


def _loss(inputs: Tensors, outputs: Tensors, *, ops: float = 1, picked: int | None = None) -> Cost:
    """`picked` is how many elements of the first input are read, where that is not all."""
    if picked is None:
        return float(ops * inputs[0].elements), _moved(inputs, outputs)
    read = picked * bits(inputs[0].dtype) // 8
    return float(ops * picked), read + _moved(inputs[1:], outputs)


def _optimizer(inputs: Tensors, outputs: Tensors, *, ops: float) -> Cost:
    """The first input is the weight; states are among both inputs and outputs."""
    return float(ops * inputs[0].elements), _moved(inputs, outputs)


def _opaque(inputs: Tensors, outputs: Tensors, *, flops: float, moved: int | None = None) -> Cost:
    """A subgraph as one op: the caller has added up its costs."""
    return float(flops), _moved(inputs, outputs) if moved is None else moved


_TABLE: Mapping[str, Callable[..., Cost]] = {
    WEIGHT: _free,
    STATE: _free,
    INPUT: _free,
    VIEW: _free,
    "matmul": _matmul,
    "convolution": _convolution,
    "attention": _attention,
    "norm": _per_made(NORM),
    "softmax": _per_made(SOFTMAX),
    "elementwise": _per_made(1),
    "random": _per_made(1),
    "concat": _per_made(0),
    "copy": _per_made(0),
    "cast": _per_made(0),
    "reduce": _reduce,
    "pool": _pool,
    "embedding": _gather,
    "gather": _gather,
    "scatter": _scatter,
    "recurrent": _recurrent,
    "sort": _sort,
    "loss": _loss,
    "optimizer": _optimizer,
    "opaque": _opaque,
}

KNOWN = frozenset(_TABLE)
"""The canonical kinds; any other kind is a framework's own name for an op."""
