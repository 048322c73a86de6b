"""One ONNX node and what it reads in, the tensors it makes or even their contents out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewright.errors import GraphError
from placewright.frontends.graph_builder import MOST_DIMENSIONS, first_line
from placewright.frontends.onnx_graph.kinds import (
    DTYPES,
    FOLDED,
    OWN,
    describe,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.frontends.graph_builder import Value
    from placewright.frontends.op_costs import Tensor

MOST_FOLDED = 4096  # elements of a constant that is looked into
MOST_FLOATS = 16  # elements of a floating-point tensor that is computed while reading: no data
CODES = {dtype: code for code, dtype in reversed(tuple(DTYPES.items()))}


def dtype_of(code: int) -> str:
    if code not in DTYPES:
        raise GraphError(f"data type {code} is unknown: expected one of ONNX's, 1 to {max(DTYPES)}")
    return DTYPES[code]


def contents(proto: Any, tensor: Tensor) -> Any:
    """The numbers of a constant, where they are few and in the file; None otherwise."""
    from onnx import numpy_helper

    if tensor.elements > MOST_FOLDED or proto.data_location == proto.EXTERNAL:
        return None
    try:
        array = numpy_helper.to_array(proto)
    except (ValueError, TypeError, KeyError, OverflowError):
        return None  # no data, or of another size
    return array if array.dtype.kind in "biuf" and array.shape == tensor.shape else None


def attributes_of(node: Any) -> dict[str, Any]:
    from onnx import helper

    try:
        return {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
    except ValueError as error:
        raise GraphError(first_line(error)) from None


def inferred(
    node: Any, looked: Sequence[Value | None], opsets: Mapping[str, int]
) -> dict[str, Any]:
    """What onnx's own rules say about an op's outputs."""
    import onnx
    from onnx import helper, numpy_helper, shape_inference

    if any(value is None for value, name in zip(looked, node.input, strict=True) if name):
        return {}
    version = opsets.get(node.domain, opsets.get("ai.onnx", 1))
    try:
        schema = onnx.defs.get_schema(
            node.op_type, version, "" if node.domain in OWN else node.domain
        )
    except onnx.defs.SchemaError:
        return {}
    _check(node, looked, schema)
    types, data = {}, {}
    for name, value in zip(node.input, looked, strict=True):
        if value is not None:
            code = CODES[value.tensor.dtype]
            types[name] = helper.make_tensor_type_proto(code, value.tensor.shape)
            if value.constant is not None:
                data[name] = numpy_helper.from_array(value.constant, name)
    imports = [helper.make_opsetid(domain, at) for domain, at in opsets.items()]
    try:
        return dict(shape_inference.infer_node_outputs(schema, node, types, data, None, imports))
    except Exception as error:  # onnx's C++ part has classes of its own
        raise GraphError(first_line(error)) from None


def _check(node: Any, looked: Sequence[Value | None], schema: Any) -> None:
    """Refuse what onnx's own rules do not survive."""
    for what, names, least, most in (
        ("inputs", node.input, schema.min_input, schema.max_input),
        ("outputs", node.output, schema.min_output, schema.max_output),
    ):
        if not least <= len(names) <= most:
            raise GraphError(f"it has {len(names)} {what}: expected {least} to {most}")
    attributes = attributes_of(node)
    axis = attributes.get("axis", 0)
    if isinstance(axis, int) and abs(axis) > MOST_DIMENSIONS:
        raise GraphError(f"it has axis {axis}: expected at most {MOST_DIMENSIONS}")
    if node.op_type == "GatherND" and not 0 <= attributes.get("batch_dims", 0) <= MOST_DIMENSIONS:
        raise GraphError(f"it has batch_dims {attributes['batch_dims']}: expected 0 or more")
    if node.op_type == "Split" and attributes.get("num_outputs", 0) not in (0, len(node.output)):
        raise GraphError(
            f"it has num_outputs {attributes['num_outputs']}: it names {len(node.output)}"
        )
    if node.op_type == "Einsum":  # a bad equation would keep onnx busy for ever
        describe(node.domain, node.op_type, attributes, looked, ())


def fold(
    node: Any,
    looked: Sequence[Value | None],
    outputs: Sequence[Tensor],
    opsets: Mapping[str, int],
) -> list[Any] | None:
    """What an op makes, where that can be told while reading."""
    import numpy as np

    if node.domain not in OWN:
        return None
    for tensor in outputs:
        if tensor.elements > (MOST_FLOATS if "float" in tensor.dtype else MOST_FOLDED):
            return None
    first = looked[0] if looked else None
    if node.op_type in ("Shape", "Size") and first is not None:
        shape = first.tensor.shape
        if node.op_type == "Size":
            return [np.array(first.tensor.elements, np.int64)]
        ends = attributes_of(node)
        return [np.array(shape[ends.get("start", 0) : ends.get("end")], np.int64)]
    if node.op_type not in FOLDED or not looked:
        return None
    feeds = {}
    for name, value in zip(node.input, looked, strict=True):
        if name and (value is None or value.constant is None):
            return None
        if value is not None:
            feeds[name] = value.constant
    from onnx.reference import ReferenceEvaluator

    try:
        with np.errstate(all="ignore"):
            made = ReferenceEvaluator(node, opsets=dict(opsets)).run(None, feeds)
    except Exception:  # whatever numpy makes of bad constants: then it is an op like any other
        return None
    arrays = [np.asarray(array) for array in made]
    agree = all(a.shape == t.shape for a, t in zip(arrays, outputs, strict=False))
    return arrays if agree and len(arrays) == len(outputs) else None
