"""Describes a node of a PyTorch graph: its kind, its inputs and the attributes of its cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import torch

from placewright.frontends.op_costs import NORM_FLOPS, cost
from placewright.frontends.pytorch.op_flops import OP_FLOPS
from placewright.frontends.pytorch.shapes import (
    Node,
    named_arguments,
    node_specs,
    op_name,
    same_layout,
    same_shape,
    shape,
)
from placewright.graph import VIEW

IDENTITY = "same"
"""The kind of a node whose output is its first input: it becomes no op."""


@dataclass(frozen=True)
class NodeDescription:
    """The kind, inputs and cost attributes of a node.

    Args:
        reads: The nodes that it reads, in the order that its cost expects.
        attributes: Keyword arguments of `op_costs.cost`.
        aliases: (output, input) pairs, where an output shares the memory of an input.
    """

    kind: str
    reads: Sequence[Node]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    aliases: tuple[tuple[int, int], ...] = ()


def describe_node(node: Node) -> NodeDescription:
    """The description of a node; without a rule, its kind is its own name."""
    reads: list[Node] = []
    torch.fx.map_arg((node.args, node.kwargs), reads.append)
    reads = [source for source in reads if any(node_specs(source))]
    name = op_name(node)
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return _subgraph(node, reads)
    if not isinstance(node.target, torch._ops.OpOverload):
        return NodeDescription(name, reads)
    if name in _RULES:
        return _RULES[name](node, reads, named_arguments(node))
    if name in OP_FLOPS:
        flops = OP_FLOPS[name](node, named_arguments(node))
        return NodeDescription("opaque", reads, {"flops": flops})
    if "::" in name:  # of another library
        return NodeDescription(name, reads)
    for pattern, rule in _PATTERN_RULES:
        if pattern in name:
            return rule(node, reads, named_arguments(node))
    if name.endswith(("_like", "_window", "_indices")) or name.startswith("new_"):
        return _creation(node, reads, named_arguments(node))
    if name.endswith("_copy"):  # of a view
        return NodeDescription("copy", reads)
    if any(result.alias_info is not None for result in node.target._schema.returns):
        return _view(node, reads, {})
    if torch.Tag.pointwise in node.target.tags:
        return NodeDescription("elementwise", reads)
    return NodeDescription(f"aten::{name}", reads)


def _subgraph(node: Node, reads: list[Node]) -> NodeDescription:
    """Subgraphs as one op: the most expensive branch, or the loop body times its trips."""
    name = op_name(node)
    if name.startswith("flex_attention"):
        query, key, value = node.args[:3]
        return _attention(node, reads, {"query": query, "key": key, "value": value})
    modules = [
        getattr(node.graph.owning_module, str(child.target), None) for child in node.all_input_nodes
    ]
    costs = [
        _graph_cost(module.graph) for module in modules if isinstance(module, torch.fx.GraphModule)
    ]
    if name not in ("cond", "scan", "map_impl", "invoke_subgraph") or not costs:
        return NodeDescription(name, reads)
    flops, moved = max(costs)
    if name in ("scan", "map_impl"):
        scanned: Any = node.args[2 if name == "scan" else 1]
        trips = shape(scanned[0])[0] if scanned else 1
        flops, moved = flops * trips, moved * trips
    return NodeDescription("opaque", reads, {"flops": flops, "moved": moved})


def _graph_cost(graph: torch.fx.Graph) -> tuple[float, int]:
    """The cost of all ops of a graph."""
    flops, moved = 0.0, 0
    for node in graph.nodes:
        outputs = [spec for spec in node_specs(node) if spec]
        if node.op != "call_function" or node.target is getitem or not outputs:
            continue
        description = describe_node(node)
        if description.kind == IDENTITY:
            continue
        inputs = [spec for source in description.reads if (spec := node_specs(source)[0])]
        op_flops, op_bytes = cost(description.kind, inputs, outputs, **description.attributes)
        flops, moved = flops + op_flops, moved + op_bytes
    return flops, moved


Arguments = Mapping[str, Any]
NodeRule = Callable[[Node, list[Node], Arguments], NodeDescription]


def _of_kind(kind: str, **attributes: Any) -> NodeRule:
    """A rule for ops whose cost needs no other attributes."""
    return lambda node, reads, a: NodeDescription(kind, reads, attributes)


def _creation(node: Node, reads: list[Node], a: Arguments) -> NodeDescription:
    """Only the shape of `self` is read; `fill` and the like may read a value from a tensor."""
    return NodeDescription("copy", reads[1:] if isinstance(a.get("self"), Node) else reads)


def _identity(node: Node, reads: list[Node], a: Arguments) -> NodeDescription:
    return NodeDescription(IDENTITY, reads[:1])


def _view(node: Node, reads: list[Node], a: Arguments) -> NodeDescription:
    """A view with an unchanged layout is no op; a view of a number is a new tensor."""
    if not reads:
        return NodeDescription("copy", [])
    new, old = node.meta["val"], reads[0].meta["val"]
    is_tensor = isinstance(new, torch.Tensor)
    if is_tensor and new.dtype == old.dtype and same_layout(node, reads[0]):
        return NodeDescription(IDENTITY, reads[:1])
    return NodeDescription(VIEW, reads[:1])


def _copy(node: Node, reads: list[Node], a: Arguments) -> NodeDescription:
    """The overwritten tensor is not read; a clone in the same layout is no op."""
    if not reads:  # of a literal number
        return NodeDescription("copy", [])
    source = a["src"] if isinstance(a.get("src"), Node) else reads[0]
    old, new = source.meta["val"], node.meta["val"]
    if old.dtype != new.dtype:
        return NodeDescription("cast", [source])
    is_identity = op_name(node) == "clone" and same_layout(source, node)
    return NodeDescription(IDENTITY if is_identity else "copy", [source])


def _dropout(node: Node, reads: list[Node], a: Arguments) -> NodeDescription:
    if a.get("train") is False or a["p"] == 0:
        return NodeDescription(IDENTITY, reads)
    return NodeDescription("random", reads, {"ops": 2})


def _matmul(node: Node, reads: list[Node], a: Arguments) -> NodeDescription:
    """Contracts the last dimension of the first factor; `addmm` and the like add a bias."""
    names = ("mat1", "batch1", "mat", "input", "self")
    factor = next(name for name in names if name in a)
    bias = a["bias"] is not None if "bias" in a else factor not in ("input", "self")
    return NodeDescription("matmul", reads, {"contracted": shape(a[factor])[-1], "bias": bias})


def _grouped_matmul(node: Node, reads: list[Node], a: Arguments) -> NodeDescription:
    """Multiplies each row by the matrix of its group.

    Of two matrices, the rows are summed over, each within its group: the groups share the rows.
    """
    first, second = (shape(factor) for factor in reads[:2])
    attributes = {"contracted": first[-1]}
    if len(first) == len(second) == 2:
        attributes["made"] = first[0] * second[1]
    return NodeDescription("matmul", reads, attributes)


def _grouped_weight_gradient(node: Node, reads: list[Node], a: Arguments) -> NodeDescription:
    """Each row adds the outer product of input and gradient to the weight of its group."""
    rows, width = shape(a["input"])
    attributes = {"contracted": rows, "made": width * shape(a["gradient"])[1]}
    return NodeDescription("matmul", reads, attributes)


def _convolution(node: Node, reads: list[Node], a: Arguments) -> NodeDescription:
    """If transposed, each input (not output) element is multiplied by each kernel element."""
    attributes: dict[str, Any] = {
        "kernel_elements": math.prod(shape(a["weight"])[1:]),
        "bias": a["bias"] is not None,
    }
    if a.get("transposed") or "transpose" in op_name(node):
        attributes["made"] = math.prod(shape(a["input"]))
    return NodeDescription("convolution", reads, attributes)


def _convolution_backward(node: Node, reads: list[Node], a: Arguments) -> NodeDescription:
    """The gradients of input and kernel cost a convolution each, that of the bias a sum."""
    to_input, to_kernel, to_bias = a["output_mask"]
    attributes = {
        "kernel_elements": math.prod(shape(a["weight"])[1:]),
        "made": math.prod(shape(a["input"] if a["transposed"] else a["grad_output"])),
        "products": to_input + to_kernel,
        "bias": to_bias,
    }
    return NodeDescription("convolution", reads, attributes)


def _attention(node: Node, reads: list[Node], a: Arguments) -> NodeDescription:
    """Queries, keys and values are batch × heads × tokens × width; heads are optional."""
    *batch, queries, width = shape(a["query"])
    heads = batch.pop() if len(batch) > 1 else 1
    attributes = {
        "batch": math.prod(batch),
        "heads": heads,
        "queries": queries,
        "keys": shape(a["key"])[-2],
        "width": width,
        "value_width": shape(a["value"])[-1],
        "backward": op_name(node).endswith("_backward"),
    }
    return NodeDescription("attention", reads, attributes)


def _norm(node: Node, reads: list[Node], a: Arguments) -> NodeDescription:
    """With given statistics, only a scale and a shift; backward is twice the work."""
    name = op_name(node)
    has_statistics = "no_training" in name or a.get("training") is False
    ops = 2 if has_statistics else NORM_FLOPS
    if name.endswith("_backward"):
        ops *= 2
    elements = math.prod(shape(a.get("input") or reads[0]))
    return NodeDescription("norm", reads, {"ops": ops, "made": elements})


def _pool(node: Node, reads: list[Node], a: Arguments) -> NodeDescription:
    """Each output element reads a window; the backward pass visits the same windows."""
    name = op_name(node)
    is_backward = name.endswith("_backward")
    if "kernel_size" not in a:  # adaptive: the windows partition the input
        input_elements = math.prod(shape(a["self"]))
        return NodeDescription("pool", reads, {"window": 1, "made": input_elements})
    size = a["kernel_size"]
    size = [size] if isinstance(size, int) else list(size)
    dimensions = int(name[name.index("pool") + 4])
    window = math.prod(size) if len(size) > 1 else size[0] ** dimensions
    if not is_backward:
        return NodeDescription("pool", reads, {"window": window})
    gradient_elements = math.prod(shape(a["grad_output"]))
    return NodeDescription(
        "pool", reads, {"window": 1 if "max" in name else window, "made": gradient_elements}
    )


def _resize(node: Node, reads: list[Node], a: Arguments) -> NodeDescription:
    """Each output element is a weighted sum of neighbouring input elements."""
    name = op_name(node)
    neighbours = {"nearest": 0, "bilinear": 4, "trilinear": 8, "bicubic": 16, "linear": 2}
    ops = 2 * next((count for word, count in neighbours.items() if word in name), 16)
    return NodeDescription(
        "elementwise", reads, {"ops": ops, "made": max(map(_elements, [node, *reads]))}
    )


def _elements(node: Node) -> int:
    return sum(tensor.elements for tensor in node_specs(node) if tensor)


def _embedding_bag(node: Node, reads: list[Node], a: Arguments) -> NodeDescription:
    elements_read = _elements(a["indices"]) * shape(a["weight"])[-1]
    return NodeDescription("embedding", reads, {"ops": 1, "picked": elements_read})


def _embedding_backward(node: Node, reads: list[Node], a: Arguments) -> NodeDescription:
    """Adds the rows of the gradient to a table of zeros."""
    return NodeDescription("scatter", [*reads[1:], reads[0]], {"ops": 1})


def _scatter(node: Node, reads: list[Node], a: Arguments) -> NodeDescription:
    accumulates = "add" in op_name(node) or "reduce" in op_name(node) or a.get("accumulate")
    if len(reads) == 2 and same_shape(reads[0], reads[1]) and "src" in a and "index" not in a:
        return NodeDescription(IDENTITY, reads[1:])  # everything is overwritten
    return NodeDescription("scatter", reads, {"ops": 1 if accumulates else 0})


def _recurrent(node: Node, reads: list[Node], a: Arguments) -> NodeDescription:
    """All layers and directions, from the shapes of their input weights (gates·hidden × width)."""
    if "params" in a:
        step = 4 if a["has_biases"] else 2
        hidden = shape(a["params"][1])[-1]
        layers = [shape(weight) for weight in a["params"][::step]]
    else:
        layers = [shape(a["w_ih"])]
        hidden = shape(a["w_hh"])[-1]
    widths = [width for _, width in layers]
    rows = math.prod(shape(a["data"] if "data" in a else a["input"])[:-1])
    attributes = {"rows": rows, "gates": layers[0][0] // hidden, "hidden": hidden, "widths": widths}
    return NodeDescription("recurrent", reads, attributes)


def _sort(node: Node, reads: list[Node], a: Arguments) -> NodeDescription:
    """Along a dimension, or else all elements, as the median does."""
    sizes = shape(reads[0]) or (1,)
    width = sizes[a["dim"]] if isinstance(a.get("dim"), int) else math.prod(sizes)
    return NodeDescription("sort", reads, {"width": width})


def _sort_all(node: Node, reads: list[Node], a: Arguments) -> NodeDescription:
    return NodeDescription("sort", reads, {"width": _elements(reads[0])})


def _indexed_loss(node: Node, reads: list[Node], a: Arguments) -> NodeDescription:
    """Reads one element per target; the backward pass reads none."""
    if op_name(node).endswith("_backward"):
        return NodeDescription("loss", [source for source in reads if source is not a["self"]])
    return NodeDescription("loss", reads, {"picked": _elements(a["target"])})


def _loss(node: Node, reads: list[Node], a: Arguments) -> NodeDescription:
    """Difference, function and sum."""
    return NodeDescription("loss", reads, {"ops": 3})


_RULES: Mapping[str, NodeRule] = {
    word: rule
    for words, rule in (
        ("detach alias lift_fresh lift_fresh_copy", _identity),
        ("_unsafe_view _reshape_alias", _view),
        ("arange empty empty_permuted empty_strided eye fill full linspace logspace ones rand "
         "randint randn randperm range scalar_tensor zero zeros", _creation),
        ("_to_copy clone copy", _copy),
        ("dropout native_dropout", _dropout),
        ("mm addmm bmm baddbmm addbmm matmul linear mv addmv dot vdot _int_mm _scaled_mm "
         "_weight_int4pack_mm _weight_int4pack_mm_for_cpu _weight_int8pack_mm", _matmul),
        ("_grouped_mm _scaled_grouped_mm transformers::grouped_mm_fallback", _grouped_matmul),
        ("placewright::grouped_weight_gradient", _grouped_weight_gradient),
        ("convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d "
         "_convolution torchvision::deform_conv2d", _convolution),
        ("convolution_backward", _convolution_backward),
        ("softmax log_softmax _softmax _log_softmax _safe_softmax _softmax_backward_data "
         "_log_softmax_backward_data", _of_kind("softmax")),
        ("embedding", _of_kind("embedding")),
        ("_embedding_bag _embedding_bag_forward_only", _embedding_bag),
        ("embedding_dense_backward _embedding_bag_backward _embedding_bag_dense_backward",
         _embedding_backward),
        ("gather index index_select take take_along_dim _unsafe_index _unsafe_masked_index",
         _of_kind("gather")),
        ("scatter scatter_add scatter_reduce index_put _unsafe_index_put index_add index_copy "
         "index_reduce put _unsafe_masked_index_put_accumulate "
         "slice_scatter select_scatter diagonal_scatter as_strided_scatter", _scatter),
        ("cat stack", _of_kind("concat")),
        ("block_diag channel_shuffle col2im constant_pad_nd diag_embed diagonal_backward flip "
         "im2col index_fill masked_scatter masked_scatter_backward masked_select max_unpool2d "
         "max_unpool3d _pack_padded_sequence pad pixel_shuffle pixel_unshuffle reflection_pad1d "
         "reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward reflection_pad3d "
         "reflection_pad3d_backward repeat repeat_interleave replication_pad1d "
         "replication_pad1d_backward replication_pad2d replication_pad2d_backward "
         "replication_pad3d replication_pad3d_backward roll rot90 select_backward slice_backward "
         "unfold_backward unsafe_split unsafe_split_with_sizes",
         _of_kind("copy")),
        ("dequantize quantize_per_channel quantize_per_tensor", _of_kind("cast")),
        ("sum mean amax amin aminmax max min prod any all argmax argmin bincount cummax cummin "
         "cumsum cumprod count_nonzero histc _is_all_true _is_any_true nansum nonzero "
         "nonzero_static segment_reduce trace unique_consecutive", _of_kind("reduce")),
        ("linalg_vector_norm norm", _of_kind("reduce", ops=2)),
        ("var std var_mean std_mean logsumexp logcumsumexp _logcumsumexp dist",
         _of_kind("reduce", ops=3)),
        ("tril triu gelu_backward silu_backward sigmoid_backward tanh_backward elu_backward "
         "threshold_backward hardtanh_backward hardswish_backward hardsigmoid_backward "
         "leaky_relu_backward log_sigmoid_backward log_sigmoid_forward softplus_backward glu "
         "glu_backward mish_backward native_dropout_backward prelu _prelu_kernel relu6 selu "
         "square where masked_fill addcmul addcdiv lerp outer addr complex floor_divide "
         "hardshrink_backward hardswish polar renorm rrelu_with_noise_backward rsub "
         "softshrink_backward", _of_kind("elementwise")),
        ("_conj _neg_view", _of_kind("elementwise")),  # views in PyTorch, but with other values
        ("fake_quantize_per_channel_affine_cachemask fake_quantize_per_tensor_affine_cachemask "
         "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams linalg_cross",
         _of_kind("elementwise", ops=3)),
        ("_prelu_kernel_backward", _of_kind("elementwise", ops=2)),
        ("_thnn_fused_lstm_cell", _of_kind("elementwise", ops=21)),
        ("_thnn_fused_gru_cell", _of_kind("elementwise", ops=17)),
        ("bernoulli binomial cauchy exponential geometric log_normal multinomial normal "
         "normal_functional poisson random rrelu_with_noise_functional uniform",
         _of_kind("random")),
        ("lstm gru rnn_tanh rnn_relu lstm_cell gru_cell", _recurrent),
        ("sort topk argsort msort median nanmedian kthvalue mode", _sort),
        ("isin _unique _unique2 unique_dim", _sort_all),
        ("nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward",
         _indexed_loss),
        ("mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy mse_loss_backward "
         "smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward "
         "binary_cross_entropy_with_logits soft_margin_loss soft_margin_loss_backward "
         "multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward "
         "multilabel_margin_loss_backward", _loss),
    )
    for word in words.split()
}  # fmt: skip

_PATTERN_RULES: Sequence[tuple[str, NodeRule]] = [
    ("scaled_dot_product", _attention),
    ("batch_norm", _norm),
    ("layer_norm", _norm),
    ("group_norm", _norm),
    ("rms_norm", _norm),
    ("weight_norm", _norm),
    ("_pool", _pool),
    ("upsample", _resize),
    ("grid_sampler", _resize),
]
"""Rules by a part of the name, for ops with many variants."""
