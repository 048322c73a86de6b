"""Folds nodes that compute shapes or indices from small constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from placewright.frontends.graph_builder import TensorValue
from placewright.frontends.graphdef.layouts import strided_index
from placewright.frontends.graphdef.protos import (
    MAX_FOLDED,
    MAX_FOLDED_FLOATS,
    bool_attribute,
    gradient_axes,
    int_attribute,
    int_list_attribute,
)
from placewright.frontends.op_costs import TensorSpec

ConstantArrays = Sequence[Any]


def fold_node(
    node: Any, inputs: Sequence[TensorValue], outputs: Sequence[TensorSpec]
) -> list[Any] | None:
    """The contents of an op's outputs if they are small and can be folded, otherwise None."""
    for tensor in outputs:
        if tensor.elements > (MAX_FOLDED_FLOATS if "float" in tensor.dtype else MAX_FOLDED):
            return None
    if node.op in ("Shape", "ShapeN", "VariableShape"):
        contents: list[Any] = [value.tensor.shape for value in inputs]
    elif node.op == "Size":
        contents = [inputs[0].tensor.elements]
    elif node.op == "Rank":
        contents = [len(inputs[0].tensor.shape)]
    elif node.op == "BroadcastGradientArgs":
        contents = gradient_axes(inputs) or []
    elif node.op in _FOLDS and all(value.constant is not None for value in inputs):
        try:
            with np.errstate(all="ignore"):
                contents = [_FOLDS[node.op](node, [value.constant for value in inputs])]
        except (ValueError, IndexError, TypeError, OverflowError, MemoryError):
            return None  # bad constants: not folded
    else:
        return None
    if len(contents) != len(outputs):
        return None
    try:
        arrays = [np.asarray(a, t.dtype) for a, t in zip(contents, outputs, strict=True)]
    except (ValueError, TypeError, OverflowError):
        return None
    agree = all(a.shape == t.shape for a, t in zip(arrays, outputs, strict=True))
    return arrays if agree else None


def _fold_reduction(reduce: Callable[..., Any]) -> Callable[[Any, ConstantArrays], Any]:
    def folded(node: Any, arrays: ConstantArrays) -> Any:
        axes = tuple(int(axis) for axis in arrays[1].reshape(-1))
        return reduce(arrays[0], axis=axes, keepdims=bool_attribute(node, "keep_dims"))

    return folded


def _fold_elementwise(function: Callable[..., Any]) -> Callable[[Any, ConstantArrays], Any]:
    return lambda node, arrays: function(*arrays)


def _fold_strided_slice(node: Any, arrays: ConstantArrays) -> Any:
    values = [TensorValue(None, TensorSpec(array.shape, "int64"), array) for array in arrays]
    return arrays[0][strided_index(node, values) or ()]


def _fold_slice(node: Any, arrays: ConstantArrays) -> Any:
    data, begin, size = arrays
    ends = [None if n < 0 else b + n for b, n in zip(begin, size, strict=True)]
    return data[tuple(slice(int(b), e) for b, e in zip(begin, ends, strict=True))]


def _fold_gather(node: Any, arrays: ConstantArrays) -> Any:
    axis = int(arrays[2]) if len(arrays) > 2 else 0
    return np.take(arrays[0], arrays[1], axis=axis)


_FOLDS: Mapping[str, Callable[[Any, ConstantArrays], Any]] = {
    **dict.fromkeys(("Add", "AddV2"), _fold_elementwise(np.add)),
    "Sub": _fold_elementwise(np.subtract),
    "Mul": _fold_elementwise(np.multiply),
    "FloorDiv": _fold_elementwise(np.floor_divide),
    "RealDiv": _fold_elementwise(np.divide),
    **dict.fromkeys(("FloorMod", "Mod"), _fold_elementwise(np.mod)),
    "Maximum": _fold_elementwise(np.maximum),
    "Minimum": _fold_elementwise(np.minimum),
    "Equal": _fold_elementwise(np.equal),
    "NotEqual": _fold_elementwise(np.not_equal),
    "Less": _fold_elementwise(np.less),
    "LessEqual": _fold_elementwise(np.less_equal),
    "Greater": _fold_elementwise(np.greater),
    "GreaterEqual": _fold_elementwise(np.greater_equal),
    "LogicalAnd": _fold_elementwise(np.logical_and),
    **dict.fromkeys(("Select", "SelectV2"), _fold_elementwise(np.where)),
    "Neg": _fold_elementwise(np.negative),
    "Abs": _fold_elementwise(np.abs),
    "Ceil": _fold_elementwise(np.ceil),
    "Floor": _fold_elementwise(np.floor),
    **dict.fromkeys(("Rint", "Round"), _fold_elementwise(np.rint)),
    "Sqrt": _fold_elementwise(np.sqrt),
    **dict.fromkeys(("Cast", "Identity", "StopGradient"), lambda node, arrays: arrays[0]),
    "Reshape": lambda node, arrays: arrays[0].reshape(arrays[1].astype(np.int64)),
    "Squeeze": lambda node, arrays: arrays[0].squeeze(
        tuple(int_list_attribute(node, "squeeze_dims")) or None
    ),
    "ExpandDims": lambda node, arrays: np.expand_dims(arrays[0], int(arrays[1])),
    "Pack": lambda node, arrays: np.stack(arrays, int_attribute(node, "axis")),
    "ConcatV2": lambda node, arrays: np.concatenate(arrays[:-1], int(arrays[-1])),
    "Fill": lambda node, arrays: np.full(arrays[0].astype(np.int64), arrays[1]),
    "Range": lambda node, arrays: np.arange(*arrays),
    "StridedSlice": _fold_strided_slice,
    "Slice": _fold_slice,
    **dict.fromkeys(("Gather", "GatherV2"), _fold_gather),
    "Prod": _fold_reduction(np.prod),
    "Sum": _fold_reduction(np.sum),
    "Max": _fold_reduction(np.max),
    "Min": _fold_reduction(np.min),
}
"""Ops that numpy computes, if their outputs are small."""
