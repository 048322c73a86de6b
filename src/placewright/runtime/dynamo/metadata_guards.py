"""Guards of tensors' metadata without their devices, for graphs that outlive a move of weights.

`place` captures graphs before a plan says where weights and buckets lie. On the logical device a
trace does not depend on devices, so that it serves afterwards, too; but TorchDynamo's guard of a
tensor compares its device with everything else. In a dry run these guards are left out for weights
and buckets, and each call compares the rest of their metadata here.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from placewright.runtime.dynamo.graph_inputs import real_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from placewright.frontends.pytorch.aot_graph import GraphInput
    from placewright.runtime.dynamo.dry_run import DryRun

_PLAIN_TYPES = torch.Tensor, torch.nn.Parameter

_thread = threading.local()
"""`names`: what reads the tensors of the graph that this thread compiles, if they are compared
here."""


class StaleGraph(Exception):
    """A tensor is not as it was traced, other than in its device; nothing of the call has run."""


class MetadataGuards:
    """Guards of some of a graph's inputs.

    Args:
        module: The graph of TorchDynamo's.
        indices: Which of its inputs are compared here.
    """

    def __init__(self, module: torch.fx.GraphModule, indices: Sequence[int]) -> None:
        nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.indices = indices
        self.names = frozenset(_source_name(nodes[index]) for index in indices)
        self._expected = [_Metadata(nodes[index]) for index in indices]
        self._tensor_indices = [
            at for at, node in enumerate(nodes) if real_tensor(node) is not None
        ]
        self._compiled: Any = None
        """PyTorch's own guards of the tensors that were found right the last time."""

    def check(self, args: Sequence[Any]) -> None:
        """Compare the inputs of a call.

        Raises:
            StaleGraph: One is not as it was traced, or two are the same.
        """
        if len({id(args[at]) for at in self._tensor_indices}) < len(self._tensor_indices):
            raise StaleGraph
        tensors = [args[index] for index in self.indices]
        compiled = self._compiled  # another thread may replace it
        if compiled is not None and compiled.check(*tensors):
            return
        if not all(
            expected.is_of(tensor) for expected, tensor in zip(self._expected, tensors, strict=True)
        ):
            raise StaleGraph
        guards: Any = torch._C._dynamo.guards
        self._compiled = guards.TensorGuards(
            *tensors,
            dynamic_dims_sizes=[expected.sizes for expected in self._expected],
            dynamic_dims_strides=[expected.strides for expected in self._expected],
        )


class _Metadata:
    """What a tensor was traced with, besides its device; a symbolic size is None."""

    def __init__(self, placeholder: torch.fx.Node) -> None:
        tensor, traced = real_tensor(placeholder), placeholder.meta["example_value"]
        assert tensor is not None
        self.type, self.dtype = type(tensor), tensor.dtype
        self.requires_grad = tensor.requires_grad
        self.sizes, self.strides = _static(traced.shape), _static(traced.stride())

    def is_of(self, tensor: Any) -> bool:
        """Whether a tensor has this metadata, and is plain."""
        return (
            type(tensor) is self.type
            and is_plain(tensor)
            and tensor.dtype == self.dtype
            and tensor.requires_grad == self.requires_grad
            and tensor.dim() == len(self.sizes)
            and _agree(self.sizes, tensor.shape)
            and _agree(self.strides, tensor.stride())
        )


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is nothing but numbers on a device: no view with a sign, no subclass."""
    functorch: Any = torch._C._functorch
    return (
        type(tensor) in _PLAIN_TYPES
        and tensor.layout == torch.strided
        and not (
            tensor.is_nested
            or tensor.is_conj()
            or tensor.is_neg()
            or tensor.is_inference()
            or tensor.is_quantized
            or tensor._is_zerotensor()
            or torch._is_functional_tensor(tensor)
            or functorch.is_functorch_wrapped_tensor(tensor)
        )
    )


def guard_metadata(
    module: torch.fx.GraphModule, inputs: Sequence[GraphInput], dry_run: DryRun | None
) -> Callable[[Sequence[Any]], None]:
    """Compare a graph's weights and buckets in each call; TorchDynamo leaves out their guards.

    Args:
        module: The graph that TorchDynamo compiles in this thread.
        inputs: The inputs of the graph, named as in the plan.
        dry_run: What the graph is compiled for; None: TorchDynamo guards all.
    """
    leave_out_guards(None)
    if dry_run is None:
        return lambda args: None
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    indices = []
    for index, (node, graph_input) in enumerate(zip(nodes, inputs, strict=True)):
        tensor = real_tensor(node)
        if tensor is None or not is_plain(tensor) or not _source_name(node):
            continue
        if graph_input.role != "input" or id(tensor) in dry_run.bucket_tensors:
            indices.append(index)
    guards = MetadataGuards(module, indices)
    leave_out_guards(guards)
    return guards.check


def leave_out_guards(guards: MetadataGuards | None) -> None:
    """Let TorchDynamo, which compiles in this thread, leave out what these guards compare."""
    _thread.names = frozenset() if guards is None else guards.names


def kept_guards(entries: Sequence[Any]) -> list[bool]:
    """Which guards TorchDynamo keeps, of all that it would have of the graph just compiled."""
    names: frozenset[str] = getattr(_thread, "names", frozenset())
    leave_out_guards(None)
    return [
        entry.guard_type != "TENSOR_MATCH" or _text(entry.orig_guard.name) not in names
        for entry in entries
    ]


def bucket_tensors(kwargs: Mapping[str, Any]) -> set[int]:
    """The ids of the tensors of a call's buckets, which lie where a plan says."""
    cache = kwargs.get("past_key_values")
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", None)
    return {
        id(tensor)
        for layer in layers or ()
        if getattr(layer, "is_bucket", False)
        for tensor in (layer.keys, layer.values, layer.cumulative_length)
    }


def _source_name(placeholder: torch.fx.Node) -> str:
    """The expression by which TorchDynamo reads an input, and knows its guard."""
    source = getattr(placeholder.meta.get("grapharg"), "source", None)
    return _text(getattr(source, "name", ""))


def _text(name: Any) -> str:
    return str(name() if callable(name) else name)


def _static(sizes: Iterable[Any]) -> list[int | None]:
    return [size if isinstance(size, int) else None for size in sizes]


def _agree(expected: Sequence[int | None], sizes: Sequence[int]) -> bool:
    return all(want in (None, size) for want, size in zip(expected, sizes, strict=True))
