"""Scalars: the numbers of a graph with symbolic sizes, computed anew for every call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from placewright.errors import GraphError
from placewright.frontends.pytorch.shapes import Node, op_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_SIZE_OPS = ("sym_size", "sym_stride", "sym_numel", "sym_storage_offset")


def is_scalar(node: Node) -> bool:
    """Whether a node is a number, not a tensor."""
    return isinstance(node.meta.get("val"), (*_SYMBOLIC, bool, int, float))


def depends_on_scalars(node: Node) -> bool:
    """Whether a view of a graph's input depends on numbers that calls have of their own."""
    return any(
        is_scalar(source) or (source.op == "call_function" and depends_on_scalars(source))
        for source in node.all_input_nodes
    )


class Scalars:
    """The numbers that the nodes of one graph stand for in the current call.

    Raises:
        GraphError: One depends on the values of tensors.
    """

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.values: dict[Node, Any] = {}
        self._symbols: dict[Any, Any] = {}
        self._placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self._steps = [
            (node, self._step(node))
            for node in graph.nodes
            if node.op == "call_function" and is_scalar(node)
        ]

    @property
    def is_empty(self) -> bool:
        """Whether the graph has no symbolic numbers."""
        return not self._steps and not any(is_scalar(node) for node in self._placeholders)

    def differ(self, args: Sequence[Any]) -> bool:
        """Whether a call has other numbers than those that are bound."""
        return any(
            is_scalar(node) and self.values.get(node) != value
            for node, value in zip(self._placeholders, args, strict=False)
        )

    def bind(self, args: Sequence[Any]) -> None:
        """Compute all numbers from the arguments of a call, in the order of the placeholders.

        Gradients of outputs, which come last, may be missing: no number depends on them.
        """
        for node, value in zip(self._placeholders, args, strict=False):
            if is_scalar(node):
                self.values[node] = value
                symbol = getattr(getattr(node.meta["val"], "node", None), "expr", None)
                if symbol is not None and symbol.is_Symbol:
                    self._symbols[symbol] = value
        tensors = dict(zip(self._placeholders, args, strict=False))
        for node, compute in self._steps:
            self.values[node] = compute(tensors)

    def size(self, size: int | torch.SymInt) -> int:
        """A size of a tensor's shape in the current call."""
        return size if isinstance(size, int) else int(size.node.expr.xreplace(self._symbols))

    def _step(self, node: Node) -> Callable[[dict[Node, Any]], Any]:
        """A function that computes a node's number."""
        sources, target = node.all_input_nodes, node.target
        if all(is_scalar(source) for source in sources) and callable(target):

            def call(_: dict[Node, Any]) -> Any:
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self.values.__getitem__)
                return target(*args, **kwargs)

            return call
        if op_name(node) not in _SIZE_OPS:
            raise GraphError(
                f"op {op_name(node)!r} makes a number of a tensor's values, and a later op needs "
                "it: such a graph cannot be run op by op"
            )
        if sources[0].op == "placeholder" and callable(target):
            return lambda tensors: target(tensors[sources[0]], *node.args[1:])
        return lambda _: self.size(node.meta["val"])
