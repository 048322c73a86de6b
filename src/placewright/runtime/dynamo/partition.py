"""Cuts the joint graph of a forward and a backward pass in two.

The backward graph reads weights themselves, not views of them that the forward graph saved: so the
runtime knows them as weights, which stay on their devices or are streamed. Everything else that the
backward pass reads is saved, and nothing is computed twice, as PyTorch does without a compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch._functorch.partitioners import default_partition

from placewright.errors import GraphError
from placewright.frontends.pytorch.aot_graph import draws_unread_numbers, name_ops
from placewright.frontends.pytorch.op_rules import IDENTITY, describe_node
from placewright.frontends.pytorch.shapes import Node, node_specs, op_name
from placewright.graph import VIEW

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from placewright.frontends.pytorch.aot_graph import GraphInput

_TAG, _BACKWARD = "partitioner_tag", "is_backward"


def partition_joint_graph(
    inputs: Sequence[GraphInput],
    joint: torch.fx.GraphModule,
    joint_inputs: Any,
    *,
    num_fwd_outputs: int,
    **options: Any,
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """The forward graph and the backward graph, their ops named as in a plan of training.

    Raises:
        GraphError: An op draws numbers that nothing reads: neither graph would have it.
    """
    for node in joint.graph.nodes:
        if draws_unread_numbers(node):
            raise GraphError(f"op {op_name(node)!r} draws numbers that nothing reads")
    name_ops(joint, inputs)
    _repeat_weight_views(joint, inputs)
    return default_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **options)


def _repeat_weight_views(joint: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> None:
    """Let backward ops read views of weights that are made in the backward pass."""
    graph = joint.graph
    backward_nodes = [node for node in graph.nodes if node.meta.get(_TAG) == _BACKWARD]
    views = _weight_views(graph, inputs)
    if not backward_nodes or not views:
        return
    repeated: dict[Node, Node] = {}

    def repeat(view: Node, reader: Node) -> Node:
        if view.op == "placeholder":
            return view
        if view not in repeated:
            with graph.inserting_before(reader):
                copy = graph.node_copy(view, lambda source: repeat(source, reader))
            copy.meta = {**view.meta, _TAG: _BACKWARD}
            repeated[view] = copy
        return repeated[view]

    for node in backward_nodes:  # in order, so a view is made before its first reader
        for source in node.all_input_nodes:
            if source in views:
                node.replace_input_with(source, repeat(source, node))
    joint.recompile()


def _weight_views(graph: torch.fx.Graph, inputs: Sequence[GraphInput]) -> set[Node]:
    """Forward nodes that are views of one weight and of nothing else."""
    weights: set[Node] = set()
    views: set[Node] = set()
    for node in graph.nodes:
        index = getattr(node.meta.get("desc"), "idx", None)
        if node.op == "placeholder" and index is not None and node.name.startswith("primals"):
            if inputs[index].role != "input":
                weights.add(node)
        elif (
            node.op == "call_function"
            and node.meta.get(_TAG) != _BACKWARD
            and len(node.all_input_nodes) == 1
            and node.all_input_nodes[0] in weights | views
            and len(node_specs(node)) == 1
            and describe_node(node).kind in (VIEW, IDENTITY)
        ):
            views.add(node)
    return views
