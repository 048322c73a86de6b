"""The kind of a JAX primitive and the attributes that its cost depends on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from placewright.errors import GraphError
from placewright.frontends.graph_builder import tensor_spec, word_set
from placewright.frontends.op_costs import DTYPE_BITS, TensorSpec, fft_flops
from placewright.graph import VIEW

TensorSpecs = Sequence[TensorSpec]
Parameters = Mapping[str, Any]
CostRule = Callable[[Parameters, TensorSpecs, TensorSpecs], dict[str, Any]]

_PRIMITIVES_BY_KIND = {
    VIEW: (
        "bitcast_convert_type broadcast_in_dim device_put empty empty2 expand_dims "
        "layout_constraint mesh_cast name optimization_barrier pvary random_unwrap random_wrap "
        "reshape reshard sharding_constraint squeeze stop_gradient"
    ),
    "elementwise": (
        "abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt "
        "ceil clamp clz complex conj cos cosh cumlogsumexp cummax cummin cumprod cumsum digamma "
        "div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a igammac "
        "imag integer_pow is_finite le le_to lgamma log log1p logistic lt lt_to max min mul ne neg "
        "nextafter not or polygamma population_count pow real regularized_incomplete_beta rem "
        "round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh "
        "sqrt square sub tan tanh xor zeta"
    ),
    "cast": "convert_element_type reduce_precision",
    "copy": "copy copy_p iota pad rev split transpose",
    "concat": "concatenate",
    "gather": "gather",
    "reduce": (
        "argmax argmin reduce reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum "
        "reduce_xor"
    ),
    "random": (
        "random_bits random_fold_in random_gamma random_seed random_split rng_bit_generator "
        "rng_uniform threefry2x32"
    ),
    "scatter": "scatter",
}
_KIND_OF = {name: kind for kind, names in _PRIMITIVES_BY_KIND.items() for name in names.split()}
PASS_THROUGH = word_set(
    "device_put mesh_cast optimization_barrier pvary reshard sharding_constraint stop_gradient"
)
"""Primitives whose n-th output is their n-th input."""


def describe(
    name: str, parameters: Parameters, inputs: TensorSpecs, outputs: TensorSpecs
) -> tuple[str | None, dict[str, Any]]:
    """The kind of a primitive (None without a known cost) and keywords of `GraphBuilder.add`."""
    if name in _RULES:
        kind, rule = _RULES[name]
        return kind, rule(parameters, inputs, outputs)
    return _KIND_OF.get(name), {}


def _dot(parameters: Parameters, inputs: TensorSpecs, outputs: TensorSpecs) -> dict[str, Any]:
    (axes, _), _ = parameters["dimension_numbers"]
    return {"contracted": math.prod(inputs[0].shape[axis] for axis in axes)}


def _ragged_dot(
    parameters: Parameters, inputs: TensorSpecs, outputs: TensorSpecs
) -> dict[str, Any]:
    return {"contracted": inputs[0].shape[-1]}  # each row is multiplied by the matrix of its group


def _convolution(
    parameters: Parameters, inputs: TensorSpecs, outputs: TensorSpecs
) -> dict[str, Any]:
    kernel = inputs[1].shape
    channels, *_ = parameters["dimension_numbers"].rhs_spec
    dilation = math.prod(parameters["lhs_dilation"])  # one of this many input elements is not zero
    return {
        "kernel_elements": math.prod(kernel) // max(kernel[channels], 1),
        "made": math.ceil(outputs[0].elements / dilation),
    }


def _window(parameters: Parameters, inputs: TensorSpecs, outputs: TensorSpecs) -> dict[str, Any]:
    return {"window": math.prod(parameters["window_dimensions"])}


def _window_backward(
    parameters: Parameters, inputs: TensorSpecs, outputs: TensorSpecs
) -> dict[str, Any]:
    return _window(parameters, inputs, outputs) | {"made": inputs[0].elements}


def _sort(parameters: Parameters, inputs: TensorSpecs, outputs: TensorSpecs) -> dict[str, Any]:
    shape = inputs[0].shape
    return {"width": shape[parameters.get("dimension", -1)] if shape else 1}


def _slice(parameters: Parameters, inputs: TensorSpecs, outputs: TensorSpecs) -> dict[str, Any]:
    return {"moved": 2 * outputs[0].bytes}  # reads as much as it writes


def _accumulate(
    parameters: Parameters, inputs: TensorSpecs, outputs: TensorSpecs
) -> dict[str, Any]:
    return {"ops": 1}


def _factorisation(coefficient: float) -> CostRule:
    """A factorisation of `coefficient` × n³ FLOPs per matrix."""

    def rule(parameters: Parameters, inputs: TensorSpecs, outputs: TensorSpecs) -> dict[str, Any]:
        return {"flops": coefficient * inputs[0].elements * inputs[0].shape[-1]}

    return rule


def _triangular_solve(
    parameters: Parameters, inputs: TensorSpecs, outputs: TensorSpecs
) -> dict[str, Any]:
    return {"flops": float(outputs[0].elements * inputs[0].shape[-1])}


def _fft(parameters: Parameters, inputs: TensorSpecs, outputs: TensorSpecs) -> dict[str, Any]:
    points = math.prod(parameters["fft_lengths"])
    return {"flops": fft_flops(inputs[0].elements // max(points, 1), points)}


_RULES: Mapping[str, tuple[str, CostRule]] = {
    "dot_general": ("matmul", _dot),
    "ragged_dot": ("matmul", _ragged_dot),
    "conv_general_dilated": ("convolution", _convolution),
    "reduce_window": ("pool", _window),
    "reduce_window_max": ("pool", _window),
    "reduce_window_min": ("pool", _window),
    "reduce_window_sum": ("pool", _window),
    "select_and_scatter_add": ("pool", _window_backward),
    "select_and_gather_add": ("pool", _window),
    "sort": ("sort", _sort),
    "top_k": ("sort", _sort),
    "approx_top_k": ("sort", _sort),
    "slice": ("copy", _slice),
    "dynamic_slice": ("copy", _slice),
    "scatter-add": ("scatter", _accumulate),
    "scatter_add": ("scatter", _accumulate),
    "scatter_mul": ("scatter", _accumulate),
    "scatter_max": ("scatter", _accumulate),
    "scatter_min": ("scatter", _accumulate),
    "dynamic_update_slice": ("scatter", lambda parameters, inputs, outputs: {}),
    "cholesky": ("opaque", _factorisation(1 / 3)),
    "lu": ("opaque", _factorisation(2 / 3)),
    "triangular_solve": ("opaque", _triangular_solve),
    "fft": ("opaque", _fft),
}


CONSTANT_FOLDS: Mapping[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "max": max,
    "min": min,
    "clamp": lambda low, value, high: min(max(value, low), high),
    "convert_element_type": lambda value: value,
    "squeeze": lambda value: value,
    "reshape": lambda value: value,
}
"""Primitives that are folded if all their inputs are known scalars."""


def tensor_of(label: str, aval: Any) -> TensorSpec:
    """The tensor of an abstract value."""
    if not hasattr(aval, "shape") or not hasattr(aval, "dtype"):
        return TensorSpec((0,), "bool")  # a token: it orders side effects and has no data
    dtype = str(aval.dtype)
    shape: list[int] = []
    for size in aval.shape:
        if not isinstance(size, int):
            raise GraphError(f"{label!r} has a symbolic dimension {str(size)!r}: give a number")
        shape.append(size)
    if dtype.startswith("key<"):
        return tensor_spec(repr(label), [*shape, 2], "uint32")
    if dtype == "float0":
        return tensor_spec(repr(label), [*shape, 0], "bool")
    return tensor_spec(repr(label), shape, dtype if dtype in DTYPE_BITS else "float32")


def scalar_constant(value: Any, tensor: TensorSpec) -> Any:
    """The value of a scalar, from which trip counts are found; None for other tensors."""
    if tensor.elements != 1 or tensor.dtype not in ("int32", "int64", "uint32", "bool", "float32"):
        return None
    value = getattr(value, "val", value)
    return value.item() if hasattr(value, "item") else value
