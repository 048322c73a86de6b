"""A static graph: a graph with symbolic sizes, made for the sizes of one call.

TorchDynamo traces a model once for all lengths; plans and measurements need a graph of one length.
So the graph is computed again on fake tensors of the call's shapes, and numbers replace symbols.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from placewright.runtime.program.scalars import is_scalar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.frontends.pytorch.shapes import Node


def static_graph(module: torch.fx.GraphModule, args: Sequence[Any]) -> torch.fx.GraphModule:
    """A copy of a graph for the shapes of these arguments; ops keep their names and modules."""
    graph = torch.fx.Graph(module)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    values: dict[Node, Any] = {}
    copies: dict[Node, Any] = {}
    arguments = iter(args)
    with mode, torch.no_grad():
        for node in module.graph.nodes:
            if node.op == "placeholder":
                value = _fake_argument(node, next(arguments))
                copies[node] = _copy(graph, node, copies)
                values[node], is_number = value, not isinstance(value, torch.Tensor)
                copies[node].meta["val"] = None if is_number else value
                if is_number:  # readers get the number itself
                    copies[node] = value
            elif node.op == "get_attr":
                copies[node] = _copy(graph, node, copies)
                values[node] = _attribute(module, str(node.target))
            elif node.op == "output":
                _copy(graph, node, copies)
            else:
                node_args, node_kwargs = torch.fx.map_arg(
                    (node.args, node.kwargs), values.__getitem__
                )
                value = node.target(*node_args, **node_kwargs)
                values[node] = value
                if is_scalar(node):
                    copies[node] = value
                    continue
                copies[node] = _copy(graph, node, copies)
                copies[node].meta["val"] = value
    return torch.fx.GraphModule(module, graph)


def _copy(graph: torch.fx.Graph, node: Node, copies: dict[Node, Any]) -> Node:
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), copies.__getitem__)
    copy = graph.create_node(node.op, node.target, args, kwargs, node.name, node.type)
    copy.meta = dict(node.meta)
    return copy


def _fake_argument(node: Node, value: Any) -> Any:
    """A fake tensor of an argument's shape, on the device on which it was traced."""
    if not isinstance(value, torch.Tensor):
        return value
    traced = node.meta.get("val")
    device = traced.device if isinstance(traced, torch.Tensor) else "cpu"
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)


def _attribute(module: torch.fx.GraphModule, target: str) -> Any:
    value: Any = module
    for part in target.split("."):
        value = getattr(value, part)
    return value
