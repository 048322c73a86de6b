"""A node that lays tensors out anew and what it reads in, the shapes of what it makes out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from placewright.frontends.graphdef.protos import (
    HANDLE,
    Made,
    Rule,
    filled,
    gradient_axes,
    int_attribute,
    ints,
    made_dtype,
    read_numbers,
    read_shape,
    shape_attribute,
    type_attribute,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.frontends.graph_builder import Value

MOST_PARTS = 2**16  # that one op may split a tensor into


def given(at: int) -> Rule:
    """The shape stands in an input, as numbers."""
    return lambda node, inputs: filled(inputs[at].constant, made_dtype(node, inputs))


def as_input(at: int) -> Rule:
    """The shape is that of an input."""
    return lambda node, inputs: [(read_shape(inputs, at), made_dtype(node, inputs))]


def _declared(node: Any, inputs: Sequence[Value]) -> Made | None:
    shape = shape_attribute(node, "shape")
    return None if shape is None else [(shape, type_attribute(node, "dtype") or "float32")]


def _reshape(node: Any, inputs: Sequence[Value]) -> Made | None:
    sizes = read_numbers(inputs, 1)
    if sizes is None:
        return None
    elements = inputs[0].tensor.elements
    if -1 in sizes:
        known = -math.prod(sizes)
        sizes[sizes.index(-1)] = elements // known if known else 0
    if math.prod(sizes) != elements:
        raise ValueError(f"{elements} elements do not make {sizes}")
    return [(tuple(sizes), made_dtype(node, inputs))]


def _squeeze(node: Any, inputs: Sequence[Value]) -> Made:
    shape = read_shape(inputs, 0)
    axes = {axis % len(shape) for axis in ints(node, "squeeze_dims") or ints(node, "axis")}
    kept = [size for at, size in enumerate(shape) if (at not in axes if axes else size != 1)]
    return [(tuple(kept), made_dtype(node, inputs))]


def _expand(node: Any, inputs: Sequence[Value]) -> Made | None:
    shape, axes = read_shape(inputs, 0), read_numbers(inputs, 1)
    if axes is None:
        return None
    [axis] = axes
    at = axis if axis >= 0 else len(shape) + 1 + axis
    return [((*shape[:at], 1, *shape[at:]), made_dtype(node, inputs))]


def _transpose(node: Any, inputs: Sequence[Value]) -> Made | None:
    order = read_numbers(inputs, 1)
    shape = read_shape(inputs, 0)
    if order is None:
        return None
    if sorted(order) != list(range(len(shape))):
        raise ValueError(f"{order} of {shape}")
    return [(tuple(shape[at] for at in order), made_dtype(node, inputs))]


def _concat(node: Any, inputs: Sequence[Value]) -> Made | None:
    first = node.op == "Concat"
    axes = read_numbers(inputs, 0 if first else len(inputs) - 1)
    parts = inputs[1:] if first else inputs[:-1]
    if axes is None:
        return None
    shapes = [part.tensor.shape for part in parts]
    made = list(shapes[0])
    axis = axes[0] % len(made)
    made[axis] = sum(shape[axis] for shape in shapes)
    return [(tuple(made), parts[0].tensor.dtype)]


def _pack(node: Any, inputs: Sequence[Value]) -> Made:
    shape = read_shape(inputs, 0)
    axis = int_attribute(node, "axis")
    at = axis if axis >= 0 else len(shape) + 1 + axis
    return [((*shape[:at], len(inputs), *shape[at:]), made_dtype(node, inputs))]


def _unpack(node: Any, inputs: Sequence[Value]) -> Made:
    shape = read_shape(inputs, 0)
    axis = int_attribute(node, "axis") % len(shape)
    if shape[axis] > MOST_PARTS:
        raise ValueError(f"{shape[axis]} parts")
    return [(shape[:axis] + shape[axis + 1 :], made_dtype(node, inputs))] * shape[axis]


def _split(node: Any, inputs: Sequence[Value]) -> Made | None:
    sized = node.op == "SplitV"
    shape = list(read_shape(inputs, 0 if sized else 1))
    axes = read_numbers(inputs, 2 if sized else 0)
    if axes is None:
        return None
    axis = axes[0] % len(shape)
    count = int_attribute(node, "num_split", 1)
    if not 0 < count <= MOST_PARTS:
        raise ValueError(f"{count} parts")
    sizes = [shape[axis] // count] * count
    if sized:
        found = read_numbers(inputs, 1)
        if found is None:
            return None
        rest = shape[axis] - sum(size for size in found if size >= 0)
        sizes = [rest if size < 0 else size for size in found]
    dtype = inputs[0 if sized else 1].tensor.dtype
    return [((*shape[:axis], size, *shape[axis + 1 :]), dtype) for size in sizes]


def _slice(node: Any, inputs: Sequence[Value]) -> Made | None:
    shape, begin, size = read_shape(inputs, 0), read_numbers(inputs, 1), read_numbers(inputs, 2)
    if size is None or (begin is None and -1 in size):
        return None
    ends = begin or [0] * len(size)
    made = [
        whole - at if count < 0 else count
        for whole, at, count in zip(shape, ends, size, strict=True)
    ]
    return [(tuple(made), made_dtype(node, inputs))]


def slices(node: Any, inputs: Sequence[Value]) -> tuple[Any, ...] | None:
    """What a StridedSlice picks, as numpy writes it."""
    begin, end, stride = (read_numbers(inputs, at) for at in (1, 2, 3))
    if begin is None or end is None or stride is None:
        return None
    masks = {
        name: int_attribute(node, f"{name}_mask")
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    picked: list[Any] = []
    for at, (low, high, step) in enumerate(zip(begin, end, stride, strict=True)):
        bit = 1 << at
        if masks["ellipsis"] & bit:
            picked.append(Ellipsis)
        elif masks["new_axis"] & bit:
            picked.append(None)
        elif masks["shrink_axis"] & bit:
            picked.append(low)
        else:
            picked.append(
                slice(
                    None if masks["begin"] & bit else low,
                    None if masks["end"] & bit else high,
                    step,
                )
            )
    return tuple(picked)


def _strided(node: Any, inputs: Sequence[Value]) -> Made | None:
    import numpy as np

    shape = read_shape(inputs, 0)
    picked = slices(node, inputs)
    if picked is None:
        return None
    empty = np.broadcast_to(np.zeros((), np.bool_), shape)  # takes no memory
    return [(empty[picked].shape, made_dtype(node, inputs))]


def _gather(node: Any, inputs: Sequence[Value]) -> Made | None:
    shape, indices = read_shape(inputs, 0), read_shape(inputs, 1)
    axis, batch = 0, int_attribute(node, "batch_dims")
    if node.op == "GatherV2":
        axes = read_numbers(inputs, 2)
        if axes is None:
            return None
        axis = axes[0] % len(shape)
    made = (*shape[:axis], *indices[batch:], *shape[axis + 1 :])
    return [(made, type_attribute(node, "Tparams", "dtype") or inputs[0].tensor.dtype)]


def _gather_nd(node: Any, inputs: Sequence[Value]) -> Made:
    shape, (*rows, depth) = read_shape(inputs, 0), read_shape(inputs, 1)
    return [((*rows, *shape[depth:]), inputs[0].tensor.dtype)]


def _pad(node: Any, inputs: Sequence[Value]) -> Made | None:
    room = read_numbers(inputs, 1)
    if room is None:
        return None
    pairs = zip(room[::2], room[1::2], strict=True)
    sizes = zip(read_shape(inputs, 0), pairs, strict=True)
    return [(tuple(size + low + high for size, (low, high) in sizes), made_dtype(node, inputs))]


def _tile(node: Any, inputs: Sequence[Value]) -> Made | None:
    times = read_numbers(inputs, 1)
    if times is None:
        return None
    pairs = zip(read_shape(inputs, 0), times, strict=True)
    return [(tuple(size * count for size, count in pairs), made_dtype(node, inputs))]


def _range(node: Any, inputs: Sequence[Value]) -> Made | None:
    low, high, step = (value.constant for value in inputs)
    if low is None or high is None or step is None:
        return None
    count = max(0, math.ceil((float(high) - float(low)) / float(step)))
    return [((count,), type_attribute(node, "Tidx") or "int32")]


def _one_hot(node: Any, inputs: Sequence[Value]) -> Made | None:
    shape, depth = read_shape(inputs, 0), read_numbers(inputs, 1)
    if depth is None:
        return None
    axis = int_attribute(node, "axis", -1)
    at = len(shape) if axis == -1 else axis
    return [((*shape[:at], depth[0], *shape[at:]), made_dtype(node, inputs))]


def _depth(node: Any, inputs: Sequence[Value]) -> Made:
    batch, rows, columns, channels = read_shape(inputs, 0)
    block = int_attribute(node, "block_size", 1)
    if node.op == "SpaceToDepth":
        made = (batch, rows // block, columns // block, channels * block * block)
    else:
        made = (batch, rows * block, columns * block, channels // (block * block))
    return [(made, made_dtype(node, inputs))]


def _blocks(node: Any, inputs: Sequence[Value]) -> Made | None:
    """SpaceToBatchND and its inverse."""
    block, room = read_numbers(inputs, 1), read_numbers(inputs, 2)
    if block is None or room is None:
        return None
    batch, *rest = read_shape(inputs, 0)
    product = math.prod(block)
    for at, size in enumerate(block):
        both = room[2 * at] + room[2 * at + 1]
        rest[at] = (rest[at] + both) // size if node.op[0] == "S" else rest[at] * size - both
    batch = batch * product if node.op[0] == "S" else batch // product
    return [((batch, *rest), made_dtype(node, inputs))]


def _resize(node: Any, inputs: Sequence[Value]) -> Made | None:
    sizes = read_numbers(inputs, 1)
    if sizes is None:
        return None
    batch, _, _, channels = read_shape(inputs, 0)
    dtype = inputs[0].tensor.dtype if "Nearest" in node.op else "float32"
    return [((batch, sizes[0], sizes[1], channels), dtype)]


def _each(node: Any, inputs: Sequence[Value]) -> Made:
    return [(value.tensor.shape, value.tensor.dtype) for value in inputs]


def _switch(node: Any, inputs: Sequence[Value]) -> Made:
    return [(read_shape(inputs, 0), inputs[0].tensor.dtype)] * 2


def _merge(node: Any, inputs: Sequence[Value]) -> Made:
    return [(read_shape(inputs, 0), inputs[0].tensor.dtype), ((), "int32")]


def _host(node: Any, inputs: Sequence[Value]) -> Made:
    """What an op says about its inputs' shapes."""
    dtype = type_attribute(node, "out_type") or "int32"
    if node.op in ("Size", "Rank"):
        return [((), dtype)]
    return [((len(value.tensor.shape),), dtype) for value in inputs]


def _gradient_axes(node: Any, inputs: Sequence[Value]) -> Made | None:
    axes = gradient_axes(inputs)
    return None if axes is None else [((len(found),), "int32") for found in axes]


def _segments(node: Any, inputs: Sequence[Value]) -> Made | None:
    count = read_numbers(inputs, 2)
    rest = read_shape(inputs, 0)[len(read_shape(inputs, 1)) :]
    return None if count is None else [((count[0], *rest), made_dtype(node, inputs))]


def _element(node: Any, inputs: Sequence[Value]) -> Made:
    return [(read_shape(inputs, 0)[1:], made_dtype(node, inputs))]


def _reserve(node: Any, inputs: Sequence[Value]) -> Made | None:
    count, element = read_numbers(inputs, 1), read_numbers(inputs, 0)
    if count is None or element is None:
        return None
    known = tuple(element) if min(element, default=0) >= 0 else (0,)  # until an item is set
    return [((count[0], *known), type_attribute(node, "element_dtype") or HANDLE)]


def _set_item(node: Any, inputs: Sequence[Value]) -> Made:
    count = read_shape(inputs, 0)[0]
    return [((count, *read_shape(inputs, 2)), inputs[2].tensor.dtype)]


LAYOUTS: Mapping[str, Rule] = {
    **dict.fromkeys(("Placeholder", "VariableV2", "Variable", "VarHandleOp"), _declared),
    "PlaceholderWithDefault": as_input(0),
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "ExpandDims": _expand,
    **dict.fromkeys(("Transpose", "ConjugateTranspose"), _transpose),
    **dict.fromkeys(("Concat", "ConcatV2"), _concat),
    "Pack": _pack,
    "Unpack": _unpack,
    **dict.fromkeys(("Split", "SplitV"), _split),
    "Slice": _slice,
    "StridedSlice": _strided,
    "StridedSliceGrad": given(0),
    **dict.fromkeys(("Fill", "Empty"), given(0)),
    "BroadcastTo": given(1),
    "ScatterNd": given(2),
    **dict.fromkeys(("Gather", "GatherV2", "ResourceGather"), _gather),
    **dict.fromkeys(("GatherNd", "ResourceGatherNd"), _gather_nd),
    **dict.fromkeys(("Pad", "PadV2", "MirrorPad"), _pad),
    "Tile": _tile,
    "Range": _range,
    "OneHot": _one_hot,
    **dict.fromkeys(("SpaceToDepth", "DepthToSpace"), _depth),
    **dict.fromkeys(("SpaceToBatchND", "BatchToSpaceND"), _blocks),
    **dict.fromkeys(
        ("ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic", "ResizeArea"), _resize
    ),
    **dict.fromkeys(("IdentityN", "RefIdentityN"), _each),
    **dict.fromkeys(("Switch", "RefSwitch"), _switch),
    **dict.fromkeys(("Merge", "RefMerge"), _merge),
    **dict.fromkeys(("Shape", "ShapeN", "Size", "Rank"), _host),
    "VariableShape": _host,
    "BroadcastGradientArgs": _gradient_axes,
    **dict.fromkeys(("UnsortedSegmentSum", "UnsortedSegmentMax"), _segments),
    "TensorListGetItem": _element,
    "TensorListReserve": _reserve,
    "TensorListSetItem": _set_item,
}
"""How to find the shapes of what each op makes."""
