"""Infers the output shapes of nodes that rearrange tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from placewright.frontends.graphdef.protos import (
    HANDLE,
    OutputShapes,
    ShapeRule,
    gradient_axes,
    input_numbers,
    input_shape,
    int_attribute,
    int_list_attribute,
    output_dtype,
    shape_attribute,
    shape_from_numbers,
    type_attribute,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.frontends.graph_builder import TensorValue

MAX_PARTS = 2**16  # of one split


def shape_from_input(at: int) -> ShapeRule:
    """The shape is the contents of an input."""
    return lambda node, inputs: shape_from_numbers(inputs[at].constant, output_dtype(node, inputs))


def same_shape_as(at: int) -> ShapeRule:
    """The shape is that of an input."""
    return lambda node, inputs: [(input_shape(inputs, at), output_dtype(node, inputs))]


def _declared_shape(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes | None:
    shape = shape_attribute(node, "shape")
    return None if shape is None else [(shape, type_attribute(node, "dtype") or "float32")]


def _reshape(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes | None:
    sizes = input_numbers(inputs, 1)
    if sizes is None:
        return None
    elements = inputs[0].tensor.elements
    if -1 in sizes:
        known_elements = -math.prod(sizes)
        sizes[sizes.index(-1)] = elements // known_elements if known_elements else 0
    if math.prod(sizes) != elements:
        raise ValueError(f"{elements} elements do not make {sizes}")
    return [(tuple(sizes), output_dtype(node, inputs))]


def _squeeze(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes:
    shape = input_shape(inputs, 0)
    axes = {
        axis % len(shape)
        for axis in int_list_attribute(node, "squeeze_dims") or int_list_attribute(node, "axis")
    }
    sizes = [size for at, size in enumerate(shape) if (at not in axes if axes else size != 1)]
    return [(tuple(sizes), output_dtype(node, inputs))]


def _expand_dims(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes | None:
    shape, axes = input_shape(inputs, 0), input_numbers(inputs, 1)
    if axes is None:
        return None
    [axis] = axes
    at = axis if axis >= 0 else len(shape) + 1 + axis
    return [((*shape[:at], 1, *shape[at:]), output_dtype(node, inputs))]


def _transpose(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes | None:
    order = input_numbers(inputs, 1)
    shape = input_shape(inputs, 0)
    if order is None:
        return None
    if sorted(order) != list(range(len(shape))):
        raise ValueError(f"{order} of {shape}")
    return [(tuple(shape[at] for at in order), output_dtype(node, inputs))]


def _concat(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes | None:
    axis_first = node.op == "Concat"
    axes = input_numbers(inputs, 0 if axis_first else len(inputs) - 1)
    parts = inputs[1:] if axis_first else inputs[:-1]
    if axes is None:
        return None
    shapes = [part.tensor.shape for part in parts]
    sizes = list(shapes[0])
    axis = axes[0] % len(sizes)
    sizes[axis] = sum(shape[axis] for shape in shapes)
    return [(tuple(sizes), parts[0].tensor.dtype)]


def _pack(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes:
    shape = input_shape(inputs, 0)
    axis = int_attribute(node, "axis")
    at = axis if axis >= 0 else len(shape) + 1 + axis
    return [((*shape[:at], len(inputs), *shape[at:]), output_dtype(node, inputs))]


def _unpack(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes:
    shape = input_shape(inputs, 0)
    axis = int_attribute(node, "axis") % len(shape)
    if shape[axis] > MAX_PARTS:
        raise ValueError(f"{shape[axis]} parts")
    return [(shape[:axis] + shape[axis + 1 :], output_dtype(node, inputs))] * shape[axis]


def _split(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes | None:
    has_sizes = node.op == "SplitV"
    shape = list(input_shape(inputs, 0 if has_sizes else 1))
    axes = input_numbers(inputs, 2 if has_sizes else 0)
    if axes is None:
        return None
    axis = axes[0] % len(shape)
    count = int_attribute(node, "num_split", 1)
    if not 0 < count <= MAX_PARTS:
        raise ValueError(f"{count} parts")
    sizes = [shape[axis] // count] * count
    if has_sizes:
        requested = input_numbers(inputs, 1)
        if requested is None:
            return None
        remainder = shape[axis] - sum(size for size in requested if size >= 0)
        sizes = [remainder if size < 0 else size for size in requested]
    dtype = inputs[0 if has_sizes else 1].tensor.dtype
    return [((*shape[:axis], size, *shape[axis + 1 :]), dtype) for size in sizes]


def _slice(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes | None:
    shape, begin, size = input_shape(inputs, 0), input_numbers(inputs, 1), input_numbers(inputs, 2)
    if size is None or (begin is None and -1 in size):
        return None
    starts = begin or [0] * len(size)
    sizes = [
        extent - at if count < 0 else count
        for extent, at, count in zip(shape, starts, size, strict=True)
    ]
    return [(tuple(sizes), output_dtype(node, inputs))]


def strided_index(node: Any, inputs: Sequence[TensorValue]) -> tuple[Any, ...] | None:
    """The numpy index of a StridedSlice."""
    begin, end, stride = (input_numbers(inputs, at) for at in (1, 2, 3))
    if begin is None or end is None or stride is None:
        return None
    masks = {
        name: int_attribute(node, f"{name}_mask")
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    index: list[Any] = []
    for at, (low, high, step) in enumerate(zip(begin, end, stride, strict=True)):
        bit = 1 << at
        if masks["ellipsis"] & bit:
            index.append(Ellipsis)
        elif masks["new_axis"] & bit:
            index.append(None)
        elif masks["shrink_axis"] & bit:
            index.append(low)
        else:
            index.append(
                slice(
                    None if masks["begin"] & bit else low,
                    None if masks["end"] & bit else high,
                    step,
                )
            )
    return tuple(index)


def _strided_slice(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes | None:
    import numpy as np

    shape = input_shape(inputs, 0)
    index = strided_index(node, inputs)
    if index is None:
        return None
    empty = np.broadcast_to(np.zeros((), np.bool_), shape)  # takes no memory
    return [(empty[index].shape, output_dtype(node, inputs))]


def _gather(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes | None:
    shape, indices = input_shape(inputs, 0), input_shape(inputs, 1)
    axis, batch = 0, int_attribute(node, "batch_dims")
    if node.op == "GatherV2":
        axes = input_numbers(inputs, 2)
        if axes is None:
            return None
        axis = axes[0] % len(shape)
    sizes = (*shape[:axis], *indices[batch:], *shape[axis + 1 :])
    return [(sizes, type_attribute(node, "Tparams", "dtype") or inputs[0].tensor.dtype)]


def _gather_nd(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes:
    shape, (*rows, depth) = input_shape(inputs, 0), input_shape(inputs, 1)
    return [((*rows, *shape[depth:]), inputs[0].tensor.dtype)]


def _pad(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes | None:
    paddings = input_numbers(inputs, 1)
    if paddings is None:
        return None
    pairs = zip(paddings[::2], paddings[1::2], strict=True)
    sizes = zip(input_shape(inputs, 0), pairs, strict=True)
    return [(tuple(size + low + high for size, (low, high) in sizes), output_dtype(node, inputs))]


def _tile(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes | None:
    repeats = input_numbers(inputs, 1)
    if repeats is None:
        return None
    pairs = zip(input_shape(inputs, 0), repeats, strict=True)
    return [(tuple(size * count for size, count in pairs), output_dtype(node, inputs))]


def _range(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes | None:
    low, high, step = (value.constant for value in inputs)
    if low is None or high is None or step is None:
        return None
    count = max(0, math.ceil((float(high) - float(low)) / float(step)))
    return [((count,), type_attribute(node, "Tidx") or "int32")]


def _one_hot(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes | None:
    shape, depth = input_shape(inputs, 0), input_numbers(inputs, 1)
    if depth is None:
        return None
    axis = int_attribute(node, "axis", -1)
    at = len(shape) if axis == -1 else axis
    return [((*shape[:at], depth[0], *shape[at:]), output_dtype(node, inputs))]


def _depth_space(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes:
    batch, rows, columns, channels = input_shape(inputs, 0)
    block = int_attribute(node, "block_size", 1)
    if node.op == "SpaceToDepth":
        sizes = (batch, rows // block, columns // block, channels * block * block)
    else:
        sizes = (batch, rows * block, columns * block, channels // (block * block))
    return [(sizes, output_dtype(node, inputs))]


def _batch_space(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes | None:
    """SpaceToBatchND and its inverse."""
    block, paddings = input_numbers(inputs, 1), input_numbers(inputs, 2)
    if block is None or paddings is None:
        return None
    batch, *spatial = input_shape(inputs, 0)
    product = math.prod(block)
    for at, size in enumerate(block):
        padding = paddings[2 * at] + paddings[2 * at + 1]
        spatial[at] = (
            (spatial[at] + padding) // size if node.op[0] == "S" else spatial[at] * size - padding
        )
    batch = batch * product if node.op[0] == "S" else batch // product
    return [((batch, *spatial), output_dtype(node, inputs))]


def _resize(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes | None:
    sizes = input_numbers(inputs, 1)
    if sizes is None:
        return None
    batch, _, _, channels = input_shape(inputs, 0)
    dtype = inputs[0].tensor.dtype if "Nearest" in node.op else "float32"
    return [((batch, sizes[0], sizes[1], channels), dtype)]


def _input_shapes(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes:
    return [(value.tensor.shape, value.tensor.dtype) for value in inputs]


def _switch(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes:
    return [(input_shape(inputs, 0), inputs[0].tensor.dtype)] * 2


def _merge(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes:
    return [(input_shape(inputs, 0), inputs[0].tensor.dtype), ((), "int32")]


def _shape_query(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes:
    """The output shapes of an op that reads shapes."""
    dtype = type_attribute(node, "out_type") or "int32"
    if node.op in ("Size", "Rank"):
        return [((), dtype)]
    return [((len(value.tensor.shape),), dtype) for value in inputs]


def _gradient_axes(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes | None:
    axes = gradient_axes(inputs)
    return None if axes is None else [((len(dims),), "int32") for dims in axes]


def _segments(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes | None:
    count = input_numbers(inputs, 2)
    row_shape = input_shape(inputs, 0)[len(input_shape(inputs, 1)) :]
    return None if count is None else [((count[0], *row_shape), output_dtype(node, inputs))]


def _list_element(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes:
    return [(input_shape(inputs, 0)[1:], output_dtype(node, inputs))]


def _list_reserve(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes | None:
    count, element = input_numbers(inputs, 1), input_numbers(inputs, 0)
    if count is None or element is None:
        return None
    element_shape = tuple(element) if min(element, default=0) >= 0 else (0,)  # until an item is set
    return [((count[0], *element_shape), type_attribute(node, "element_dtype") or HANDLE)]


def _list_set_item(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes:
    count = input_shape(inputs, 0)[0]
    return [((count, *input_shape(inputs, 2)), inputs[2].tensor.dtype)]


LAYOUT_RULES: Mapping[str, ShapeRule] = {
    **dict.fromkeys(("Placeholder", "VariableV2", "Variable", "VarHandleOp"), _declared_shape),
    "PlaceholderWithDefault": same_shape_as(0),
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "ExpandDims": _expand_dims,
    **dict.fromkeys(("Transpose", "ConjugateTranspose"), _transpose),
    **dict.fromkeys(("Concat", "ConcatV2"), _concat),
    "Pack": _pack,
    "Unpack": _unpack,
    **dict.fromkeys(("Split", "SplitV"), _split),
    "Slice": _slice,
    "StridedSlice": _strided_slice,
    "StridedSliceGrad": shape_from_input(0),
    **dict.fromkeys(("Fill", "Empty"), shape_from_input(0)),
    "BroadcastTo": shape_from_input(1),
    "ScatterNd": shape_from_input(2),
    **dict.fromkeys(("Gather", "GatherV2", "ResourceGather"), _gather),
    **dict.fromkeys(("GatherNd", "ResourceGatherNd"), _gather_nd),
    **dict.fromkeys(("Pad", "PadV2", "MirrorPad"), _pad),
    "Tile": _tile,
    "Range": _range,
    "OneHot": _one_hot,
    **dict.fromkeys(("SpaceToDepth", "DepthToSpace"), _depth_space),
    **dict.fromkeys(("SpaceToBatchND", "BatchToSpaceND"), _batch_space),
    **dict.fromkeys(
        ("ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic", "ResizeArea"), _resize
    ),
    **dict.fromkeys(("IdentityN", "RefIdentityN"), _input_shapes),
    **dict.fromkeys(("Switch", "RefSwitch"), _switch),
    **dict.fromkeys(("Merge", "RefMerge"), _merge),
    **dict.fromkeys(("Shape", "ShapeN", "Size", "Rank"), _shape_query),
    "VariableShape": _shape_query,
    "BroadcastGradientArgs": _gradient_axes,
    **dict.fromkeys(("UnsortedSegmentSum", "UnsortedSegmentMax"), _segments),
    "TensorListGetItem": _list_element,
    "TensorListReserve": _list_reserve,
    "TensorListSetItem": _list_set_item,
}
"""How to infer the output shapes of each op."""
