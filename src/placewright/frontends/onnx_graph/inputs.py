"""Sizes and values of the inputs of an ONNX graph, and a request for those that are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewright.errors import GraphError
from placewright.frontends.graph_builder import tensor_spec
from placewright.frontends.onnx_graph.op_rules import DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from placewright.frontends.op_costs import TensorSpec

UNNAMED = ("", "?")
"""Symbols of dimensions that have no name of their own: exporters write them for unknown sizes."""
_IMAGE_RANK, _IMAGE_SIZE = 4, 224  # batch, channels, height, width


def dimension_size(dim: Any, dims: Mapping[str, int]) -> int | None:
    """The size of a dimension; None if the model leaves it open and the user does not give it.

    Exporters write -1 for an unknown size.
    """
    if dim.HasField("dim_value") and dim.dim_value != -1:
        return int(dim.dim_value)
    return dims.get(dim.dim_param) if dim.dim_param else None


def input_spec(
    info: Any,
    dims: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
    numbers: Mapping[str, int],
) -> TensorSpec | None:
    """The tensor of a graph input; None if a size is missing.

    Args:
        numbers: Numbers that the user gives for inputs by name: the size of a vector.

    Raises:
        GraphError: The input is not a tensor, or its shape is not plausible.
    """
    name, tensor_type = info.name, info.type.tensor_type
    if name not in shapes and info.type.WhichOneof("value") != "tensor_type":
        raise GraphError(f"input {name!r} is not a tensor: only tensors can be read")
    sizes: list[int | None] | None = None
    if name in shapes:
        sizes = list(shapes[name])
    elif tensor_type.HasField("shape"):
        sizes = [dimension_size(dim, dims) for dim in tensor_type.shape.dim]
    if name in numbers and (sizes is None or (len(sizes) == 1 and sizes != [1])):
        sizes = [numbers[name]]
    known_sizes = [size for size in sizes or () if size is not None]
    if sizes is None or len(known_sizes) < len(sizes):
        return None
    return tensor_spec(
        f"tensor {name!r}", known_sizes, DTYPES.get(tensor_type.elem_type, "float32")
    )


def input_value(name: str, tensor: TensorSpec, number: int | None) -> Any:
    """The contents of an input of one element whose number the user gives, otherwise None.

    Raises:
        GraphError: The input has several dimensions, or its dtype cannot hold the number.
    """
    import numpy as np

    is_vector = len(tensor.shape) == 1 and tensor.shape != (1,)
    if number is None or is_vector:
        return None
    if tensor.elements != 1:
        raise GraphError(
            f"dims has {name!r}, an input of shape {tensor.shape}: expected a dimension, or an "
            "input of one element, which gets that value"
        )
    try:
        return np.full(tensor.shape, number, getattr(np, tensor.dtype, np.float32))
    except OverflowError:
        raise GraphError(
            f"dims has {name!r}: {number}: expected a value of {tensor.dtype}"
        ) from None


def missing_sizes_error(infos: Iterable[Any], dims: Mapping[str, int]) -> GraphError:
    """An error that names every input with a missing size, and one `--dims` that gives them all."""
    described: list[str] = []
    sizes: dict[str, int] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for info in infos:
        dimensions = list(info.type.tensor_type.shape.dim)
        has_shape = info.type.tensor_type.HasField("shape")
        missing = [dim for dim in dimensions if dimension_size(dim, dims) is None]
        described.append(f"{info.name!r} has shape {_shape_text(dimensions) if has_shape else '?'}")
        examples = [_example_size(at, dim, dimensions, dims) for at, dim in enumerate(dimensions)]
        if has_shape and all(dim.dim_param not in UNNAMED for dim in missing):
            for dim, example in zip(dimensions, examples, strict=True):
                if dim in missing:
                    sizes.setdefault(dim.dim_param, example)
        else:
            shapes[info.name] = tuple(examples) if has_shape else (8, 16)
    words = [f"{name}={size}" for name, size in sizes.items()]
    words += [f"{name}={'x'.join(map(str, shape))}" for name, shape in shapes.items()]
    arguments = [f"dims={sizes}"] * bool(sizes) + [f"shapes={shapes}"] * bool(shapes)
    return GraphError(
        f"input {', '.join(described)}: give the sizes, such as --dims {','.join(words)} or "
        f"{', '.join(arguments)}"
    )


def _shape_text(dimensions: Sequence[Any]) -> str:
    sizes = [dimension_size(dim, {}) for dim in dimensions]
    words = [
        (dim.dim_param or "?") if size is None else str(size)
        for dim, size in zip(dimensions, sizes, strict=True)
    ]
    return f"({', '.join(words)})"


def _example_size(at: int, dim: Any, dimensions: Sequence[Any], dims: Mapping[str, int]) -> int:
    """A dimension's size, or a plausible one: a batch of 8, an image of 224 × 224, 16 tokens."""
    size = dimension_size(dim, dims)
    if size is not None:
        return size
    if at == 0:
        return 8
    return _IMAGE_SIZE if len(dimensions) == _IMAGE_RANK and at >= 2 else 16
