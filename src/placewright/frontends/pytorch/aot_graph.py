"""Captures a graph that AOTAutograd made, so that a compiler backend shares the graph builder.

Such a graph has flat inputs, described by `meta["desc"]`: parameters and arguments of the compiled
function, tensors saved by a forward graph for its backward graph, and symbolic sizes.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from placewright.errors import GraphError
from placewright.frontends.graph_builder import UniqueNames
from placewright.frontends.pytorch.capture import WHOLE_OPS, Capture, Port, StorageSlice
from placewright.frontends.pytorch.graph import OP_NAME, TorchGraphBuilder
from placewright.frontends.pytorch.shapes import Node, op_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_CHECKS = frozenset({"_assert_tensor_metadata", "sym_constrain_range_for_size"})
"""Ops without outputs that need not run: they check what guards have checked."""


@dataclass(frozen=True)
class GraphInput:
    """An input of the function that is compiled.

    Args:
        name: The name of the weight in the model, or of the argument.
        role: `parameter`, `buffer` or `input`, as in `Port`.
        storage: Where a weight's data are.
    """

    name: str
    role: str = "input"
    storage: StorageSlice | None = None


def capture_aot_graph(
    module: torch.fx.GraphModule, inputs: Sequence[GraphInput], whole_step: bool = False
) -> Capture:
    """The capture of a forward, backward, joint or inference graph.

    Args:
        inputs: The inputs of the compiled function, in order.
        whole_step: Whether the joint graph of a loss is captured as a training step: the loss's own
            gradient is one, and gradients of weights are no outputs.

    Raises:
        GraphError: The graph has side effects that a capture cannot hold.
    """
    graph = module.graph
    names = UniqueNames()
    ports: dict[Node, Port] = {}
    argument_names: list[str] = []
    storage: dict[str, StorageSlice] = {}
    for node in graph.nodes:
        if node.op != "placeholder":
            continue
        graph_input, is_tangent = _described_input(node, inputs)
        name = names.next(graph_input.name)
        argument_names.append(name)
        if isinstance(node.meta.get("val"), torch.Tensor):
            role = "tangent" if is_tangent and whole_step else graph_input.role
            ports[node] = Port(role, name, node)
            if graph_input.storage is not None:
                storage[name] = graph_input.storage
    outputs = [*_changes(graph, ports), *_outputs(graph, ports, whole_step)]
    changed = {port.target for port in outputs if port.role == "change"}
    # A buffer that changes is passed to every call, as an argument is.
    final_ports = [
        Port("input", port.target, port.node) if port.target in changed else port
        for port in ports.values()
    ]
    return Capture(
        graph,
        tuple(final_ports),
        tuple(outputs),
        {name: place for name, place in storage.items() if name not in changed},
        (),
        "",
        tuple(argument_names),
        draws=tuple(node for node in graph.nodes if draws_unread_numbers(node)),
    )


def gradient_input(descriptor: Any) -> int | None:
    """Which input of the compiled function an output of a backward graph is the gradient of."""
    from torch._functorch._aot_autograd import descriptors as kinds

    if isinstance(descriptor, kinds.GradAOTOutput) and isinstance(
        descriptor.grad_of, kinds.PlainAOTInput
    ):
        return int(descriptor.grad_of.idx)
    return None


def is_saved(descriptor: Any) -> bool:
    """Whether an output of a forward graph is saved for its backward graph."""
    return "Saved" in type(descriptor).__name__


def draws_unread_numbers(node: Node) -> bool:
    """Whether a node draws random numbers that nothing reads."""
    tags = getattr(node.target, "tags", ())
    return not node.users and torch.Tag.nondeterministic_seeded in tags


def output_nodes(graph: torch.fx.Graph) -> list[tuple[Any, Any]]:
    """What a graph returns, each with its descriptor: a node, a constant or None."""
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    values: Any = output.args[0]
    descriptors = output.meta.get("desc") or [None] * len(values)
    return list(zip(values, descriptors, strict=True))


def changed_inputs(graph: torch.fx.Graph) -> set[Node]:
    """The inputs whose memory a graph writes to."""
    changed: set[Node] = set()
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        for index, argument in enumerate(() if schema is None else schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = node.kwargs.get(argument.name)
                value = node.args[index] if index < len(node.args) else value
                values = value if isinstance(value, list | tuple) else [value]
                changed |= {item for item in values if isinstance(item, Node)}
    return {node for node in changed if node.op == "placeholder"}


def name_ops(module: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> None:
    """Name the ops of a joint graph as a plan of a training step names them.

    Forward and backward graphs that are cut from it keep the names.
    """
    builder = TorchGraphBuilder(capture_aot_graph(module, inputs))
    builder.add_sources()
    builder.add_nodes()
    for position, node in builder.op_nodes.items():
        node.meta[OP_NAME] = builder.ops[position].name


def _described_input(node: Node, inputs: Sequence[GraphInput]) -> tuple[GraphInput, bool]:
    """The input that a placeholder stands for, and whether it is the gradient of an output."""
    from torch._functorch._aot_autograd import descriptors as kinds

    descriptor = node.meta.get("desc")
    if isinstance(descriptor, kinds.PlainAOTInput):
        return inputs[descriptor.idx], False
    if isinstance(descriptor, kinds.TangentAOTInput):
        return GraphInput(f"tangents.{node.name}"), True
    if isinstance(descriptor, kinds.ForwardTokenAOTInput | kinds.BackwardTokenAOTInput):
        raise GraphError("the graph has side effects that are ordered by tokens")
    return GraphInput(f"saved.{node.name}"), False


def _changes(graph: torch.fx.Graph, ports: Mapping[Node, Port]) -> list[Port]:
    """The inputs that the graph changes, each with its new value."""
    changes = []
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        target: Any = node.args[0] if node.args else None
        if node.target is torch.ops.aten.copy_.default and target in ports:
            changes.append(Port("change", ports[target].target, node.args[1]))
        elif any(spec_layout != torch.strided for spec_layout in _layouts(node)):
            raise GraphError(f"op {op_name(node)!r} makes a tensor that is not dense")
        elif "rng_state" in op_name(node):  # of a checkpoint that draws its numbers again
            raise GraphError(f"op {op_name(node)!r} restores the state of a random generator")
        elif (
            not node.users
            and node.is_impure(impure_random=False)  # an op may draw numbers that nothing reads
            and op_name(node) not in _CHECKS
        ):
            raise GraphError(f"op {op_name(node)!r} has a side effect")
        elif getattr(getattr(node.target, "_schema", None), "is_mutable", False):
            raise GraphError(f"op {op_name(node)!r} changes its input")
    return changes


def _layouts(node: Node) -> list[torch.layout]:
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    return [item.layout for item in values if isinstance(item, torch.Tensor)]


def _outputs(graph: torch.fx.Graph, ports: Mapping[Node, Port], whole_step: bool) -> list[Port]:
    """The tensors that the graph computes and returns; those that it passes on are left out."""
    name_of = {
        node.meta["desc"].idx: port.target
        for node, port in ports.items()
        if hasattr(node.meta.get("desc"), "idx")
    }
    outputs = []
    for node, descriptor in output_nodes(graph):
        if not isinstance(node, Node) or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        index = gradient_input(descriptor)
        if whole_step and index is not None:
            outputs.append(Port("gradient", name_of[index], node))
        elif node not in ports:
            outputs.append(Port("output", "", node))
    return outputs


def preserve_whole_ops() -> contextlib.AbstractContextManager[Any]:
    """Let AOTAutograd keep `WHOLE_OPS`, as a capture for planning does; for graphs of inference."""
    try:
        from torch.export import exported_program as private
    except ImportError:  # the graph then has the parts of these ops, which is as right
        return contextlib.nullcontext()
    exported: Any = private
    packets = [getattr(torch.ops.aten, name) for name in sorted(WHOLE_OPS)]
    ops = [getattr(packet, overload) for packet in packets for overload in packet.overloads()]
    composite = "CompositeImplicitAutograd"
    rules = {
        op: _whole_unless_restricted(exported._get_decomp_for_cia(op))
        for op in ops
        if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), composite)
        and not op._schema.is_mutable
    }
    scope: contextlib.AbstractContextManager[Any] = exported._override_composite_implicit_decomp(
        rules
    )
    return scope


def _whole_unless_restricted(decompose: Callable[..., Any]) -> Callable[..., Any]:
    """Keep an op whole, but not where the model chooses attention kernels for its code."""

    def rule(*args: Any, **kwargs: Any) -> Any:
        return NotImplemented if all_attention_kernels() else decompose(*args, **kwargs)

    return rule


def all_attention_kernels() -> bool:
    """Whether PyTorch may choose among all kernels of attention."""
    cuda: Any = torch.backends.cuda
    return bool(
        cuda.flash_sdp_enabled() and cuda.mem_efficient_sdp_enabled() and cuda.math_sdp_enabled()
    )


def backward_without_autocast() -> contextlib.AbstractContextManager[Any]:
    """Let AOTAutograd trace backward passes without autocast, as PyTorch runs them."""
    config: Any = torch._functorch.config
    if not hasattr(config, "backward_pass_autocast"):
        return contextlib.nullcontext()
    scope: contextlib.AbstractContextManager[Any] = config.patch(backward_pass_autocast="off")
    return scope
