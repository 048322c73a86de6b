"""The kind of a TensorFlow op and the attributes that its cost depends on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from placewright.errors import GraphError
from placewright.frontends.graph_builder import (
    TensorValue,
    contracted_size,
    word_set,
)
from placewright.frontends.graphdef.protos import (
    bool_attribute,
    input_shape,
    int_attribute,
    int_list_attribute,
    text_attribute,
)
from placewright.frontends.graphdef.shapes import (
    BROADCAST_OPS,
    RANDOM_OPS,
    REDUCTION_OPS,
)
from placewright.frontends.op_costs import (
    NORM_FLOPS,
    OPTIMIZER_FLOPS,
    SOFTMAX_FLOPS,
    TensorSpec,
    box_suppression_flops,
)
from placewright.graph import INPUT, VIEW, WEIGHT

Values = Sequence[TensorValue]
CostRule = Callable[[Any, Values, Sequence[TensorSpec]], dict[str, Any]]

_OPS_BY_KIND = {
    WEIGHT: "Const VarHandleOp Variable VariableV2",
    INPUT: "Placeholder IteratorGetNext PlaceholderV2",
    VIEW: (
        "Bitcast CheckNumerics ControlTrigger EnsureShape Enter ExpandDims Exit Identity IdentityN "
        "LoopCond Merge NextIteration NoOp PlaceholderWithDefault PreventGradient ReadVariableOp "
        "RefEnter RefExit RefIdentity RefMerge RefNextIteration RefSwitch Reshape Snapshot Squeeze "
        "StopGradient Switch TensorListFromTensor TensorListReserve TensorListStack"
    ),
    "elementwise": (
        "Abs Acos Acosh Asin Asinh Atan Atanh BiasAdd Ceil Cos Cosh Cumprod Cumsum Digamma Elu "
        "EluGrad Erf Erfc Exp Expm1 Floor Gelu Inv InvGrad Invert IsFinite IsInf IsNan LeakyRelu "
        "LeakyReluGrad Lgamma Log Log1p LogicalNot Neg OneHot Reciprocal ReciprocalGrad Relu "
        "Relu6 Relu6Grad ReluGrad ResizeArea ResizeBicubic ResizeBilinear ResizeNearestNeighbor "
        "Rint Round Rsqrt RsqrtGrad Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Sinh Softplus "
        "SoftplusGrad Softsign SoftsignGrad Sqrt SqrtGrad Square Tan Tanh TanhGrad"
    ),
    "cast": "Cast FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars QuantizeAndDequantizeV2",
    "copy": (
        "BatchToSpaceND BroadcastGradientArgs BroadcastTo "
        "ConjugateTranspose DepthToSpace Empty Fill MatrixBandPart MirrorPad OnesLike Pad PadV2 "
        "RandomShuffle Range Rank Reverse ReverseSequence ReverseV2 Roll Shape ShapeN Size "
        "SpaceToBatchND SpaceToDepth Split SplitV StridedSliceGrad TensorListSetItem Tile "
        "Transpose Unpack VariableShape ZerosLike"
    ),
    "concat": "Concat ConcatV2 Pack",
    "embedding": "Gather GatherV2 ResourceGather",
    "gather": "GatherNd ResourceGatherNd",
    "scatter": (
        "ResourceScatterUpdate ScatterNd ScatterUpdate TensorScatterUpdate"
    ),
    "softmax": "LogSoftmax Softmax",
    "reduce": "ArgMax ArgMin BiasAddGrad",
    "random": "Multinomial",
}  # fmt: skip
_KIND_OF = {op: kind for kind, ops in _OPS_BY_KIND.items() for op in ops.split()}
_KIND_OF |= dict.fromkeys(BROADCAST_OPS, "elementwise") | dict.fromkeys(REDUCTION_OPS, "reduce")
_KIND_OF |= dict.fromkeys(RANDOM_OPS, "random")

# Positions of inputs (negative: from the end) that are settings of an op, not data.
SETTING_INPUTS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys((*REDUCTION_OPS, "ArgMax", "ArgMin", "Cumsum", "Cumprod"), (1,)),
    **dict.fromkeys(RANDOM_OPS, (0, 1)),
    **dict.fromkeys(("Reshape", "Transpose", "ExpandDims", "BroadcastTo", "Tile", "OneHot"), (1,)),
    **dict.fromkeys(("Pad", "PadV2", "MirrorPad", "ReverseV2", "TopKV2", "Multinomial"), (1,)),
    **dict.fromkeys(("ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic"), (1,)),
    **dict.fromkeys(("Fill", "Empty", "Split", "Concat", "AvgPoolGrad", "AvgPool3DGrad"), (0,)),
    **dict.fromkeys(("Slice", "SplitV", "SpaceToBatchND", "BatchToSpaceND", "Roll"), (1, 2)),
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), (0,)),
    **dict.fromkeys(("Conv2DBackpropFilter", "Conv3DBackpropFilterV2"), (1,)),
    "DepthwiseConv2dNativeBackpropInput": (0,),
    "DepthwiseConv2dNativeBackpropFilter": (1,),
    "ConcatV2": (-1,),
    "GatherV2": (2,),
    "ScatterNd": (2,),
    "UnsortedSegmentSum": (2,),
    "StridedSlice": (1, 2, 3),
    "StridedSliceGrad": (0, 1, 2, 3),
    "Range": (0, 1, 2),
    "BroadcastGradientArgs": (0, 1),
    "TensorListReserve": (0, 1),
    "TensorListFromTensor": (1,),
    "TensorListStack": (1,),
    "TensorListGetItem": (2,),
}

SHAPE_OPS = word_set("Shape ShapeN Size Rank BroadcastGradientArgs VariableShape")
"""Ops that read shapes, not data."""
WRITE_OPS = word_set(
    "Assign AssignAdd AssignAddVariableOp AssignSub AssignSubVariableOp AssignVariableOp "
    "ResourceScatterAdd ResourceScatterSub ResourceScatterUpdate ScatterAdd ScatterSub "
    "ScatterUpdate"
)
"""Ops that write to the variable that is their first input; optimizers do too."""


def writes_variable(op: str) -> bool:
    """Whether an op changes the variable that is its first input."""
    return op in WRITE_OPS or "Apply" in op


def describe(
    node: Any, inputs: Values, outputs: Sequence[TensorSpec]
) -> tuple[str | None, dict[str, Any]]:
    """The kind of an op (None without a known cost) and keywords of `GraphBuilder.add`.

    Raises:
        GraphError: Its inputs or attributes are invalid.
    """
    try:
        if node.op in _RULES:
            kind, rule = _RULES[node.op]
            return kind, rule(node, inputs, outputs)
        if "Apply" in node.op:
            return _optimizer(node, inputs, outputs)
    except (AttributeError, LookupError, TypeError, ValueError, ZeroDivisionError):
        shapes = ", ".join(str(value.tensor.shape) for value in inputs)
        raise GraphError(f"{node.op} cannot work on shapes {shapes or 'of nothing'}") from None
    if node.op in SHAPE_OPS:
        return "copy", {"moved": sum(tensor.bytes for tensor in outputs)}
    return _KIND_OF.get(node.op), {}


def _optimizer(
    node: Any, inputs: Values, outputs: Sequence[TensorSpec]
) -> tuple[str | None, dict[str, Any]]:
    """An update of a variable; sparse gradients update only the rows that they name."""
    name = "adam" if "Ada" in node.op or "RMS" in node.op or "Ftrl" in node.op else "sgd"
    ops = OPTIMIZER_FLOPS["momentum" if "Momentum" in node.op else name]
    specs = [value.tensor for value in inputs]
    if "Sparse" in node.op:  # inputs of other shapes than the variable's are rows and indices
        rows = max((t for t in specs if t.shape != specs[0].shape), key=lambda t: t.elements)
        return "opaque", {"flops": ops * rows.elements, "moved": 4 * rows.bytes}
    # weight and states are read and written, the gradient is read
    states = [tensor for tensor in specs if tensor.shape == specs[0].shape]
    return "optimizer", {"ops": ops, "moved": sum(t.bytes for t in (*states, *states[:-1]))}


def _matmul(node: Any, inputs: Values, outputs: Sequence[TensorSpec]) -> dict[str, Any]:
    shape = input_shape(inputs, 0)
    is_transposed = bool_attribute(node, "transpose_a") or bool_attribute(node, "adj_x")
    fused = node.attr["fused_ops"].list.s if "fused_ops" in node.attr else ()
    return {"contracted": shape[-2] if is_transposed else shape[-1], "bias": b"BiasAdd" in fused}


def _einsum(node: Any, inputs: Values, outputs: Sequence[TensorSpec]) -> dict[str, Any]:
    shapes = [value.tensor.shape for value in inputs]
    return {"contracted": contracted_size(text_attribute(node, "equation"), shapes)}


def _kernel_elements(node: Any, shape: tuple[int, ...]) -> int:
    """Kernel elements per output element."""
    return math.prod(shape[:-2] if node.op.startswith("Depthwise") else shape[:-1])


def _convolution(node: Any, inputs: Values, outputs: Sequence[TensorSpec]) -> dict[str, Any]:
    fused = node.attr["fused_ops"].list.s if "fused_ops" in node.attr else ()
    elements = _kernel_elements(node, input_shape(inputs, 1))
    return {"kernel_elements": elements, "bias": b"BiasAdd" in fused}


def _input_gradient(node: Any, inputs: Values, outputs: Sequence[TensorSpec]) -> dict[str, Any]:
    elements = _kernel_elements(node, input_shape(inputs, 1))
    return {"kernel_elements": elements, "made": inputs[2].tensor.elements}


def _kernel_gradient(node: Any, inputs: Values, outputs: Sequence[TensorSpec]) -> dict[str, Any]:
    elements = _kernel_elements(node, outputs[0].shape)
    return {"kernel_elements": elements, "made": inputs[2].tensor.elements}


def _pool(node: Any, inputs: Values, outputs: Sequence[TensorSpec]) -> dict[str, Any]:
    is_gradient = "Grad" in node.op  # the gradient, the last float input, visits the same windows
    floats = [value.tensor for value in inputs if "int" not in value.tensor.dtype]
    window_count = floats[-1].elements if is_gradient else outputs[0].elements
    return {"window": math.prod(int_list_attribute(node, "ksize") or [1]), "made": window_count}


def _norm(node: Any, inputs: Values, outputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """With given statistics, only a scale and a shift; backward is twice the work."""
    has_statistics = "is_training" in node.attr and not bool_attribute(node, "is_training")
    return {"ops": (2 if has_statistics else NORM_FLOPS) * (2 if "Grad" in node.op else 1)}


def _top_k(node: Any, inputs: Values, outputs: Sequence[TensorSpec]) -> dict[str, Any]:
    return {"width": input_shape(inputs, 0)[-1]}


def _add_n(node: Any, inputs: Values, outputs: Sequence[TensorSpec]) -> dict[str, Any]:
    return {"ops": max(len(inputs) - 1, 1)}


def _local_response_norm(
    node: Any, inputs: Values, outputs: Sequence[TensorSpec]
) -> dict[str, Any]:
    return {"ops": 2 * (2 * int_attribute(node, "depth_radius", 5) + 1) + 3}


def _slice(node: Any, inputs: Values, outputs: Sequence[TensorSpec]) -> dict[str, Any]:
    return {"moved": 2 * outputs[0].bytes}  # reads as much as it writes


def _assign(node: Any, inputs: Values, outputs: Sequence[TensorSpec]) -> dict[str, Any]:
    return {"moved": 2 * inputs[1].tensor.bytes}  # the variable is not read


def _flops_per_element(count: float) -> CostRule:
    """`ops` FLOPs per element."""
    return lambda node, inputs, outputs: {"ops": count}


def _lstm_cell(node: Any, inputs: Values, outputs: Sequence[TensorSpec]) -> dict[str, Any]:
    batch, width = input_shape(inputs, 0)
    _, hidden = input_shape(inputs, 1)
    return {"rows": batch, "gates": 4, "hidden": hidden, "widths": [width]}


def _box_suppression(node: Any, inputs: Values, outputs: Sequence[TensorSpec]) -> dict[str, Any]:
    return {"flops": box_suppression_flops(input_shape(inputs, 0)[0])}


_RULES: Mapping[str, tuple[str, CostRule]] = {
    **dict.fromkeys(
        ("NonMaxSuppression", *(f"NonMaxSuppressionV{version}" for version in range(2, 6))),
        ("opaque", _box_suppression),
    ),
    **dict.fromkeys(
        word_set("MatMul _FusedMatMul SparseMatMul BatchMatMul BatchMatMulV2 BatchMatMulV3"),
        ("matmul", _matmul),
    ),
    "Einsum": ("matmul", _einsum),
    **dict.fromkeys(
        ("Conv2D", "Conv3D", "DepthwiseConv2dNative", "_FusedConv2D"),
        ("convolution", _convolution),
    ),
    **dict.fromkeys(
        ("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput"),
        ("convolution", _input_gradient),
    ),
    **dict.fromkeys(
        ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter"),
        ("convolution", _kernel_gradient),
    ),
    **dict.fromkeys(
        word_set(
            "MaxPool AvgPool MaxPool3D AvgPool3D MaxPoolWithArgmax MaxPoolGrad MaxPoolGradV2 "
            "MaxPoolGradWithArgmax MaxPool3DGrad AvgPoolGrad AvgPool3DGrad"
        ),
        ("pool", _pool),
    ),
    **dict.fromkeys(
        word_set(
            "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 FusedBatchNormGrad "
            "FusedBatchNormGradV2 FusedBatchNormGradV3"
        ),
        ("norm", _norm),
    ),
    **dict.fromkeys(("LRN", "LRNGrad"), ("norm", _local_response_norm)),
    **dict.fromkeys(
        ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"),
        ("loss", _flops_per_element(SOFTMAX_FLOPS + 2)),  # it also computes the gradient
    ),
    **dict.fromkeys(("TopK", "TopKV2", "Unique"), ("sort", _top_k)),
    **dict.fromkeys(
        word_set(
            "ScatterAdd ScatterSub ResourceScatterAdd ResourceScatterSub TensorScatterAdd "
            "UnsortedSegmentSum UnsortedSegmentMax"
        ),
        ("scatter", _flops_per_element(1)),
    ),
    **dict.fromkeys(("Assign", "AssignVariableOp"), ("copy", _assign)),
    **dict.fromkeys(
        ("AssignAdd", "AssignSub", "AssignAddVariableOp", "AssignSubVariableOp"),
        ("optimizer", _flops_per_element(1)),
    ),
    "AddN": ("elementwise", _add_n),
    "ClipByValue": ("elementwise", _flops_per_element(2)),
    "L2Loss": ("reduce", _flops_per_element(2)),
    "Slice": ("copy", _slice),
    "StridedSlice": ("copy", _slice),
    "TensorListGetItem": ("copy", _slice),
    "LSTMBlockCell": ("recurrent", _lstm_cell),
}
