"""Tensor classes that a compiled graph can read: those without functions of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from placewright.runtime.dynamo.graph_inputs import real_tensor
from placewright.runtime.dynamo.steps import CallNotServed

PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def refuse_tensor_classes(module: torch.fx.GraphModule) -> None:
    """Refuse a graph that reads a weight or another tensor of a class with functions of its own.

    TorchDynamo has traced them; they would run again where the graph's ops do. A class that wraps
    plain tensors, and says which, becomes those.

    Raises:
        CallNotServed: There is such a tensor.
    """
    for node in module.graph.nodes:
        tensor: Any = real_tensor(node) if node.op == "placeholder" else None
        if tensor is None or type(tensor) in PLAIN_TENSORS:
            continue
        functions = type(tensor).__torch_function__
        has_own = functions is not torch._C._disabled_torch_function_impl  # as Parameter's is
        if has_own and not is_traceable_wrapper_subclass(tensor):
            raise CallNotServed(f"a weight is of the tensor class {type(tensor).__name__!r}")
