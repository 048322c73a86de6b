"""A node that computes shapes or indices and the small constants it reads in, what it makes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from placewright.frontends.graph_builder import Value
from placewright.frontends.graphdef.layouts import slices
from placewright.frontends.graphdef.protos import (
    MOST_FLOATS,
    MOST_FOLDED,
    flag,
    gradient_axes,
    int_attribute,
    ints,
)
from placewright.frontends.op_costs import Tensor

Arrays = Sequence[Any]


def fold(node: Any, inputs: Sequence[Value], outputs: Sequence[Tensor]) -> list[Any] | None:
    """The contents of what an op makes, where they are few and can be told while reading."""
    for tensor in outputs:
        if tensor.elements > (MOST_FLOATS if "float" in tensor.dtype else MOST_FOLDED):
            return None
    if node.op in ("Shape", "ShapeN", "VariableShape"):
        found: list[Any] = [value.tensor.shape for value in inputs]
    elif node.op == "Size":
        found = [inputs[0].tensor.elements]
    elif node.op == "Rank":
        found = [len(inputs[0].tensor.shape)]
    elif node.op == "BroadcastGradientArgs":
        found = gradient_axes(inputs) or []
    elif node.op in _FOLDS and all(value.constant is not None for value in inputs):
        try:
            with np.errstate(all="ignore"):
                found = [_FOLDS[node.op](node, [value.constant for value in inputs])]
        except (ValueError, IndexError, TypeError, OverflowError, MemoryError):
            return None  # bad constants: an op like any other
    else:
        return None
    if len(found) != len(outputs):
        return None
    try:
        arrays = [np.asarray(a, t.dtype) for a, t in zip(found, outputs, strict=True)]
    except (ValueError, TypeError, OverflowError):
        return None
    agree = all(a.shape == t.shape for a, t in zip(arrays, outputs, strict=True))
    return arrays if agree else None


def _reducing(reduce: Callable[..., Any]) -> Callable[[Any, Arrays], Any]:
    def folded(node: Any, arrays: Arrays) -> Any:
        axes = tuple(int(axis) for axis in arrays[1].reshape(-1))
        return reduce(arrays[0], axis=axes, keepdims=flag(node, "keep_dims"))

    return folded


def _elementwise(function: Callable[..., Any]) -> Callable[[Any, Arrays], Any]:
    return lambda node, arrays: function(*arrays)


def _strided(node: Any, arrays: Arrays) -> Any:
    values = [Value(None, Tensor(array.shape, "int64"), array) for array in arrays]
    return arrays[0][slices(node, values) or ()]


def _sliced(node: Any, arrays: Arrays) -> Any:
    data, begin, size = arrays
    ends = [None if n < 0 else b + n for b, n in zip(begin, size, strict=True)]
    return data[tuple(slice(int(b), e) for b, e in zip(begin, ends, strict=True))]


def _gathered(node: Any, arrays: Arrays) -> Any:
    axis = int(arrays[2]) if len(arrays) > 2 else 0
    return np.take(arrays[0], arrays[1], axis=axis)


_FOLDS: Mapping[str, Callable[[Any, Arrays], Any]] = {
    **dict.fromkeys(("Add", "AddV2"), _elementwise(np.add)),
    "Sub": _elementwise(np.subtract),
    "Mul": _elementwise(np.multiply),
    "FloorDiv": _elementwise(np.floor_divide),
    "RealDiv": _elementwise(np.divide),
    **dict.fromkeys(("FloorMod", "Mod"), _elementwise(np.mod)),
    "Maximum": _elementwise(np.maximum),
    "Minimum": _elementwise(np.minimum),
    "Equal": _elementwise(np.equal),
    "NotEqual": _elementwise(np.not_equal),
    "Less": _elementwise(np.less),
    "Greater": _elementwise(np.greater),
    "LogicalAnd": _elementwise(np.logical_and),
    **dict.fromkeys(("Select", "SelectV2"), _elementwise(np.where)),
    "Neg": _elementwise(np.negative),
    **dict.fromkeys(("Cast", "Identity", "StopGradient"), lambda node, arrays: arrays[0]),
    "Reshape": lambda node, arrays: arrays[0].reshape(arrays[1].astype(np.int64)),
    "Squeeze": lambda node, arrays: arrays[0].squeeze(tuple(ints(node, "squeeze_dims")) or None),
    "ExpandDims": lambda node, arrays: np.expand_dims(arrays[0], int(arrays[1])),
    "Pack": lambda node, arrays: np.stack(arrays, int_attribute(node, "axis")),
    "ConcatV2": lambda node, arrays: np.concatenate(arrays[:-1], int(arrays[-1])),
    "Fill": lambda node, arrays: np.full(arrays[0].astype(np.int64), arrays[1]),
    "Range": lambda node, arrays: np.arange(*arrays),
    "StridedSlice": _strided,
    "Slice": _sliced,
    **dict.fromkeys(("Gather", "GatherV2"), _gathered),
    "Prod": _reducing(np.prod),
    "Sum": _reducing(np.sum),
    "Max": _reducing(np.max),
    "Min": _reducing(np.min),
}
"""What is computed as numpy does, once its outputs are known to be small."""
