"""A node of a PyTorch graph in; the kind of op it is, what it reads and what its cost needs out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import torch

from placewright.frontends.op_costs import NORM, cost
from placewright.frontends.pytorch.shapes import (
    Node,
    arguments,
    layout,
    op_name,
    shape,
    tensors,
)
from placewright.graph import VIEW

SAME = "same"
"""The kind of a node whose output is the first tensor it reads: no op at all."""


@dataclass(frozen=True)
class Meaning:
    """What a node is.

    Args:
        reads: The nodes whose values it needs, in the order in which its cost wants them.
        attributes: What `kinds.cost` wants to know.
        aliases: (output, input) pairs, where an output is the memory of an input.
    """

    kind: str
    reads: Sequence[Node]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    aliases: tuple[tuple[int, int], ...] = ()


def meaning(node: Node) -> Meaning:
    """The kind of a node; one that no rule knows has its own name as its kind."""
    reads: list[Node] = []
    torch.fx.map_arg((node.args, node.kwargs), reads.append)
    reads = [source for source in reads if any(tensors(source))]
    name = op_name(node)
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return _subgraph(node, reads)
    if not isinstance(node.target, torch._ops.OpOverload) or "::" in name:
        return Meaning(name, reads)
    if name in _RULES:
        return _RULES[name](node, reads, arguments(node))
    for part, rule in _FAMILIES:
        if part in name:
            return rule(node, reads, arguments(node))
    if name.endswith("_like") or name.startswith("new_"):
        return _created(node, reads, arguments(node))
    if any(result.alias_info is not None for result in node.target._schema.returns):
        return _view(node, reads, {})
    if torch.Tag.pointwise in node.target.tags:
        return Meaning("elementwise", reads)
    return Meaning(f"aten::{name}", reads)


def _subgraph(node: Node, reads: list[Node]) -> Meaning:
    """An op made of graphs is one op: of branches the dearest counts, a loop's body every time."""
    name = op_name(node)
    if name.startswith("flex_attention"):
        query, key, value = node.args[:3]
        return _attention(node, reads, {"query": query, "key": key, "value": value})
    parts = [
        getattr(node.graph.owning_module, str(one.target), None) for one in node.all_input_nodes
    ]
    costs = [_total(part.graph) for part in parts if isinstance(part, torch.fx.GraphModule)]
    if name not in ("cond", "scan", "map_impl", "invoke_subgraph") or not costs:
        return Meaning(name, reads)
    flops, moved = max(costs)
    if name in ("scan", "map_impl"):
        over: Any = node.args[2 if name == "scan" else 1]
        times = shape(over[0])[0] if over else 1
        flops, moved = flops * times, moved * times
    return Meaning("opaque", reads, {"flops": flops, "moved": moved})


def _total(graph: torch.fx.Graph) -> tuple[float, int]:
    """The cost of all ops of a graph."""
    flops, moved = 0.0, 0
    for node in graph.nodes:
        made = [one for one in tensors(node) if one]
        if node.op != "call_function" or node.target is getitem or not made:
            continue
        what = meaning(node)
        if what.kind == SAME:
            continue
        read = [one for source in what.reads if (one := tensors(source)[0])]
        one_flops, one_moved = cost(what.kind, read, made, **what.attributes)
        flops, moved = flops + one_flops, moved + one_moved
    return flops, moved


Arguments = Mapping[str, Any]
Rule = Callable[[Node, list[Node], Arguments], Meaning]


def _plain(kind: str, **attributes: Any) -> Rule:
    """Ops of which nothing need be known but their kind."""
    return lambda node, reads, a: Meaning(kind, reads, attributes)


def _created(node: Node, reads: list[Node], a: Arguments) -> Meaning:
    """Of `self` only the shape is read; `fill` and the like may take their number from a tensor."""
    return Meaning("copy", reads[1:] if isinstance(a.get("self"), Node) else reads)


def _same(node: Node, reads: list[Node], a: Arguments) -> Meaning:
    return Meaning(SAME, reads[:1])


def _view(node: Node, reads: list[Node], a: Arguments) -> Meaning:
    """A view that leaves everything as it is, is none; one of a number is a tensor of its own."""
    if not reads:
        return Meaning("copy", [])
    new, old = node.meta["val"], reads[0].meta["val"]
    single = isinstance(new, torch.Tensor)
    if single and new.dtype == old.dtype and layout(node) == layout(reads[0]):
        return Meaning(SAME, reads[:1])
    return Meaning(VIEW, reads[:1])


def _copy(node: Node, reads: list[Node], a: Arguments) -> Meaning:
    """What is overwritten is not read; a copy in the same layout is not needed at all."""
    if not reads:  # a number written down
        return Meaning("copy", [])
    source = a["src"] if isinstance(a.get("src"), Node) else reads[0]
    old, new = source.meta["val"], node.meta["val"]
    if old.dtype != new.dtype:
        return Meaning("cast", [source])
    unchanged = op_name(node) == "clone" and layout(source) == layout(node)
    return Meaning(SAME if unchanged else "copy", [source])


def _dropout(node: Node, reads: list[Node], a: Arguments) -> Meaning:
    if a.get("train") is False or a["p"] == 0:
        return Meaning(SAME, reads)
    return Meaning("random", reads, {"ops": 2})


def _matmul(node: Node, reads: list[Node], a: Arguments) -> Meaning:
    """The last dimension of the first factor is summed over; `addmm` and the like add a bias."""
    names = ("mat1", "batch1", "mat", "input", "self")
    first = next(name for name in names if name in a)
    bias = a["bias"] is not None if "bias" in a else first not in ("input", "self")
    return Meaning("matmul", reads, {"contracted": shape(a[first])[-1], "bias": bias})


def _convolution(node: Node, reads: list[Node], a: Arguments) -> Meaning:
    """Transposed, each element of the input, not of the output, meets each kernel element."""
    attributes: dict[str, Any] = {
        "kernel_elements": math.prod(shape(a["weight"])[1:]),
        "bias": a["bias"] is not None,
    }
    if a.get("transposed") or "transpose" in op_name(node):
        attributes["made"] = math.prod(shape(a["input"]))
    return Meaning("convolution", reads, attributes)


def _convolution_backward(node: Node, reads: list[Node], a: Arguments) -> Meaning:
    """The gradients of input and kernel cost one convolution each, that of the bias a sum."""
    to_input, to_kernel, to_bias = a["output_mask"]
    attributes = {
        "kernel_elements": math.prod(shape(a["weight"])[1:]),
        "made": math.prod(shape(a["input"] if a["transposed"] else a["grad_output"])),
        "products": to_input + to_kernel,
        "bias": to_bias,
    }
    return Meaning("convolution", reads, attributes)


def _attention(node: Node, reads: list[Node], a: Arguments) -> Meaning:
    """Queries, keys and values are batch × heads × tokens × width; heads may lack."""
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
    return Meaning("attention", reads, attributes)


def _norm(node: Node, reads: list[Node], a: Arguments) -> Meaning:
    """With known statistics a scale and a shift are left; backward is twice the work."""
    name = op_name(node)
    known = "no_training" in name or a.get("training") is False
    ops = 2 if known else NORM
    if name.endswith("_backward"):
        ops *= 2
    made = math.prod(shape(a.get("input") or reads[0]))
    return Meaning("norm", reads, {"ops": ops, "made": made})


def _pool(node: Node, reads: list[Node], a: Arguments) -> Meaning:
    """Every element made looks at a window; backward, the gradient takes the same ways back."""
    name = op_name(node)
    backward = name.endswith("_backward")
    if "kernel_size" not in a:  # adaptive: the windows share out the input
        whole = math.prod(shape(a["self"]))
        return Meaning("pool", reads, {"window": 1, "made": whole})
    size = a["kernel_size"]
    size = [size] if isinstance(size, int) else list(size)
    dimensions = int(name[name.index("pool") + 4])
    window = math.prod(size) if len(size) > 1 else size[0] ** dimensions
    if not backward:
        return Meaning("pool", reads, {"window": window})
    made = math.prod(shape(a["grad_output"]))
    return Meaning("pool", reads, {"window": 1 if "max" in name else window, "made": made})


def _resize(node: Node, reads: list[Node], a: Arguments) -> Meaning:
    """Each element is a weighted sum of its neighbours in the smaller or larger image."""
    name = op_name(node)
    neighbours = {"nearest": 0, "bilinear": 4, "trilinear": 8, "bicubic": 16, "linear": 2}
    ops = 2 * next((count for word, count in neighbours.items() if word in name), 16)
    return Meaning("elementwise", reads, {"ops": ops, "made": max(map(_elements, [node, *reads]))})


def _elements(node: Node) -> int:
    return sum(tensor.elements for tensor in tensors(node) if tensor)


def _embedding_bag(node: Node, reads: list[Node], a: Arguments) -> Meaning:
    picked = _elements(a["indices"]) * shape(a["weight"])[-1]
    return Meaning("embedding", reads, {"ops": 1, "picked": picked})


def _embedding_backward(node: Node, reads: list[Node], a: Arguments) -> Meaning:
    """The rows of the gradient are added up in a table of zeros."""
    return Meaning("scatter", [*reads[1:], reads[0]], {"ops": 1})


def _scatter(node: Node, reads: list[Node], a: Arguments) -> Meaning:
    adds = "add" in op_name(node) or "reduce" in op_name(node) or a.get("accumulate")
    if len(reads) == 2 and shape(reads[0]) == shape(reads[1]) and "src" in a and "index" not in a:
        return Meaning(SAME, reads[1:])  # everything is overwritten
    return Meaning("scatter", reads, {"ops": 1 if adds else 0})


def _recurrent(node: Node, reads: list[Node], a: Arguments) -> Meaning:
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
    return Meaning("recurrent", reads, attributes)


def _sort(node: Node, reads: list[Node], a: Arguments) -> Meaning:
    sizes = shape(reads[0]) or (1,)
    return Meaning("sort", reads, {"width": sizes[a.get("dim") or -1]})


def _picking_loss(node: Node, reads: list[Node], a: Arguments) -> Meaning:
    """One element for each target is read; backward, none."""
    if op_name(node).endswith("_backward"):
        return Meaning("loss", [source for source in reads if source is not a["self"]])
    return Meaning("loss", reads, {"picked": _elements(a["target"])})


def _loss(node: Node, reads: list[Node], a: Arguments) -> Meaning:
    """Difference, function and sum."""
    return Meaning("loss", reads, {"ops": 3})


_RULES: Mapping[str, Rule] = {
    word: rule
    for words, rule in (
        ("detach alias lift_fresh lift_fresh_copy", _same),
        ("_unsafe_view _reshape_alias", _view),
        ("arange empty empty_permuted empty_strided eye fill full linspace ones rand randint randn "
         "randperm scalar_tensor zeros", _created),
        ("_to_copy clone copy", _copy),
        ("dropout native_dropout", _dropout),
        ("mm addmm bmm baddbmm addbmm matmul linear mv addmv dot vdot _int_mm _scaled_mm "
         "_grouped_mm _weight_int8pack_mm", _matmul),
        ("convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d "
         "_convolution", _convolution),
        ("convolution_backward", _convolution_backward),
        ("softmax log_softmax _softmax _log_softmax _safe_softmax _softmax_backward_data "
         "_log_softmax_backward_data", _plain("softmax")),
        ("embedding", _plain("embedding")),
        ("_embedding_bag _embedding_bag_forward_only", _embedding_bag),
        ("embedding_dense_backward _embedding_bag_backward _embedding_bag_dense_backward",
         _embedding_backward),
        ("gather index index_select take take_along_dim _unsafe_index", _plain("gather")),
        ("scatter scatter_add scatter_reduce index_put _unsafe_index_put index_add index_copy "
         "slice_scatter select_scatter diagonal_scatter as_strided_scatter", _scatter),
        ("cat stack", _plain("concat")),
        ("col2im constant_pad_nd diag_embed diagonal_backward flip im2col pad pixel_shuffle "
         "pixel_unshuffle repeat repeat_interleave reflection_pad1d reflection_pad2d "
         "reflection_pad2d_backward replication_pad2d roll select_backward slice_backward "
         "unfold_backward", _plain("copy")),
        ("sum mean amax amin max min prod any all argmax argmin cumsum cumprod count_nonzero "
         "nonzero", _plain("reduce")),
        ("linalg_vector_norm norm", _plain("reduce", ops=2)),
        ("var std var_mean std_mean logsumexp logcumsumexp", _plain("reduce", ops=3)),
        ("tril triu gelu_backward silu_backward sigmoid_backward tanh_backward elu_backward "
         "threshold_backward hardtanh_backward hardswish_backward hardsigmoid_backward "
         "leaky_relu_backward log_sigmoid_backward log_sigmoid_forward softplus_backward glu "
         "glu_backward mish_backward native_dropout_backward prelu _prelu_kernel relu6 selu "
         "square where masked_fill addcmul addcdiv lerp outer", _plain("elementwise")),
        ("_conj _neg_view", _plain("elementwise")),  # views to PyTorch, and yet other values
        ("_prelu_kernel_backward", _plain("elementwise", ops=2)),
        ("_thnn_fused_lstm_cell", _plain("elementwise", ops=21)),
        ("_thnn_fused_gru_cell", _plain("elementwise", ops=17)),
        ("bernoulli multinomial uniform normal exponential", _plain("random")),
        ("lstm gru rnn_tanh rnn_relu lstm_cell gru_cell", _recurrent),
        ("sort topk argsort msort median kthvalue", _sort),
        ("nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward",
         _picking_loss),
        ("mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy mse_loss_backward "
         "smooth_l1_loss_backward huber_loss_backward binary_cross_entropy_backward "
         "binary_cross_entropy_with_logits", _loss),
    )
    for word in words.split()
}  # fmt: skip

_FAMILIES: Sequence[tuple[str, Rule]] = [
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
"""Rules by a part of the name, for ops that have many variants."""
