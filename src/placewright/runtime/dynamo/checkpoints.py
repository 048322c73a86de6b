"""Checks of `torch.utils.checkpoint` in TorchDynamo's graphs: calls that differ run eagerly.

A graph repeats the ops of a checkpoint in its backward pass, with the same random numbers. PyTorch
itself draws others where a checkpoint says so. A reentrant one has no gradient at all if none of
its arguments needs one, whatever else its function reads, and a graph does not say which values
were its arguments. A graph of TorchDynamo's that is run as it is would always draw others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from placewright.runtime.dynamo.steps import CallNotServed
from placewright.runtime.program.runners import is_random

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.fx import GraphModule, Node

_OPS = ("tag_activation_checkpoint", "wrap_activation_checkpoint")


def check_reentrant(module: GraphModule) -> None:
    """Refuse a training graph with a reentrant checkpoint.

    Raises:
        CallNotServed: There is such a checkpoint.
    """
    if any(node.kwargs.get("use_reentrant", True) for _, node in _checkpoints(module)):
        raise CallNotServed("a checkpoint is reentrant, and runs its own backward pass")


def check_checkpoint_draws(module: GraphModule, joint: GraphModule, has_gpus: bool) -> None:
    """Refuse a training graph that draws, and has a checkpoint without `preserve_rng_state`.

    With GPUs, it may have no checkpoint at all: what runs again may do so on another device, whose
    generator has no state of the first run.

    Args:
        joint: The forward and backward ops of the graph.

    Raises:
        CallNotServed: It is such a graph.
    """
    draws_again = any(
        has_gpus or not node.kwargs.get("preserve_rng_state", True)
        for _, node in _checkpoints(module)
    )
    if draws_again and any(is_random(node) for node in joint.graph.nodes):
        raise CallNotServed("a checkpoint draws other random numbers in the backward pass")


def has_checkpoint(module: GraphModule) -> bool:
    """Whether a graph has a checkpoint."""
    return next(_checkpoints(module), None) is not None


def _checkpoints(module: GraphModule) -> Iterator[tuple[GraphModule, Node]]:
    """The checkpoints of a graph and of its subgraphs."""
    for graph_module in module.modules():
        if isinstance(graph_module, torch.fx.GraphModule):
            for node in graph_module.graph.nodes:
                if node.op == "call_function" and getattr(node.target, "__name__", "") in _OPS:
                    yield graph_module, node
