"""Undefined gradients: weights that no part of a loss needs get none, as PyTorch has it.

The autograd engine hands zeros to a compiled backward pass for outputs that a loss does not use,
and so every weight would get a gradient of zeros: an optimizer with momentum or weight decay would
then change weights that it leaves alone without a compiler. A hook on the backward node notes which
outputs have no gradient; gradients that depend on those alone are left out.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from placewright.frontends.pytorch.aot_graph import output_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from placewright.frontends.pytorch.shapes import Node

_NODE = "CompiledFunctionBackward"
_HOOKED = "placewright"  # marks nodes that have the hook
_NOTHING: tuple[int, frozenset[int]] = (-1, frozenset())
_noted = threading.local()


def note_undefined_gradients(outputs: Iterable[Any]) -> None:
    """Let the backward pass of a compiled graph know which of its outputs have no gradient."""
    for output in outputs:
        if isinstance(output, torch.Tensor) and output.grad_fn is not None:
            node = _compiled_node(output.grad_fn)
            if node is not None and _HOOKED not in node.metadata:
                node.metadata[_HOOKED] = True
                node.register_prehook(_note)


def undefined_outputs() -> frozenset[int]:
    """The outputs of the compiled graph in whose backward pass this thread is; then it forgets.

    What was noted in a backward pass that failed does not count in another one.
    """
    backward_pass, undefined = getattr(_noted, "outputs", _NOTHING)
    _noted.outputs = _NOTHING
    return undefined if backward_pass == _current_backward_pass() else frozenset()


class GradientSources:
    """On which outputs of a forward pass each gradient of a backward graph depends.

    Args:
        outputs: The descriptors of what the forward pass returns, in order.
    """

    def __init__(self, graph: torch.fx.Graph, outputs: Sequence[Any]) -> None:
        index_of = {descriptor: index for index, descriptor in enumerate(outputs)}
        sources: dict[Node, frozenset[int]] = {}
        for node in graph.nodes:
            if node.op == "placeholder" and node.name.startswith("tangents"):
                descriptor = getattr(node.meta.get("desc"), "output", None)
                sources[node] = frozenset([index_of.get(descriptor, -1)])
            else:
                sources[node] = frozenset[int]().union(
                    *(sources[source] for source in node.all_input_nodes)
                )
        self._of_output = [
            sources.get(node, frozenset()) if isinstance(node, torch.fx.Node) else frozenset()
            for node, _ in output_nodes(graph)
        ]
        self.has_tangents = any(self._of_output)

    def without_undefined(self, gradients: Sequence[Any], undefined: frozenset[int]) -> list[Any]:
        """The gradients, without those that depend on undefined outputs alone."""
        return [
            None if sources and sources <= undefined else gradient
            for gradient, sources in zip(gradients, self._of_output, strict=True)
        ]


def _compiled_node(node: Any, depth: int = 3) -> Any:
    """The node of a compiled backward pass that a tensor comes from, if it is near."""
    if node is None or node.name().endswith(_NODE):
        return node
    for source, _ in node.next_functions if depth else ():
        found = _compiled_node(source, depth - 1)
        if found is not None:
            return found
    return None


def _note(gradients: Sequence[torch.Tensor | None]) -> None:
    undefined = frozenset(at for at, gradient in enumerate(gradients) if gradient is None)
    _noted.outputs = _current_backward_pass(), undefined


def _current_backward_pass() -> int:
    number: int = torch._C._current_graph_task_id()
    return number
