"""A node of a GraphDef and the tensors it reads in, the tensors it makes out.

TensorFlow's own shape functions are not at hand, so this knows the common ops. What TensorFlow
noted down in `_output_shapes` goes first, where it is complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewright.errors import GraphError
from placewright.frontends.graph_builder import Value, words
from placewright.frontends.graphdef.layouts import (
    LAYOUTS,
    as_input,
    given,
)
from placewright.frontends.graphdef.protos import (
    Made,
    Rule,
    Shape,
    broadcast,
    dtype_of,
    filled,
    flag,
    int_attribute,
    ints,
    made_dtype,
    read_numbers,
    read_shape,
    shape_of,
    text,
    type_attribute,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SAME = words(
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
BROADCAST = words(
    "Add AddV2 And Atan2 BitwiseAnd BitwiseOr BitwiseXor Complex Div DivNoNan Equal FloorDiv "
    "FloorMod Greater GreaterEqual LeftShift Less LessEqual LogicalAnd LogicalOr Maximum Minimum "
    "Mod Mul MulNoNan NotEqual Pow RealDiv RightShift SquaredDifference Sub TruncateDiv "
    "TruncateMod Xdivy Xlogy Select SelectV2 BetaInc Igamma Igammac Zeta"
)
REDUCING = words("All Any EuclideanNorm Max Mean Min Prod Sum")
RANDOM = words(
    "RandomUniform RandomUniformInt RandomStandardNormal TruncatedNormal "
    "StatelessRandomUniform StatelessRandomUniformV2 StatelessRandomNormal StatelessRandomNormalV2 "
    "StatelessTruncatedNormal StatelessTruncatedNormalV2 StatelessRandomUniformInt "
    "StatelessRandomUniformIntV2 StatefulUniform StatefulStandardNormalV2"
)
GENERATORS = ("StatefulUniform", "StatefulStandardNormalV2")
NOTHING = words(
    "NoOp AssignVariableOp AssignAddVariableOp AssignSubVariableOp ControlTrigger Assert "
    "ResourceApplyGradientDescent ResourceApplyMomentum ResourceApplyKerasMomentum "
    "ResourceApplyAdam ResourceApplyRMSProp ResourceApplyAdagrad ResourceApplyAdagradV2 "
    "ResourceApplyFtrl ResourceApplyAdaMax ResourceApplyAdadelta ResourceApplyAdamWithAmsgrad "
    "ResourceScatterAdd ResourceScatterSub ResourceScatterUpdate ResourceSparseApplyAdagrad "
    "ResourceSparseApplyAdagradV2 ResourceSparseApplyMomentum ResourceSparseApplyKerasMomentum "
    "PrintV2 SaveV2 DeleteIterator"
)
"""Ops that make no tensor."""


def infer(node: Any, inputs: Sequence[Value]) -> Made | None:
    """The shape and dtype of each output, or None where they are not known.

    Raises:
        GraphError: What it reads does not fit together.
    """
    rule = LAYOUTS.get(node.op) or _RULES.get(node.op)
    try:
        if node.op in NOTHING:
            return []
        if rule is not None:
            return rule(node, inputs)
        if node.op in BROADCAST:
            return [(broadcast(*(v.tensor.shape for v in inputs)), made_dtype(node, inputs))]
        if node.op in REDUCING:
            return _reduced(node, inputs)
        if node.op in SAME:
            return [(inputs[0].tensor.shape, made_dtype(node, inputs))]
        if node.op in RANDOM:
            at = 1 if node.op in GENERATORS else 0
            return filled(inputs[at].constant, type_attribute(node, "dtype", "Tout") or "float32")
    except (IndexError, ValueError, TypeError, KeyError, ZeroDivisionError, AttributeError):
        shapes = ", ".join(str(value.tensor.shape) for value in inputs)
        raise GraphError(f"{node.op} cannot work on shapes {shapes or 'of nothing'}") from None
    return None


def _reduced(node: Any, inputs: Sequence[Value], keep: str = "keep_dims") -> Made | None:
    shape, axes = read_shape(inputs, 0), read_numbers(inputs, 1)
    if axes is None:
        return None
    if any(not -len(shape) <= axis < len(shape) for axis in axes):
        raise ValueError(f"{axes} of {shape}")
    gone = {axis % len(shape) for axis in axes} if shape else set()
    kept = flag(node, keep)
    sizes = [1 if at in gone else size for at, size in enumerate(shape) if kept or at not in gone]
    return [(tuple(sizes), made_dtype(node, inputs))]


def _arg(node: Any, inputs: Sequence[Value]) -> Made | None:
    made = _reduced(node, inputs)
    return made and [(made[0][0], type_attribute(node, "output_type") or "int64")]


def _matmul(node: Any, inputs: Sequence[Value]) -> Made:
    (a, b), (c, d) = read_shape(inputs, 0), read_shape(inputs, 1)
    rows, inner = (b, a) if flag(node, "transpose_a") else (a, b)
    other, columns = (d, c) if flag(node, "transpose_b") else (c, d)
    if inner != other:
        raise ValueError(f"{inner} is not {other}")
    return [((rows, columns), made_dtype(node, inputs))]


def _batched(node: Any, inputs: Sequence[Value]) -> Made:
    (*left, a, b), (*right, c, d) = read_shape(inputs, 0), read_shape(inputs, 1)
    rows, inner = (b, a) if flag(node, "adj_x") else (a, b)
    other, columns = (d, c) if flag(node, "adj_y") else (c, d)
    if inner != other:
        raise ValueError(f"{inner} is not {other}")
    return [((*broadcast(tuple(left), tuple(right)), rows, columns), made_dtype(node, inputs))]


def _einsum(node: Any, inputs: Sequence[Value]) -> Made:
    left, right = text(node, "equation").replace(" ", "").split("->")
    sizes: dict[str, int] = {}
    rest: list[Shape] = []
    for term, value in zip(left.split(","), inputs, strict=True):
        head, dots, tail = term.partition("...")
        shape = value.tensor.shape
        end = len(shape) - len(tail)
        if (end < len(head)) or (not dots and end != len(head)):
            raise ValueError(term)
        sizes.update(zip(head, shape, strict=False))
        sizes.update(zip(tail, shape[end:], strict=True))
        rest.append(shape[len(head) : end] if dots else ())
    head, dots, tail = right.partition("...")
    middle = broadcast(*rest) if dots else ()
    made = (*(sizes[c] for c in head), *middle, *(sizes[c] for c in tail))
    return [(made, made_dtype(node, inputs))]


def spatial(node: Any, rank: int) -> tuple[list[int], int]:
    """The places of the spatial dimensions, and of the channels."""
    layout = text(node, "data_format", "NHWC")
    if layout.startswith("NC"):
        return list(range(2, rank)), 1
    return list(range(1, rank - 1)), rank - 1


def _slide(
    node: Any, sizes: list[int], window: list[int], places: list[int], rate: bool
) -> list[int]:
    """Sizes after a window has slid over them."""
    strides = ints(node, "strides") or [1] * 5
    rates = (ints(node, "dilations") or [1] * 5) if rate else [1] * 5
    explicit = ints(node, "explicit_paddings")
    padding = text(node, "padding", "VALID")
    made = []
    for size, width, at in zip(sizes, window, places, strict=True):
        reach = (width - 1) * rates[at] + 1
        if padding == "SAME":
            made.append(-(-size // strides[at]))
            continue
        room = sum(explicit[2 * at : 2 * at + 2]) if padding == "EXPLICIT" else 0
        made.append(max(0, -(-(size + room - reach + 1) // strides[at])))
    return made


def _convolution(node: Any, inputs: Sequence[Value]) -> Made:
    shape, kernel = read_shape(inputs, 0), read_shape(inputs, 1)
    places, channels = spatial(node, len(shape))
    made = list(shape)
    window = list(kernel[: len(places)])
    slid = _slide(node, [shape[at] for at in places], window, places, rate=True)
    for at, size in zip(places, slid, strict=True):
        made[at] = size
    deep = node.op.startswith("Depthwise")
    made[channels] = kernel[-2] * kernel[-1] if deep else kernel[-1]
    return [(tuple(made), made_dtype(node, inputs))]


def _pool(node: Any, inputs: Sequence[Value]) -> Made:
    shape = read_shape(inputs, 0)
    places, _ = spatial(node, len(shape))
    window = ints(node, "ksize")
    made = list(shape)
    slid = _slide(
        node, [shape[at] for at in places], [window[at] for at in places], places, rate=False
    )
    for at, size in zip(places, slid, strict=True):
        made[at] = size
    outputs: Made = [(tuple(made), made_dtype(node, inputs))]
    if node.op == "MaxPoolWithArgmax":
        outputs.append((tuple(made), type_attribute(node, "Targmax") or "int64"))
    return outputs


def _norm(node: Any, inputs: Sequence[Value]) -> Made:
    """A batch norm: its result, and the statistics of each channel, twice and once more."""
    shape, channel = read_shape(inputs, 0), read_shape(inputs, 1)
    wide = inputs[1].tensor.dtype
    made: Made = [(shape, inputs[0].tensor.dtype), *[(channel, wide)] * 4]
    return [*made, ((0,), wide)] if node.op.endswith("V3") else made


def _norm_gradient(node: Any, inputs: Sequence[Value]) -> Made:
    channel = (read_shape(inputs, 2), inputs[2].tensor.dtype)
    none = ((0,), channel[1])
    return [(read_shape(inputs, 0), inputs[0].tensor.dtype), channel, channel, none, none]


def _entropy(node: Any, inputs: Sequence[Value]) -> Made:
    shape, dtype = read_shape(inputs, 0), inputs[0].tensor.dtype
    return [(shape[:1], dtype), (shape, dtype)]


def _top(node: Any, inputs: Sequence[Value]) -> Made | None:
    count = [int_attribute(node, "k")] if node.op == "TopK" else read_numbers(inputs, 1)
    if count is None:
        return None
    shape = (*read_shape(inputs, 0)[:-1], count[0])
    return [(shape, inputs[0].tensor.dtype), (shape, "int32")]


def _bias_gradient(node: Any, inputs: Sequence[Value]) -> Made:
    shape = read_shape(inputs, 0)
    _, channels = spatial(node, len(shape))
    return [((shape[channels],), made_dtype(node, inputs))]


def _scalar(node: Any, inputs: Sequence[Value]) -> Made:
    return [((), made_dtype(node, inputs))]


def _unique(node: Any, inputs: Sequence[Value]) -> Made:
    shape = read_shape(inputs, 0)  # no more than there are
    return [(shape, inputs[0].tensor.dtype), (shape, type_attribute(node, "out_idx") or "int32")]


def _multinomial(node: Any, inputs: Sequence[Value]) -> Made | None:
    count = read_numbers(inputs, 1)
    dtype = type_attribute(node, "output_dtype") or "int64"
    return None if count is None else [((read_shape(inputs, 0)[0], count[0]), dtype)]


def _block_cell(node: Any, inputs: Sequence[Value]) -> Made:
    """LSTMBlockCell: gates, states and outputs, all of batch × hidden."""
    return [(read_shape(inputs, 1), inputs[1].tensor.dtype)] * 7


def _next(node: Any, inputs: Sequence[Value]) -> Made | None:
    """What a pipeline of data gives."""
    shapes = [shape_of(proto) for proto in node.attr["output_shapes"].list.shape]
    types = [dtype_of(code) for code in node.attr["output_types"].list.type]
    if None in shapes or len(shapes) != len(types):
        return None
    return [(s, t) for s, t in zip(shapes, types, strict=True) if s is not None]


_RULES: Mapping[str, Rule] = {
    "IteratorGetNext": _next,
    **dict.fromkeys(("MatMul", "_FusedMatMul", "SparseMatMul"), _matmul),
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _batched),
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
        given(0),
    ),
    **dict.fromkeys(
        (
            "Conv2DBackpropFilter",
            "Conv3DBackpropFilterV2",
            "DepthwiseConv2dNativeBackpropFilter",
        ),
        given(1),
    ),
    **dict.fromkeys(("MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D", "MaxPoolWithArgmax"), _pool),
    **dict.fromkeys(("MaxPoolGradV2", "MaxPoolGradWithArgmax", "MaxPool3DGrad"), as_input(0)),
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _norm),
    **dict.fromkeys(
        ("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"), _norm_gradient
    ),
    **dict.fromkeys(
        ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"), _entropy
    ),
    **dict.fromkeys(("TopK", "TopKV2"), _top),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg),
    "BiasAddGrad": _bias_gradient,
    "L2Loss": _scalar,
    "Unique": _unique,
    "Multinomial": _multinomial,
    "LSTMBlockCell": _block_cell,
}
