"""Op costs: the FLOPs and bytes moved of each kind of op, from its input and output shapes.

All frontends share this table. A multiply-add is two FLOPs; an element-wise op is one FLOP per
output element; a cast, a copy or a lookup is none. An op moves each byte of its inputs and outputs
once, but a view moves nothing and a lookup reads only the selected rows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placewright.errors import ConfigError, GraphError, nearest, printable
from placewright.graph import INPUT, STATE, VIEW, WEIGHT

DTYPE_BITS: Mapping[str, int] = {
    "float64": 64, "float32": 32, "float16": 16, "bfloat16": 16,
    "float8_e4m3fn": 8, "float8_e5m2": 8, "float8_e4m3fnuz": 8, "float8_e5m2fnuz": 8,
    "float8_e8m0fnu": 8, "float4_e2m1fn": 4, "float4_e2m1fn_x2": 8,
    "int64": 64, "int32": 32, "int16": 16, "int8": 8, "int4": 4, "int2": 2,
    "uint64": 64, "uint32": 32, "uint16": 16, "uint8": 8, "uint4": 4, "uint2": 2,
    "bool": 8, "complex128": 128, "complex64": 64, "complex32": 32,
}  # fmt: skip

# FLOPs per element, for ops other than matrix products.
NORM_FLOPS = 8  # mean, variance, difference, root, quotient, scale, shift
SOFTMAX_FLOPS = 5  # maximum, difference, exponential, sum, quotient
BOX_FLOPS = 12  # per pair of boxes: corners of the intersection, three areas, their quotient
OPTIMIZER_FLOPS = {"sgd": 2, "momentum": 4, "adam": 12}  # per parameter

logger = logging.getLogger("placewright")


def check_optimizer(name: str) -> None:
    """Refuse an optimizer whose update has no cost.

    Raises:
        ConfigError: It is unknown.
    """
    if name not in OPTIMIZER_FLOPS:
        raise ConfigError(f"optimizer {name!r} is unknown: {nearest(name, OPTIMIZER_FLOPS)}")


@dataclass(frozen=True)
class TensorSpec:
    """The shape and dtype of an op's input or output.

    Args:
        stored_elements: Elements in memory, if the shape repeats some of them (a stride of 0).
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    stored_elements: int | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        count = self.elements if self.stored_elements is None else self.stored_elements
        return -(-count * bits(self.dtype) // 8)


def bits(dtype: str) -> int:
    """Bits per element.

    Raises:
        GraphError: The dtype is unknown.
    """
    if dtype not in DTYPE_BITS:
        raise GraphError(f"dtype {dtype!r} is unknown: {nearest(dtype, DTYPE_BITS)}")
    return DTYPE_BITS[dtype]


TensorSpecs = Sequence[TensorSpec]
OpCost = tuple[float, int]


def cost(kind: str, inputs: TensorSpecs, outputs: TensorSpecs, **attributes: Any) -> OpCost:
    """The FLOPs of an op and the bytes it moves.

    The attributes of a kind are the keyword arguments of its function below. A kind that is not in
    the table has no FLOPs and moves the bytes of its inputs and outputs: see `warn_unknown_ops`.
    """
    if kind not in _COST_FUNCTIONS:
        return 0.0, _total_bytes(inputs, outputs)
    return _COST_FUNCTIONS[kind](inputs, outputs, **attributes)


def fft_flops(transforms: int, points: int) -> float:
    """The FLOPs of fast Fourier transforms of so many points each: 5 n log2 n."""
    return 5.0 * transforms * points * math.log2(max(points, 2))


def box_suppression_flops(boxes: int) -> float:
    """The FLOPs to compare each pair of boxes once."""
    return BOX_FLOPS * boxes * (boxes - 1) / 2


def warn_unknown_ops(framework: str, unknown: Mapping[str, int]) -> None:
    """Warn about the ops of a framework without a cost in the table, with the count of each."""
    if unknown:
        names = ", ".join(f"{name} ({count})" for name, count in sorted(unknown.items()))
        logger.warning(
            "%s ops without a known cost, counted by their bytes only: %s",
            framework,
            printable(names),
        )


def _total_bytes(inputs: TensorSpecs, outputs: TensorSpecs) -> int:
    return sum(tensor.bytes for tensor in (*inputs, *outputs))


def _no_cost(inputs: TensorSpecs, outputs: TensorSpecs) -> OpCost:
    return 0.0, 0


def _matmul(
    inputs: TensorSpecs,
    outputs: TensorSpecs,
    *,
    contracted: int,
    made: int | None = None,
    bias: bool = False,
) -> OpCost:
    """`contracted` is the size of the dimension that is summed over.

    Args:
        made: Elements of the product if that is not the first output, as where groups share rows.
    """
    made = outputs[0].elements if made is None else made
    return 2.0 * made * contracted + made * bias, _total_bytes(inputs, outputs)


def _convolution(
    inputs: TensorSpecs,
    outputs: TensorSpecs,
    *,
    kernel_elements: int,
    made: int | None = None,
    products: int = 1,
    bias: bool = False,
) -> OpCost:
    """`kernel_elements` is the kernel's spatial size times the input channels of one group.

    Args:
        made: Elements of the convolution's output if that is not the op's first output: for a
            transposed convolution the input's elements, for gradients those of the forward output.
        products: How many of the two gradients (of input and kernel) the op computes.
    """
    made = outputs[0].elements if made is None else made
    return 2.0 * made * kernel_elements * products + made * bias, _total_bytes(inputs, outputs)


def _attention(
    inputs: TensorSpecs,
    outputs: TensorSpecs,
    *,
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    width: int,
    value_width: int | None = None,
    backward: bool = False,
) -> OpCost:
    """Softmax(queries · keys) · values; masked scores are computed like the others.

    The backward pass has five products: the scores again, and the gradients of values, scores,
    queries and keys.
    """
    scores = batch * heads * queries * keys
    value_width = width if value_width is None else value_width
    products = 2 * (3 * width + 2 * value_width) if backward else 2 * (width + value_width)
    softmax = 2 * SOFTMAX_FLOPS if backward else SOFTMAX_FLOPS
    return float(scores * (products + softmax)), _total_bytes(inputs, outputs)


def _per_output_element(ops: float) -> Callable[..., OpCost]:
    """`ops` FLOPs per element of the first output; the caller may override the number."""

    def flops(
        inputs: TensorSpecs, outputs: TensorSpecs, *, ops: float = ops, made: int | None = None
    ) -> OpCost:
        """`made` is the number of elements, if it is not that of the first output."""
        made = outputs[0].elements if made is None else made
        return float(ops * made), _total_bytes(inputs, outputs)

    return flops


def _reduce(inputs: TensorSpecs, outputs: TensorSpecs, *, ops: float = 1) -> OpCost:
    """`ops` FLOPs per element of the first input."""
    return float(ops * inputs[0].elements), _total_bytes(inputs, outputs)


def _pool(
    inputs: TensorSpecs, outputs: TensorSpecs, *, window: int, made: int | None = None
) -> OpCost:
    """`made` is the number of windows, if it is not the elements of the first output."""
    made = outputs[0].elements if made is None else made
    return float(made * window), _total_bytes(inputs, outputs)


def _gather(
    inputs: TensorSpecs, outputs: TensorSpecs, *, ops: float = 0, picked: int | None = None
) -> OpCost:
    """The first input is the table, of which only the selected rows are read.

    Args:
        ops: FLOPs per selected element, e.g. 1 where rows are summed.
        picked: Elements read from the table, if that is not the number of output elements.
    """
    picked = sum(tensor.elements for tensor in outputs) if picked is None else picked
    bytes_read = -(-picked * bits(inputs[0].dtype) // 8)
    return float(ops * picked), bytes_read + _total_bytes(inputs[1:], outputs)


def _scatter(
    inputs: TensorSpecs, outputs: TensorSpecs, *, ops: float = 0, in_place: bool = False
) -> OpCost:
    """Writes the rows of the last input into the first.

    In place, only those rows are read and written; otherwise the whole first input is copied.
    `ops` is 1 if rows are added to, 0 if they are replaced.
    """
    rows = inputs[-1]
    moved = _total_bytes(inputs[1:], [rows]) if in_place else _total_bytes(inputs, outputs)
    return float(ops * rows.elements), moved


def _recurrent(
    inputs: TensorSpecs,
    outputs: TensorSpecs,
    *,
    rows: int,
    gates: int,
    hidden: int,
    widths: Sequence[int],
) -> OpCost:
    """One layer and direction for each of `widths`, the widths of their inputs.

    `rows` is batch × steps; an LSTM has 4 gates, a GRU 3, a plain cell 1. Per element of the state
    a gate costs a sum, two biases and an activation, and combining the gates costs 5 more.
    """
    products = sum(2 * gates * (width + hidden) + 4 * gates + 5 for width in widths)
    return float(rows * hidden * products), _total_bytes(inputs, outputs)


def _sort(inputs: TensorSpecs, outputs: TensorSpecs, *, width: int) -> OpCost:
    """`width` is the size of the sorted dimension."""
    comparisons = inputs[0].elements * math.ceil(math.log2(max(width, 2)))
    return float(comparisons), _total_bytes(inputs, outputs)


def _loss(
    inputs: TensorSpecs, outputs: TensorSpecs, *, ops: float = 1, picked: int | None = None
) -> OpCost:
    """`picked` is the number of elements of the first input that are read, if not all."""
    if picked is None:
        return float(ops * inputs[0].elements), _total_bytes(inputs, outputs)
    bytes_read = picked * bits(inputs[0].dtype) // 8
    return float(ops * picked), bytes_read + _total_bytes(inputs[1:], outputs)


def _optimizer(inputs: TensorSpecs, outputs: TensorSpecs, *, ops: float) -> OpCost:
    """The first input is the weight; optimizer states are both inputs and outputs."""
    return float(ops * inputs[0].elements), _total_bytes(inputs, outputs)


def _opaque(
    inputs: TensorSpecs, outputs: TensorSpecs, *, flops: float, moved: int | None = None
) -> OpCost:
    """A subgraph as one op, whose costs the caller has summed."""
    return float(flops), _total_bytes(inputs, outputs) if moved is None else moved


_COST_FUNCTIONS: Mapping[str, Callable[..., OpCost]] = {
    WEIGHT: _no_cost,
    STATE: _no_cost,
    INPUT: _no_cost,
    VIEW: _no_cost,
    "matmul": _matmul,
    "convolution": _convolution,
    "attention": _attention,
    "norm": _per_output_element(NORM_FLOPS),
    "softmax": _per_output_element(SOFTMAX_FLOPS),
    "elementwise": _per_output_element(1),
    "random": _per_output_element(1),
    "concat": _per_output_element(0),
    "copy": _per_output_element(0),
    "cast": _per_output_element(0),
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

KNOWN_KINDS = frozenset(_COST_FUNCTIONS)
"""The canonical kinds; any other kind is a framework's own op name."""
