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


def make_static(module: torch.fx.GraphModule, args: Sequence[Any]) -> torch.fx.GraphModule:
    """A copy of a graph for the sizes of a call; ops keep their names and modules.

    Args:
        args: The arguments of the graph; its symbolic sizes are among them, and say all shapes.
    """
    graph = torch.fx.Graph(module)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    values: dict[Node, Any] = {}
    copies: dict[Node, Any] = {}
    symbols = _symbol_values(module, args)
    arguments = iter(args)
    with mode, torch.no_grad():
        for node in module.graph.nodes:
            if node.op == "placeholder":
                value = _fake_argument(node, next(arguments), symbols)
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


def _symbol_values(module: torch.fx.GraphModule, args: Sequence[Any]) -> dict[Any, int]:
    """What the symbols of a graph stand for."""
    placeholders = (node for node in module.graph.nodes if node.op == "placeholder")
    symbols = {}
    for node, value in zip(placeholders, args, strict=False):
        symbol = getattr(getattr(node.meta.get("val"), "node", None), "expr", None)
        if symbol is not None and symbol.is_Symbol:
            symbols[symbol] = value
    return symbols


def _fake_argument(node: Node, value: Any, symbols: dict[Any, int]) -> Any:
    """A fake tensor of an argument's shape, on the device on which it was traced."""
    if not isinstance(value, torch.Tensor):
        return value
    traced = node.meta.get("val")
    if not isinstance(traced, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
    sizes, strides = (
        [size if isinstance(size, int) else int(size.node.expr.xreplace(symbols)) for size in all_]
        for all_ in (traced.shape, traced.stride())
    )
    return torch.empty_strided(sizes, strides, dtype=value.dtype, device=traced.device)


def _attribute(module: torch.fx.GraphModule, target: str) -> Any:
    value: Any = module
    for part in target.split("."):
        value = getattr(value, part)
    return value
