"""Converts the attributes and constants of GraphDef nodes to Python and numpy values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from placewright.errors import GraphError
from placewright.frontends.graph_builder import (
    TensorValue,
    tensor_spec,
    word_set,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placewright.frontends.op_costs import TensorSpec

Shape = tuple[int, ...]
OutputShapes = list[tuple[Shape, str]]
ShapeRule = Callable[[Any, Sequence[TensorValue]], OutputShapes | None]

MAX_FOLDED = 4096  # elements of a constant that is looked into
MAX_FOLDED_FLOATS = (
    16  # elements of a floating-point tensor that is computed while reading: no data
)
HANDLE = "int64"  # strings, resources and variants: a handle of eight bytes

DTYPES: Mapping[int, str] = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: HANDLE,
    8: "complex64", 9: "int64", 10: "bool", 11: "int8", 12: "uint8", 13: "int32", 14: "bfloat16",
    15: "int16", 16: "uint16", 17: "uint16", 18: "complex128", 19: "float16", 20: HANDLE,
    21: HANDLE, 22: "uint32", 23: "uint64", 24: "float8_e5m2", 25: "float8_e4m3fn",
    26: "float8_e4m3fnuz", 27: "uint8", 28: "float8_e5m2fnuz", 29: "int4", 30: "uint4",
    31: "int2", 32: "uint2",
}  # fmt: skip

# The field of TensorProto with the numbers of a constant, by dtype code.
_FIELDS = {
    1: "float_val", 2: "double_val", 3: "int_val", 4: "int_val", 5: "int_val", 6: "int_val",
    9: "int64_val", 10: "bool_val", 17: "int_val", 22: "uint32_val", 23: "uint64_val",
}  # fmt: skip


def dtype_of(code: int) -> str:
    """The name of a dtype; that of a reference is that of its tensor."""
    code -= 100 if code > 100 else 0
    if code not in DTYPES:
        raise GraphError(
            f"dtype {code} is unknown: expected one of TensorFlow's, 1 to {max(DTYPES)}"
        )
    return DTYPES[code]


def type_attribute(node: Any, *names: str) -> str | None:
    """The dtype in the first of these attributes that a node has."""
    for name in names:
        if name in node.attr and node.attr[name].type:
            return dtype_of(node.attr[name].type)
    return None


def int_attribute(node: Any, name: str, default: int = 0) -> int:
    return int(node.attr[name].i) if name in node.attr else default


def bool_attribute(node: Any, name: str) -> bool:
    return name in node.attr and bool(node.attr[name].b)


def text_attribute(node: Any, name: str, default: str = "") -> str:
    if name not in node.attr:
        return default
    return str(node.attr[name].s.decode("utf-8", "replace")) or default


def int_list_attribute(node: Any, name: str) -> list[int]:
    return [int(number) for number in node.attr[name].list.i] if name in node.attr else []


def shape_of(proto: Any) -> tuple[int, ...] | None:
    """A shape, if all of its sizes are known."""
    if proto.unknown_rank or any(dim.size < 0 for dim in proto.dim):
        return None
    return tuple(int(dim.size) for dim in proto.dim)


def shape_attribute(node: Any, name: str) -> tuple[int, ...] | None:
    if name not in node.attr or not node.attr[name].HasField("shape"):
        return None
    return shape_of(node.attr[name].shape)


def output_shapes(node: Any) -> list[tuple[int, ...] | None]:
    """The shapes of a node's outputs in its `_output_shapes`."""
    if "_output_shapes" not in node.attr:
        return []
    return [shape_of(proto) for proto in node.attr["_output_shapes"].list.shape]


def read_constant(proto: Any) -> tuple[TensorSpec, Any]:
    """The tensor of a constant, and its contents if they are small."""
    import numpy as np

    shape = shape_of(proto.tensor_shape)
    if shape is None:
        raise GraphError("it is a constant of unknown shape: expected a shape")
    tensor = tensor_spec("it", shape, dtype_of(proto.dtype))
    content = proto.tensor_content
    if content and len(content) != tensor.bytes:
        raise GraphError(
            f"it holds {len(content):,} bytes: expected {tensor.bytes:,} for shape {shape}"
        )
    if tensor.elements > MAX_FOLDED or proto.dtype not in _FIELDS:
        return tensor, None
    if content:
        return tensor, np.frombuffer(content, tensor.dtype).reshape(shape)
    numbers = np.array(getattr(proto, _FIELDS[proto.dtype]), dtype=tensor.dtype)
    if not len(numbers) or len(numbers) > max(tensor.elements, 1):
        numbers = np.zeros(1, tensor.dtype) if not len(numbers) else numbers[: tensor.elements]
    array = np.full(tensor.elements, numbers[-1] if len(numbers) else 0, tensor.dtype)
    array[: len(numbers)] = numbers[: tensor.elements]  # the last number is repeated
    return tensor, array.reshape(shape)


COMPARISON_OPS = word_set(
    "All Any Equal Greater GreaterEqual IsFinite IsInf IsNan Less LessEqual LogicalAnd LogicalNot "
    "LogicalOr NotEqual"
)


def output_dtype(node: Any, inputs: Sequence[TensorValue]) -> str:
    if node.op in COMPARISON_OPS:
        return "bool"
    dtype = type_attribute(node, "DstT", "dtype", "T", "out_type", "Tout", "element_dtype", "type")
    return dtype or (inputs[0].tensor.dtype if inputs else "float32")


def input_shape(inputs: Sequence[TensorValue], at: int) -> Shape:
    return inputs[at].tensor.shape


def input_numbers(inputs: Sequence[TensorValue], at: int) -> list[int] | None:
    constant = inputs[at].constant
    return None if constant is None else [int(number) for number in constant.reshape(-1)]


def shape_from_numbers(sizes: Any, dtype: str) -> OutputShapes | None:
    return None if sizes is None else [(tuple(int(size) for size in sizes.reshape(-1)), dtype)]


def broadcast_shape(*shapes: Shape) -> Shape:
    """The shape that shapes broadcast to, as in numpy."""
    rank = max((len(shape) for shape in shapes), default=0)
    sizes = []
    for at in range(rank):
        dim_sizes = {
            shape[at - rank + len(shape)] for shape in shapes if at - rank + len(shape) >= 0
        }
        non_unit = dim_sizes - {1}
        if len(non_unit) > 1:
            raise ValueError(f"{shapes} do not broadcast")
        sizes.append(non_unit.pop() if non_unit else 1)
    return tuple(sizes)


def gradient_axes(inputs: Sequence[TensorValue]) -> list[list[int]] | None:
    """The dimensions along which each of two shapes is broadcast."""
    shapes = [input_numbers(inputs, at) for at in (0, 1)]
    if shapes[0] is None or shapes[1] is None:
        return None
    rank = max(len(shapes[0]), len(shapes[1]))
    padded = [[1] * (rank - len(shape)) + shape for shape in shapes if shape is not None]
    common = broadcast_shape(*(tuple(shape) for shape in padded))
    return [
        [
            at
            for at in range(rank)
            if shape[at] == 1 and (common[at] != 1 or at < rank - len(original))
        ]
        for shape, original in zip(padded, (shapes[0], shapes[1]), strict=True)
    ]
