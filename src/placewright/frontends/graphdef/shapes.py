"""Infers the output shapes and dtypes of a GraphDef node.

TensorFlow's own shape functions are not available, so this module has rules for the common ops.
For other ops, complete shapes in `_output_shapes` are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewright.errors import GraphError
from placewright.frontends.graph_builder import TensorValue, word_set
from placewright.frontends.graphdef.layouts import (
    LAYOUT_RULES,
    same_shape_as,
    shape_from_input,
)
from placewright.frontends.graphdef.protos import (
    OutputShapes,
    Shape,
    ShapeRule,
    bool_attribute,
    broadcast_shape,
    dtype_of,
    input_numbers,
    input_shape,
    int_attribute,
    int_list_attribute,
    output_dtype,
    shape_from_numbers,
    shape_of,
    text_attribute,
    type_attribute,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SAME_SHAPE_OPS = word_set(
    "Abs Acos Acosh AddN Asin Asinh Atan Atanh AvgPoolGradGrad BiasAdd Bitcast Ceil CheckNumerics "
    "ClipByValue Cos Cosh Cumprod Cumsum Digamma Elu EluGrad EnsureShape Enter Erf Erfc Exit Exp "
    "Expm1 Floor Identity InvGrad Inv Invert L2Normalize LRN LRNGrad LeakyRelu LeakyReluGrad "
    "Lgamma Log Log1p LogSoftmax LogicalNot LoopCond MatrixBandPart MatrixInverse Ndtri Neg "
    "NextIteration OnesLike PlaceholderWithDefault PreventGradient RandomShuffle Reciprocal "
    "ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad Reverse ReverseSequence ReverseV2 Rint Roll "
    "Round Rsqrt RsqrtGrad Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Sinh Snapshot Softmax "
    "Softplus SoftplusGrad Softsign SoftsignGrad Sqrt SqrtGrad Square StopGradient Tan Tanh "
    "TanhGrad TensorScatterAdd TensorScatterUpdate Xlogy ZerosLike Cast QuantizeAndDequantizeV2 "
    "FakeQuantWithMinMaxVars FakeQuantWithMinMaxArgs MaxPoolGrad AvgPool3DGradDummy "
    "ReadVariableOp Assign AssignAdd AssignSub ApplyGradientDescent ApplyMomentum ApplyAdam "
    "ApplyRMSProp ApplyAdagrad ApplyFtrl ApplyCenteredRMSProp ApplyAdadelta ScatterAdd ScatterSub "
    "ScatterUpdate SparseApplyAdagrad SparseApplyMomentum TensorListFromTensor TensorListStack "
    "IsFinite IsInf IsNan Gelu _MklGelu Merge RefIdentity RefEnter RefExit RefNextIteration"
)
"""Ops whose first output has the shape of their first input."""
BROADCAST_OPS = word_set(
    "Add AddV2 And Atan2 BitwiseAnd BitwiseOr BitwiseXor Complex Div DivNoNan Equal FloorDiv "
    "FloorMod Greater GreaterEqual LeftShift Less LessEqual LogicalAnd LogicalOr Maximum Minimum "
    "Mod Mul MulNoNan NotEqual Pow RealDiv RightShift SquaredDifference Sub TruncateDiv "
    "TruncateMod Xdivy Xlogy Select SelectV2 BetaInc Igamma Igammac Zeta"
)
REDUCTION_OPS = word_set("All Any EuclideanNorm Max Mean Min Prod Sum")
RANDOM_OPS = word_set(
    "RandomUniform RandomUniformInt RandomStandardNormal TruncatedNormal "
    "StatelessRandomUniform StatelessRandomUniformV2 StatelessRandomNormal StatelessRandomNormalV2 "
    "StatelessTruncatedNormal StatelessTruncatedNormalV2 StatelessRandomUniformInt "
    "StatelessRandomUniformIntV2 StatefulUniform StatefulStandardNormalV2"
)
GENERATOR_OPS = ("StatefulUniform", "StatefulStandardNormalV2")
NO_OUTPUT_OPS = word_set(
    "NoOp AssignVariableOp AssignAddVariableOp AssignSubVariableOp ControlTrigger Assert "
    "ResourceApplyGradientDescent ResourceApplyMomentum ResourceApplyKerasMomentum "
    "ResourceApplyAdam ResourceApplyRMSProp ResourceApplyAdagrad ResourceApplyAdagradV2 "
    "ResourceApplyFtrl ResourceApplyAdaMax ResourceApplyAdadelta ResourceApplyAdamWithAmsgrad "
    "ResourceScatterAdd ResourceScatterSub ResourceScatterUpdate ResourceSparseApplyAdagrad "
    "ResourceSparseApplyAdagradV2 ResourceSparseApplyMomentum ResourceSparseApplyKerasMomentum "
    "PrintV2 SaveV2 DeleteIterator"
)
"""Ops without outputs."""


def infer_outputs(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes | None:
    """The shape and dtype of each output, or None if they are unknown.

    Raises:
        GraphError: Its inputs do not fit together.
    """
    rule = LAYOUT_RULES.get(node.op) or _RULES.get(node.op)
    try:
        if node.op in NO_OUTPUT_OPS:
            return []
        if rule is not None:
            return rule(node, inputs)
        if node.op in BROADCAST_OPS:
            return [
                (broadcast_shape(*(v.tensor.shape for v in inputs)), output_dtype(node, inputs))
            ]
        if node.op in REDUCTION_OPS:
            return _reduce(node, inputs)
        if node.op in SAME_SHAPE_OPS:
            return [(inputs[0].tensor.shape, output_dtype(node, inputs))]
        if node.op in RANDOM_OPS:
            at = 1 if node.op in GENERATOR_OPS else 0
            return shape_from_numbers(
                inputs[at].constant, type_attribute(node, "dtype", "Tout") or "float32"
            )
    except (IndexError, ValueError, TypeError, KeyError, ZeroDivisionError, AttributeError):
        shapes = ", ".join(str(value.tensor.shape) for value in inputs)
        raise GraphError(f"{node.op} cannot work on shapes {shapes or 'of nothing'}") from None
    return None


def _reduce(
    node: Any, inputs: Sequence[TensorValue], keep_attribute: str = "keep_dims"
) -> OutputShapes | None:
    shape, axes = input_shape(inputs, 0), input_numbers(inputs, 1)
    if axes is None:
        return None
    if any(not -len(shape) <= axis < len(shape) for axis in axes):
        raise ValueError(f"{axes} of {shape}")
    reduced_axes = {axis % len(shape) for axis in axes} if shape else set()
    keeps_dims = bool_attribute(node, keep_attribute)
    sizes = [
        1 if at in reduced_axes else size
        for at, size in enumerate(shape)
        if keeps_dims or at not in reduced_axes
    ]
    return [(tuple(sizes), output_dtype(node, inputs))]


def _arg_reduce(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes | None:
    reduction = _reduce(node, inputs)
    return reduction and [(reduction[0][0], type_attribute(node, "output_type") or "int64")]


def _matmul(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes:
    (a, b), (c, d) = input_shape(inputs, 0), input_shape(inputs, 1)
    rows, inner = (b, a) if bool_attribute(node, "transpose_a") else (a, b)
    other, columns = (d, c) if bool_attribute(node, "transpose_b") else (c, d)
    if inner != other:
        raise ValueError(f"{inner} is not {other}")
    return [((rows, columns), output_dtype(node, inputs))]


def _batched_matmul(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes:
    (*left, a, b), (*right, c, d) = input_shape(inputs, 0), input_shape(inputs, 1)
    rows, inner = (b, a) if bool_attribute(node, "adj_x") else (a, b)
    other, columns = (d, c) if bool_attribute(node, "adj_y") else (c, d)
    if inner != other:
        raise ValueError(f"{inner} is not {other}")
    return [
        ((*broadcast_shape(tuple(left), tuple(right)), rows, columns), output_dtype(node, inputs))
    ]


def _einsum(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes:
    operands, result = text_attribute(node, "equation").replace(" ", "").split("->")
    sizes: dict[str, int] = {}
    batch_shapes: list[Shape] = []
    for term, value in zip(operands.split(","), inputs, strict=True):
        head, dots, tail = term.partition("...")
        shape = value.tensor.shape
        end = len(shape) - len(tail)
        if (end < len(head)) or (not dots and end != len(head)):
            raise ValueError(term)
        sizes.update(zip(head, shape, strict=False))
        sizes.update(zip(tail, shape[end:], strict=True))
        batch_shapes.append(shape[len(head) : end] if dots else ())
    head, dots, tail = result.partition("...")
    middle = broadcast_shape(*batch_shapes) if dots else ()
    output_shape = (*(sizes[c] for c in head), *middle, *(sizes[c] for c in tail))
    return [(output_shape, output_dtype(node, inputs))]


def spatial_axes(node: Any, rank: int) -> tuple[list[int], int]:
    """The positions of the spatial dimensions, and of the channels."""
    layout = text_attribute(node, "data_format", "NHWC")
    if layout.startswith("NC"):
        return list(range(2, rank)), 1
    return list(range(1, rank - 1)), rank - 1


def _window_sizes(
    node: Any, sizes: list[int], window: list[int], axes: list[int], dilated: bool
) -> list[int]:
    """Output sizes of a sliding window."""
    strides = int_list_attribute(node, "strides") or [1] * 5
    rates = (int_list_attribute(node, "dilations") or [1] * 5) if dilated else [1] * 5
    explicit = int_list_attribute(node, "explicit_paddings")
    padding = text_attribute(node, "padding", "VALID")
    output_sizes = []
    for size, width, at in zip(sizes, window, axes, strict=True):
        extent = (width - 1) * rates[at] + 1
        if padding == "SAME":
            output_sizes.append(-(-size // strides[at]))
            continue
        padding_size = sum(explicit[2 * at : 2 * at + 2]) if padding == "EXPLICIT" else 0
        output_sizes.append(max(0, -(-(size + padding_size - extent + 1) // strides[at])))
    return output_sizes


def _convolution(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes:
    shape, kernel = input_shape(inputs, 0), input_shape(inputs, 1)
    axes, channels = spatial_axes(node, len(shape))
    output_shape = list(shape)
    window = list(kernel[: len(axes)])
    spatial_sizes = _window_sizes(node, [shape[at] for at in axes], window, axes, dilated=True)
    for at, size in zip(axes, spatial_sizes, strict=True):
        output_shape[at] = size
    is_depthwise = node.op.startswith("Depthwise")
    output_shape[channels] = kernel[-2] * kernel[-1] if is_depthwise else kernel[-1]
    return [(tuple(output_shape), output_dtype(node, inputs))]


def _pool(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes:
    shape = input_shape(inputs, 0)
    axes, _ = spatial_axes(node, len(shape))
    window = int_list_attribute(node, "ksize")
    output_shape = list(shape)
    spatial_sizes = _window_sizes(
        node, [shape[at] for at in axes], [window[at] for at in axes], axes, dilated=False
    )
    for at, size in zip(axes, spatial_sizes, strict=True):
        output_shape[at] = size
    outputs: OutputShapes = [(tuple(output_shape), output_dtype(node, inputs))]
    if node.op == "MaxPoolWithArgmax":
        outputs.append((tuple(output_shape), type_attribute(node, "Targmax") or "int64"))
    return outputs


def _norm(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes:
    """A batch norm: the result, and the per-channel statistics of each further output."""
    shape, channel = input_shape(inputs, 0), input_shape(inputs, 1)
    statistics_dtype = inputs[1].tensor.dtype
    outputs: OutputShapes = [(shape, inputs[0].tensor.dtype), *[(channel, statistics_dtype)] * 4]
    return [*outputs, ((0,), statistics_dtype)] if node.op.endswith("V3") else outputs


def _norm_gradient(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes:
    channel = (input_shape(inputs, 2), inputs[2].tensor.dtype)
    empty = ((0,), channel[1])
    return [(input_shape(inputs, 0), inputs[0].tensor.dtype), channel, channel, empty, empty]


def _cross_entropy(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes:
    shape, dtype = input_shape(inputs, 0), inputs[0].tensor.dtype
    return [(shape[:1], dtype), (shape, dtype)]


def _top_k(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes | None:
    count = [int_attribute(node, "k")] if node.op == "TopK" else input_numbers(inputs, 1)
    if count is None:
        return None
    shape = (*input_shape(inputs, 0)[:-1], count[0])
    return [(shape, inputs[0].tensor.dtype), (shape, "int32")]


def _bias_gradient(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes:
    shape = input_shape(inputs, 0)
    _, channels = spatial_axes(node, len(shape))
    return [((shape[channels],), output_dtype(node, inputs))]


def _scalar(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes:
    return [((), output_dtype(node, inputs))]


def _unique(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes:
    shape = input_shape(inputs, 0)  # at most as many as there are
    return [(shape, inputs[0].tensor.dtype), (shape, type_attribute(node, "out_idx") or "int32")]


def _multinomial(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes | None:
    count = input_numbers(inputs, 1)
    dtype = type_attribute(node, "output_dtype") or "int64"
    return None if count is None else [((input_shape(inputs, 0)[0], count[0]), dtype)]


def _block_cell(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes:
    """LSTMBlockCell: gates, states and outputs, all of batch × hidden."""
    return [(input_shape(inputs, 1), inputs[1].tensor.dtype)] * 7


def _iterator_next(node: Any, inputs: Sequence[TensorValue]) -> OutputShapes | None:
    """The outputs of a data pipeline."""
    shapes = [shape_of(proto) for proto in node.attr["output_shapes"].list.shape]
    types = [dtype_of(code) for code in node.attr["output_types"].list.type]
    if None in shapes or len(shapes) != len(types):
        return None
    return [(s, t) for s, t in zip(shapes, types, strict=True) if s is not None]


_RULES: Mapping[str, ShapeRule] = {
    "IteratorGetNext": _iterator_next,
    **dict.fromkeys(("MatMul", "_FusedMatMul", "SparseMatMul"), _matmul),
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _batched_matmul),
    "Einsum": _einsum,
    **dict.fromkeys(("Conv2D", "Conv3D", "DepthwiseConv2dNative", "_FusedConv2D"), _convolution),
    **dict.fromkeys(
        (
            "Conv2DBackpropInput",
            "Conv3DBackpropInputV2",
            "DepthwiseConv2dNativeBackpropInput",
            "AvgPoolGrad",
            "AvgPool3DGrad",
        ),
        shape_from_input(0),
    ),
    **dict.fromkeys(
        (
            "Conv2DBackpropFilter",
            "Conv3DBackpropFilterV2",
            "DepthwiseConv2dNativeBackpropFilter",
        ),
        shape_from_input(1),
    ),
    **dict.fromkeys(("MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D", "MaxPoolWithArgmax"), _pool),
    **dict.fromkeys(("MaxPoolGradV2", "MaxPoolGradWithArgmax", "MaxPool3DGrad"), same_shape_as(0)),
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _norm),
    **dict.fromkeys(
        ("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"), _norm_gradient
    ),
    **dict.fromkeys(
        ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"), _cross_entropy
    ),
    **dict.fromkeys(("TopK", "TopKV2"), _top_k),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg_reduce),
    "BiasAddGrad": _bias_gradient,
    "L2Loss": _scalar,
    "Unique": _unique,
    "Multinomial": _multinomial,
    "LSTMBlockCell": _block_cell,
}
