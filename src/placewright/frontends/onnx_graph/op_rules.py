"""The kind of an ONNX op and the attributes that its cost depends on.

Ops follow ONNX's own operator list (opset 26 and before), domain `ai.onnx`, and a few of
ONNX Runtime's own, domain `com.microsoft`.
"""

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
from placewright.frontends.op_costs import (
    NORM_FLOPS,
    TensorSpec,
    box_suppression_flops,
    fft_flops,
)
from placewright.graph import VIEW

Inputs = Sequence[TensorValue | None]
Attributes = Mapping[str, Any]
CostRule = Callable[[Attributes, Inputs, Sequence[TensorSpec]], dict[str, Any]]

DTYPES: Mapping[int, str] = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    8: "int64",  # strings: a handle of eight bytes
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64",
    15: "complex128", 16: "bfloat16", 17: "float8_e4m3fn", 18: "float8_e4m3fnuz",
    19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4", 23: "float4_e2m1fn",
    24: "float8_e8m0fnu", 25: "uint2", 26: "int2",
    27: "uint8", 28: "uint8",  # six-bit floats, stored in a byte each
}  # fmt: skip

ONNX_DOMAINS = ("", "ai.onnx")
"""The names of ONNX's own domain."""

# Positions of inputs that are settings of an op, not data, if they are constants.
SETTING_INPUTS: Mapping[str, tuple[int, ...]] = {
    "Reshape": (1,), "Expand": (1,), "Tile": (1,), "Pad": (1, 3), "Slice": (1, 2, 3, 4),
    "Squeeze": (1,), "Unsqueeze": (1,), "Split": (1,), "Resize": (1, 2, 3), "Upsample": (1,),
    "TopK": (1,), "ConstantOfShape": (0,), "Range": (0, 1, 2), "OneHot": (1,), "CumSum": (1,),
    "CumProd": (1,), "Trilu": (1,), "Dropout": (1, 2), "CenterCropPad": (1,), "AffineGrid": (1,),
    "ReduceSum": (1,), "ReduceMean": (1,), "ReduceMax": (1,), "ReduceMin": (1,), "ReduceProd": (1,),
    "ReduceL1": (1,), "ReduceL2": (1,), "ReduceLogSum": (1,), "ReduceLogSumExp": (1,),
    "ReduceSumSquare": (1,), "Col2Im": (1, 2), "DFT": (1, 2), "STFT": (1, 3),
}  # fmt: skip

# Ops that compute shapes and indices: folded if all their inputs are known.
FOLDABLE_OPS = word_set(
    "Abs Add And BitShift Cast Ceil Clip Concat ConstantOfShape Div Equal Expand Flatten Floor "
    "Gather GatherElements GatherND Greater GreaterOrEqual Identity Less LessOrEqual Max Min Mod "
    "Mul Neg Not Or Pow Range ReduceMax ReduceMin ReduceProd ReduceSum Reshape Round "
    "ScatterElements ScatterND Sign Slice Split Sqrt Squeeze Sub Sum Tile Transpose Unsqueeze "
    "Where Xor"
)

_OPS_BY_KIND = {
    VIEW: "Identity Reshape Squeeze Unsqueeze Flatten BitCast",
    "elementwise": (
        "Abs Acos Acosh Add And Asin Asinh Atan Atanh BiasGelu Bernoulli BitShift BitwiseAnd "
        "BitwiseNot BitwiseOr BitwiseXor Ceil Celu Clip Cos Cosh CumProd CumSum Div Elu Equal Erf "
        "Exp FastGelu Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish IsInf IsNaN "
        "LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not OneHot Or PRelu Pow "
        "QuickGelu Reciprocal Relu Resize Round Selu Shrink Sigmoid Sign Sin Sinh Softplus "
        "Softsign Sqrt Sub Sum SwiGLU Swish Tan Tanh ThresholdedRelu Upsample Where Xor"
    ),
    "cast": "Cast CastLike DequantizeLinear DynamicQuantizeLinear QuantizeLinear",
    "copy": (
        "BlackmanWindow CenterCropPad Col2Im Compress ConstantOfShape DepthToSpace Expand EyeLike "
        "HammingWindow HannWindow MaxUnpool MelWeightMatrix NonZero Pad Range ReverseSequence "
        "Shape Size SpaceToDepth Split Tile Transpose Trilu"
    ),
    "concat": "Concat",
    "gather": "GatherElements GatherND",
    "softmax": "Hardmax LogSoftmax Softmax",
    "norm": (
        "GroupNormalization InstanceNormalization LayerNormalization "
        "LpNormalization MeanVarianceNormalization RMSNormalization SimplifiedLayerNormalization "
        "SkipLayerNormalization SkipSimplifiedLayerNormalization"
    ),
    "reduce": (
        "ArgMax ArgMin GlobalAveragePool GlobalLpPool GlobalMaxPool ReduceL1 ReduceL2 ReduceLogSum "
        "ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"
    ),
    "random": (
        "Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike"
    ),
    "scatter": "Scatter ScatterElements ScatterND TensorScatter",
}  # fmt: skip
_KIND_OF = {op: kind for kind, ops in _OPS_BY_KIND.items() for op in ops.split()}
SAME_SHAPE_OPS = word_set(
    "BiasGelu FastGelu Gelu QuickGelu LayerNormalization SimplifiedLayerNormalization "
    "SkipLayerNormalization SkipSimplifiedLayerNormalization RotaryEmbedding"
)
"""Ops of ONNX Runtime whose first output has the shape of the first input."""
_RUNTIME_OPS = SAME_SHAPE_OPS | {"FusedMatMul", "DynamicQuantizeLSTM"}


def describe(
    domain: str, op_type: str, attributes: Attributes, inputs: Inputs, outputs: Sequence[TensorSpec]
) -> tuple[str | None, dict[str, Any]]:
    """The kind of an op (None without a known cost) and keywords of `GraphBuilder.add`.

    Raises:
        GraphError: Its inputs or attributes are invalid.
    """
    if domain not in ONNX_DOMAINS and op_type not in _RUNTIME_OPS:
        return None, {}
    try:
        if op_type in _RULES:
            kind, rule = _RULES[op_type]
            return kind, rule(attributes, inputs, outputs)
        if op_type == "Gather":
            return _gather_kind(attributes, inputs), {}
        if op_type == "Dropout" and not _is_training(inputs):
            return VIEW, {}
    except (AttributeError, LookupError, TypeError, ValueError, ZeroDivisionError):
        shapes = ", ".join(str(value.tensor.shape) for value in inputs if value)
        raise GraphError(f"{op_type} cannot work on shapes {shapes or 'of nothing'}") from None
    if op_type == "Dropout":
        return "random", {"ops": 2}
    if op_type == "Slice":  # reads as much as it writes
        return "copy", {"moved": 2 * outputs[0].bytes}
    return _KIND_OF.get(op_type), {}


def _shape(inputs: Inputs, at: int) -> tuple[int, ...]:
    value = inputs[at]
    if value is None:
        raise ValueError(f"input {at} is left out")
    return value.tensor.shape


def _matmul(
    attributes: Attributes, inputs: Inputs, outputs: Sequence[TensorSpec]
) -> dict[str, Any]:
    transposed = attributes.get("transA", 0)  # ONNX Runtime's FusedMatMul has it too
    shape = _shape(inputs, 0)
    return {"contracted": shape[-2] if transposed and len(shape) > 1 else shape[-1]}


def _gemm(attributes: Attributes, inputs: Inputs, outputs: Sequence[TensorSpec]) -> dict[str, Any]:
    biased = len(inputs) > 2 and inputs[2] is not None
    return _matmul(attributes, inputs, outputs) | {"bias": biased}


def _einsum(
    attributes: Attributes, inputs: Inputs, outputs: Sequence[TensorSpec]
) -> dict[str, Any]:
    equation = attributes["equation"]
    text = equation.decode() if isinstance(equation, bytes) else str(equation)  # or a ValueError
    return {"contracted": contracted_size(text, [_shape(inputs, at) for at in range(len(inputs))])}


def _convolution(kernel: int, bias: int) -> CostRule:
    """A convolution whose kernel and bias are these inputs."""

    def rule(
        attributes: Attributes, inputs: Inputs, outputs: Sequence[TensorSpec]
    ) -> dict[str, Any]:
        biased = len(inputs) > bias and inputs[bias] is not None
        return {"kernel_elements": math.prod(_shape(inputs, kernel)[1:]), "bias": biased}

    return rule


def _transposed_convolution(
    attributes: Attributes, inputs: Inputs, outputs: Sequence[TensorSpec]
) -> dict[str, Any]:
    kernel_elements = math.prod(_shape(inputs, 1)[1:])  # output channels of a group × spatial size
    return {"kernel_elements": kernel_elements, "made": math.prod(_shape(inputs, 0))}


def _pool(attributes: Attributes, inputs: Inputs, outputs: Sequence[TensorSpec]) -> dict[str, Any]:
    return {"window": math.prod(int(size) for size in attributes["kernel_shape"])}


def _batch_norm(
    attributes: Attributes, inputs: Inputs, outputs: Sequence[TensorSpec]
) -> dict[str, Any]:
    return {"ops": NORM_FLOPS if attributes.get("training_mode") else 2}  # only a scale and a shift


def _local_response_norm(
    attributes: Attributes, inputs: Inputs, outputs: Sequence[TensorSpec]
) -> dict[str, Any]:
    return {"ops": 2 * int(attributes["size"]) + 3}  # squares and their sum, then x / (k + a·s)^b


def _sort(attributes: Attributes, inputs: Inputs, outputs: Sequence[TensorSpec]) -> dict[str, Any]:
    shape = _shape(inputs, 0)
    axis = attributes.get("axis", -1)
    return {"width": shape[axis] if shape and axis is not None else math.prod(shape)}


def _recurrent(gates: int) -> CostRule:
    def rule(
        attributes: Attributes, inputs: Inputs, outputs: Sequence[TensorSpec]
    ) -> dict[str, Any]:
        steps, batch, width = _shape(inputs, 0)
        directions, *sizes = _shape(inputs, 2)
        return {
            "rows": steps * batch, "gates": gates,
            "hidden": min(sizes),  # of gates · hidden × hidden; ONNX Runtime transposes it
            "widths": [width] * directions,
        }  # fmt: skip

    return rule


def _attention(
    attributes: Attributes, inputs: Inputs, outputs: Sequence[TensorSpec]
) -> dict[str, Any]:
    query, key, value = (_shape(inputs, at) for at in range(3))
    past = inputs[4].tensor.shape[2] if len(inputs) > 4 and inputs[4] is not None else 0
    if len(query) == 4:
        batch, heads, queries, width = query
        keys, value_width = key[2], value[3]
    else:
        batch, queries, _ = query
        heads, kv_heads = attributes["q_num_heads"], attributes["kv_num_heads"]
        keys, width, value_width = key[1], query[2] // heads, value[2] // kv_heads
    return {
        "batch": batch, "heads": heads, "queries": queries, "keys": keys + past, "width": width,
        "value_width": value_width,
    }  # fmt: skip


def _fourier_transform(
    attributes: Attributes, inputs: Inputs, outputs: Sequence[TensorSpec]
) -> dict[str, Any]:
    *sizes, _ = _shape(inputs, 0)  # the last dimension is of real and imaginary parts
    axis = int(attributes["axis"]) if "axis" in attributes else _setting(inputs, 2, -2)
    points = sizes.pop(axis if axis >= 0 else axis + 1)
    return {"flops": fft_flops(math.prod(sizes), _setting(inputs, 1, points))}


def _short_time_fourier_transform(
    attributes: Attributes, inputs: Inputs, outputs: Sequence[TensorSpec]
) -> dict[str, Any]:
    """Each frame is multiplied by the window, if there is one, and transformed."""
    batch, frames, bins, _ = outputs[0].shape
    window = inputs[2] if len(inputs) > 2 else None
    points = _setting(inputs, 3, window.tensor.elements if window else bins)
    flops = fft_flops(batch * frames, points)
    return {"flops": flops + batch * frames * points * (window is not None)}


def _box_suppression(
    attributes: Attributes, inputs: Inputs, outputs: Sequence[TensorSpec]
) -> dict[str, Any]:
    """The boxes of each image are compared for each class."""
    batch, boxes, _ = _shape(inputs, 0)
    return {"flops": batch * _shape(inputs, 1)[1] * box_suppression_flops(boxes)}


def _region_samples(
    attributes: Attributes, inputs: Inputs, outputs: Sequence[TensorSpec]
) -> dict[str, Any]:
    return {"ops": 8 * max(int(attributes.get("sampling_ratio", 0)), 2) ** 2}  # four corners each


def _setting(inputs: Inputs, at: int, default: int) -> int:
    """The number in a constant input of one element."""
    value = inputs[at] if at < len(inputs) else None
    return default if value is None or value.constant is None else int(value.constant.item())


def _flops_per_element(count: int) -> CostRule:
    """`ops` FLOPs per element."""
    return lambda attributes, inputs, outputs: {"ops": count}


def _indexed_loss(
    attributes: Attributes, inputs: Inputs, outputs: Sequence[TensorSpec]
) -> dict[str, Any]:
    return {"picked": math.prod(_shape(inputs, 1))}


_RULES: Mapping[str, tuple[str, CostRule]] = {
    "MatMul": ("matmul", _matmul),
    "MatMulInteger": ("matmul", _matmul),
    "QLinearMatMul": ("matmul", _matmul),
    "FusedMatMul": ("matmul", _matmul),
    "Gemm": ("matmul", _gemm),
    "Einsum": ("matmul", _einsum),
    "Conv": ("convolution", _convolution(kernel=1, bias=2)),
    "ConvInteger": ("convolution", _convolution(kernel=1, bias=9)),
    "DeformConv": ("convolution", _convolution(kernel=1, bias=3)),
    "QLinearConv": ("convolution", _convolution(kernel=3, bias=8)),
    "ConvTranspose": ("convolution", _transposed_convolution),
    "AveragePool": ("pool", _pool),
    "LpPool": ("pool", _pool),
    "MaxPool": ("pool", _pool),
    "BatchNormalization": ("norm", _batch_norm),
    "LRN": ("norm", _local_response_norm),
    "TopK": ("sort", _sort),
    "Unique": ("sort", lambda attributes, inputs, outputs: {"width": math.prod(_shape(inputs, 0))}),
    "LSTM": ("recurrent", _recurrent(4)),
    "DynamicQuantizeLSTM": ("recurrent", _recurrent(4)),
    "GRU": ("recurrent", _recurrent(3)),
    "RNN": ("recurrent", _recurrent(1)),
    "Attention": ("attention", _attention),
    "DFT": ("opaque", _fourier_transform),
    "STFT": ("opaque", _short_time_fourier_transform),
    "NonMaxSuppression": ("opaque", _box_suppression),
    "RoiAlign": ("elementwise", _region_samples),
    "AffineGrid": ("elementwise", _flops_per_element(6)),  # three products and sums
    "RotaryEmbedding": ("elementwise", _flops_per_element(3)),  # two products and a sum
    "GridSample": ("elementwise", _flops_per_element(8)),  # four corners
    "SoftmaxCrossEntropyLoss": ("loss", _flops_per_element(6)),  # a softmax and a logarithm
    "NegativeLogLikelihoodLoss": ("loss", _indexed_loss),
}


def _gather_kind(attributes: Attributes, inputs: Inputs) -> str:
    """An embedding if rows of a weight are read, otherwise a gather."""
    table = _shape(inputs, 0)
    return "embedding" if attributes.get("axis", 0) == 0 and len(table) == 2 else "gather"


def _is_training(inputs: Inputs) -> bool:
    """Whether a Dropout is in training mode: its third input is not known to be false."""
    if len(inputs) < 3 or inputs[2] is None:
        return False
    constant = inputs[2].constant
    return constant is None or bool(constant.any())
