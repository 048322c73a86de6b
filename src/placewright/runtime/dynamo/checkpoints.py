"""Checks of `torch.utils.checkpoint` in TorchDynamo's graphs: calls that differ run eagerly.

A graph repeats the ops of a checkpoint in its backward pass, with the same random numbers. PyTorch
itself draws others where a checkpoint says so, and a reentrant one of inputs that need no gradient
has none at all. A graph of TorchDynamo's that is run as it is would always draw others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from placewright.runtime.dynamo.steps import CallNotServed
from placewright.runtime.program.runners import is_random

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.fx import GraphModule, Node

    from placewright.frontends.pytorch.aot_graph import GraphInput

_OPS = ("tag_activation_checkpoint", "wrap_activation_checkpoint")


def check_checkpoint_inputs(module: GraphModule, inputs: Sequence[GraphInput]) -> None:
    """Refuse a reentrant checkpoint of which no input but weights needs a gradient.

    PyTorch gives its outputs no gradient then. A graph passes weights as inputs, too.

    Raises:
        CallNotServed: There is such a checkpoint.
    """
    weights = _weight_values(module, inputs)
    for graph_module, node in _checkpoints(module):
        if not node.kwargs.get("use_reentrant", True):
            continue
        is_nested = graph_module is not module  # whose inputs are not known here
        if is_nested or not any(
            needs_gradient(source) for source in node.all_input_nodes if source not in weights
        ):
            raise CallNotServed(
                "a reentrant checkpoint has no input that needs a gradient in the backward pass"
            )


def check_checkpoint_draws(module: GraphModule, joint: GraphModule) -> None:
    """Refuse a training graph that draws, and has a checkpoint without `preserve_rng_state`.

    Args:
        joint: The forward and backward ops of the graph.

    Raises:
        CallNotServed: It is such a graph.
    """
    draws_again = any(
        not node.kwargs.get("preserve_rng_state", True) for _, node in _checkpoints(module)
    )
    if draws_again and any(is_random(node) for node in joint.graph.nodes):
        raise CallNotServed("a checkpoint draws other random numbers in the backward pass")


def has_checkpoint(module: GraphModule) -> bool:
    """Whether a graph has a checkpoint."""
    return next(_checkpoints(module), None) is not None


def needs_gradient(node: Node) -> bool:
    """Whether the value of a node of TorchDynamo's needs a gradient."""
    value: Any = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.requires_grad


def _checkpoints(module: GraphModule) -> Iterator[tuple[GraphModule, Node]]:
    """The checkpoints of a graph and of its subgraphs."""
    for graph_module in module.modules():
        if isinstance(graph_module, torch.fx.GraphModule):
            for node in graph_module.graph.nodes:
                if node.op == "call_function" and getattr(node.target, "__name__", "") in _OPS:
                    yield graph_module, node


def _weight_values(module: GraphModule, inputs: Sequence[GraphInput]) -> set[Node]:
    """The nodes whose values depend on weights alone."""
    found: set[Node] = set()
    sources = iter(inputs)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            is_weight = next(sources).role != "input"
        else:
            is_weight = all(source in found for source in node.all_input_nodes)
        if is_weight:
            found.add(node)
    return found
