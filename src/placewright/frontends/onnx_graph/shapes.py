"""Infers the output shapes of an ONNX node, and folds small outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewright.errors import GraphError
from placewright.frontends.graph_builder import MAX_DIMENSIONS, first_line
from placewright.frontends.onnx_graph.op_rules import (
    DTYPES,
    FOLDABLE_OPS,
    ONNX_DOMAINS,
    describe,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.frontends.graph_builder import TensorValue
    from placewright.frontends.op_costs import TensorSpec

MAX_FOLDED = 4096  # elements of a folded constant
MAX_FOLDED_FLOATS = 16  # elements of a folded floating-point tensor: larger ones are data
DTYPE_CODES = {dtype: code for code, dtype in reversed(tuple(DTYPES.items()))}


def dtype_of(code: int) -> str:
    if code not in DTYPES:
        raise GraphError(f"data type {code} is unknown: expected one of ONNX's, 1 to {max(DTYPES)}")
    return DTYPES[code]


def constant_array(proto: Any, tensor: TensorSpec) -> Any:
    """The contents of a constant if they are small and in the file, otherwise None."""
    from onnx import numpy_helper

    if tensor.elements > MAX_FOLDED or proto.data_location == proto.EXTERNAL:
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


def inferred_types(
    node: Any, inputs: Sequence[TensorValue | None], opsets: Mapping[str, int]
) -> dict[str, Any]:
    """The types of an op's outputs by onnx's own rules."""
    import onnx
    from onnx import helper, numpy_helper, shape_inference

    if any(value is None for value, name in zip(inputs, node.input, strict=True) if name):
        return {}
    node, inputs = _standard_node(node, inputs)
    version = opsets.get(node.domain, opsets.get("ai.onnx", 1))
    try:
        schema = onnx.defs.get_schema(
            node.op_type, version, "" if node.domain in ONNX_DOMAINS else node.domain
        )
    except onnx.defs.SchemaError:
        return {}
    _check_node(node, inputs, schema)
    types, data = {}, {}
    for name, value in zip(node.input, inputs, strict=True):
        if value is not None:
            code = DTYPE_CODES[value.tensor.dtype]
            types[name] = helper.make_tensor_type_proto(code, value.tensor.shape)
            if value.constant is not None:
                data[name] = numpy_helper.from_array(value.constant, name)
    imports = [helper.make_opsetid(domain, at) for domain, at in opsets.items()]
    try:
        return dict(shape_inference.infer_node_outputs(schema, node, types, data, None, imports))
    except Exception as error:  # the C++ part of onnx raises its own classes
        raise GraphError(first_line(error)) from None


def _standard_node(
    node: Any, inputs: Sequence[TensorValue | None]
) -> tuple[Any, Sequence[TensorValue | None]]:
    """The node and inputs to infer shapes for, where onnx has no rule or a wrong one."""
    import onnx
    from onnx import helper

    is_stft = node.op_type == "STFT" and node.domain in ONNX_DOMAINS
    if is_stft and all(entry.name != "onesided" for entry in node.attribute):
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.attribute.append(helper.make_attribute("onesided", 1))  # onnx 1.23 assumes 0
        return copy, inputs
    if (node.domain, node.op_type) == ("com.microsoft", "DynamicQuantizeLSTM") and inputs:
        # LSTM's rule reads the first input only, and refuses the weights, which are int8.
        lstm = helper.make_node("LSTM", [node.input[0]] * 3, list(node.output))
        lstm.attribute.extend(
            entry for entry in node.attribute if entry.name in ("direction", "hidden_size")
        )
        return lstm, [inputs[0]] * 3
    return node, inputs


def _check_node(node: Any, inputs: Sequence[TensorValue | None], schema: Any) -> None:
    """Refuse nodes that would crash or hang onnx's own rules."""
    for label, names, minimum, maximum in (
        ("inputs", node.input, schema.min_input, schema.max_input),
        ("outputs", node.output, schema.min_output, schema.max_output),
    ):
        if not minimum <= len(names) <= maximum:
            raise GraphError(f"it has {len(names)} {label}: expected {minimum} to {maximum}")
    attributes = attributes_of(node)
    axis = attributes.get("axis", 0)
    if isinstance(axis, int) and abs(axis) > MAX_DIMENSIONS:
        raise GraphError(f"it has axis {axis}: expected at most {MAX_DIMENSIONS}")
    if node.op_type == "GatherND" and not 0 <= attributes.get("batch_dims", 0) <= MAX_DIMENSIONS:
        raise GraphError(f"it has batch_dims {attributes['batch_dims']}: expected 0 or more")
    if node.op_type == "Split" and attributes.get("num_outputs", 0) not in (0, len(node.output)):
        raise GraphError(
            f"it has num_outputs {attributes['num_outputs']}: it names {len(node.output)}"
        )
    if node.op_type == "Einsum":  # onnx would hang on a bad equation
        describe(node.domain, node.op_type, attributes, inputs, ())


def fold_node(
    node: Any,
    inputs: Sequence[TensorValue | None],
    outputs: Sequence[TensorSpec],
    opsets: Mapping[str, int],
) -> list[Any] | None:
    """The contents of an op's outputs if it can be folded, otherwise None."""
    import numpy as np

    if node.domain not in ONNX_DOMAINS:
        return None
    for tensor in outputs:
        if tensor.elements > (MAX_FOLDED_FLOATS if "float" in tensor.dtype else MAX_FOLDED):
            return None
    first_input = inputs[0] if inputs else None
    if node.op_type in ("Shape", "Size") and first_input is not None:
        shape = first_input.tensor.shape
        if node.op_type == "Size":
            return [np.array(first_input.tensor.elements, np.int64)]
        attributes = attributes_of(node)
        return [np.array(shape[attributes.get("start", 0) : attributes.get("end")], np.int64)]
    if node.op_type not in FOLDABLE_OPS or not inputs:
        return None
    feeds = {}
    for name, value in zip(node.input, inputs, strict=True):
        if name and (value is None or value.constant is None):
            return None
        if value is not None:
            feeds[name] = value.constant
    from onnx.reference import ReferenceEvaluator

    try:
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(_one_node_model(node, feeds, opsets)).run(None, feeds)
    except Exception:  # numpy refuses bad constants: the op is not folded
        return None
    arrays = [np.asarray(array) for array in results]
    agree = all(a.shape == t.shape for a, t in zip(arrays, outputs, strict=False))
    return arrays if agree and len(arrays) == len(outputs) else None


def _one_node_model(node: Any, feeds: Mapping[str, Any], opsets: Mapping[str, int]) -> Any:
    """A model of one node: onnx 1.23 evaluates a bare node by the newest opset."""
    from onnx import helper

    graph = helper.make_graph(
        [node],
        "node",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in feeds.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in node.output if name],
    )
    imports = [
        helper.make_opsetid("" if domain in ONNX_DOMAINS else domain, version)
        for domain, version in opsets.items()
    ]
    return helper.make_model(graph, opset_imports=imports)
