"""Program: the Graph of a captured PyTorch model, each op of which can be run.

`program.runner(position, device)` is a function that runs one op: from its input tensors to its
output tensors. A program does not decide on which device or when.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils import _pytree as pytree

from placewright.errors import ConfigError, GraphError
from placewright.frontends.pytorch.capture import (
    Capture,
    capture_model,
    output_template,
)
from placewright.frontends.pytorch.graph import TorchGraphBuilder, graph_and_builder
from placewright.frontends.pytorch.op_rules import IDENTITY
from placewright.frontends.pytorch.shapes import (
    Node,
    layout,
    op_name,
    same_layout,
)
from placewright.frontends.pytorch.values import tensors_in
from placewright.frontends.pytorch.writes import GETITEM
from placewright.graph import INPUT, STATE, VIEW, WEIGHT, Graph, Tensor
from placewright.logs import log_duration
from placewright.runtime.program.host_products import HostKernels, host_product, weight_argument
from placewright.runtime.program.optimizer_step import OptimizerRule, WeightUpdate
from placewright.runtime.program.runners import (
    InputRead,
    Runner,
    View,
    is_random,
    module_attribute,
    node_runner,
    view_function,
)
from placewright.runtime.program.scalars import Scalars, depends_on_scalars

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_CLONES = ("clone", "lift_fresh_copy", "_to_copy")


@dataclass(frozen=True)
class ProgramSource:
    """A tensor that exists before the step: a weight, a state or an input.

    Args:
        role: `parameter`, `buffer`, `constant` or `input`.
        names: Its names in the model; several names share one storage.
        leaf: The index among the leaves of the call's arguments, for an input; else -1.
    """

    position: int
    role: str
    names: tuple[str, ...]
    leaf: int = -1


@dataclass(frozen=True)
class ProgramOutput:
    """One tensor that the model returns.

    Args:
        views: Views of the graph's tensor, to be applied in order.
        copied: Whether the model returns a copy of a weight or a state.
    """

    tensor: Tensor
    views: tuple[View, ...] = ()
    copied: bool = False


@dataclass(frozen=True, eq=False)
class Program:
    """A graph that can be run, op by op.

    Args:
        sources: Weights, states and inputs, by position.
        outputs: The tensors that the model returns, in the order of its own structure; the loss
            alone for a training step.
        template: The model's outputs with shapes and no data; None for a training step.
        gradients: The tensors that sum to each weight's gradient, by name; for a training step.
        rule: How a training step updates its weights.
        scalars: The numbers that symbols stand for, if the graph has symbolic sizes.
    """

    graph: Graph
    builder: TorchGraphBuilder = field(repr=False)
    sources: Mapping[int, ProgramSource] = field(repr=False)
    outputs: tuple[ProgramOutput, ...] = field(repr=False)
    template: Any = field(default=None, repr=False)
    gradients: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict, repr=False)
    rule: OptimizerRule | None = None
    scalars: Scalars | None = field(default=None, repr=False)

    @property
    def capture(self) -> Capture:
        return self.builder.capture

    @property
    def training(self) -> bool:
        return self.rule is not None

    @property
    def changes(self) -> dict[Tensor, Tensor]:
        """Each state that a step changes, and its new value."""
        return {
            self.builder.source_tensors[name]: new
            for name, new in self.builder.state_updates.items()
        }

    @property
    def random_ops(self) -> list[int]:
        """The ops that draw random numbers, in the order in which the model draws them."""
        return [position for position, node in self.builder.op_nodes.items() if is_random(node)]

    @cached_property
    def varying_views(self) -> frozenset[int]:
        """Views of weights whose sizes are each call's own, so that each call makes them."""
        of_weights: set[int] = set()
        for position, op in enumerate(self.graph.ops if self.scalars is not None else ()):
            is_view = op.kind == VIEW and all(source in of_weights for source, _ in op.inputs)
            if op.kind == WEIGHT or is_view:
                of_weights.add(position)
        return frozenset(
            position
            for position in of_weights & set(self.builder.op_nodes)
            if depends_on_scalars(self.builder.op_nodes[position])
        )

    @cached_property
    def input_leaves(self) -> dict[int, int]:
        """Which leaf of a call's arguments each input is, by position."""
        return {
            position: source.leaf
            for position, source in self.sources.items()
            if source.role == "input"
        }

    @cached_property
    def meta_tensors(self) -> dict[Tensor, torch.Tensor]:
        """Shape, layout and dtype of each tensor of the graph: tensors without data."""
        tensors: dict[Tensor, torch.Tensor] = {}
        for node, keys in self.builder.node_tensors.items():
            if node in self.builder.descriptions and node not in self.builder.nodes_with_ops:
                continue  # another name or view of a tensor
            value: Any = node.meta.get("val")
            if value is None and node.op == "get_attr":
                value = module_attribute(node)
            node_values = list(value) if isinstance(value, list | tuple) else [value]
            for key, node_value in zip(keys, node_values, strict=True):
                if key is not None:
                    tensors.setdefault(key, node_value)
        for position, op in enumerate(self.graph.ops):
            if (position, 0) in tensors or not op.outputs:
                continue
            if op.kind == WEIGHT:  # no op reads it
                memory = self.capture.storage[op.name]
                dtype = getattr(torch, memory.dtype)
                size = memory.bytes // dtype.itemsize
                tensors[position, 0] = torch.empty(size, dtype=dtype, device="meta")
            elif op.kind == "optimizer":
                tensors[position, 0] = torch.empty(0, device="meta")
            else:  # a written state
                tensors[position, 0] = tensors[op.inputs[1]]
        return tensors

    def runner(
        self,
        position: int,
        device: torch.device | str,
        in_place: bool = False,
        seed: int | None = None,
        host_kernels: HostKernels = True,
    ) -> Runner:
        """A function that runs one op on a device, from its inputs to its outputs.

        Args:
            in_place: Let an op whose output aliases an input (`Op.aliases`) change that input; else
                it makes a changed copy.
            seed: Seed of random numbers, the same on every device; None: as PyTorch draws them.
            host_kernels: Whether products of few rows on the CPU may use our own kernel.

        Raises:
            GraphError: It is a weight, a state or an input; or it needs a number that depends on a
                tensor's values.
        """
        op, target = self.graph.ops[position], torch.device(device)
        if op.kind in (WEIGHT, STATE, INPUT):
            raise GraphError(f"op {op.name!r} is of kind {op.kind!r}: there is nothing to run")
        if position in self.builder.update_gradients:
            assert self.rule is not None
            nodes = self.builder.update_gradients[position]
            reads = [self._input_read(position, node, target) for node in nodes]
            return WeightUpdate(self.rule, reads)
        if position not in self.builder.op_nodes:
            if op.phase == "backward":
                template = self.meta_tensors[position, 0]
                return lambda values: (
                    torch.ones(template.shape, dtype=template.dtype, device=target),
                )
            if in_place:
                return lambda values: (values[1].copy_(values[0].view_as(values[1])),)
            return lambda values: (values[0].to(values[1].dtype).view_as(values[1]).clone(),)
        node, meaning = (
            self.builder.op_nodes[position],
            self.builder.descriptions[self.builder.op_nodes[position]],
        )
        if in_place and meaning.kind == VIEW and len(meaning.reads) > 1:
            return lambda values: (values[0],)  # written in place already
        slots = {source: self._input_read(position, source, target) for source in meaning.reads}
        is_aliased = in_place and any(output == 0 and source == 0 for output, source in op.aliases)
        is_scatter = is_aliased and meaning.kind == "scatter"
        with_float32 = host_kernels == "float32"
        product = self._host_product(position, node, slots, with_float32) if host_kernels else None
        if target.type != "cpu" or is_scatter:
            product = None
        run = node_runner(node, slots, target, is_scatter, seed, self.scalars, product)
        if position in self.varying_views:  # the memory of a streamed weight is another's later
            return lambda values: [value.clone() for value in run(values)]
        if not in_place or is_scatter or op.kind == VIEW:
            return run
        return partial(_run_in_place, run, op.aliases)

    def _host_product(
        self, position: int, node: Node, slots: Mapping[Node, InputRead], with_float32: bool
    ) -> Callable[..., Any] | None:
        """The function of a product by a weight, with a choice of kernels; None for other ops."""
        at = weight_argument(op_name(node))
        weight = node.args[at] if at is not None and at < len(node.args) else None
        if not isinstance(weight, Node) or weight not in slots:
            return None
        if not self._is_of_weight(self.graph.ops[position].inputs[slots[weight].slot]):
            return None
        target = cast("Callable[..., Any]", node.target)
        return host_product(target, op_name(node), with_float32)

    def _is_of_weight(self, tensor: Tensor) -> bool:
        """Whether a tensor is a weight, or a view of one."""
        op = self.graph.ops[tensor[0]]
        while op.kind == VIEW and len(op.inputs) == 1:
            op = self.graph.ops[op.inputs[0][0]]
        return op.kind == WEIGHT

    def pack_outputs(self, values: Sequence[torch.Tensor]) -> Any:
        """The values of `outputs` in the structure that the model returns."""
        if self.template is None:
            return values[0]
        remaining = iter(values)
        leaves, spec = pytree.tree_flatten(self.template)
        outputs = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                outputs.append(next(remaining))
            elif inner_tensors := tensors_in(leaf):
                memo: dict[int, Any] = {id(tensor): next(remaining) for tensor in inner_tensors}
                outputs.append(copy.deepcopy(leaf, memo))
            else:
                outputs.append(leaf)
        return pytree.tree_unflatten(outputs, spec)

    def _input_read(self, position: int, node: Node, device: torch.device) -> InputRead:
        """How an op reads the value of a node."""
        tensor, views = resolve_tensor(self.builder, node, device, self.scalars)
        return InputRead(self.graph.ops[position].inputs.index(tensor), views)


def build_program(
    model: torch.nn.Module,
    args: Sequence[Any] | torch.Tensor = (),
    kwargs: Mapping[str, Any] | None = None,
    training: bool = False,
    optimizer: str | OptimizerRule | None = None,
    name: str | None = None,
) -> Program:
    """A program of one call of a model, or of one training step; see `from_torch`.

    Args:
        optimizer: Its name, or a rule with its own learning rate.

    Raises:
        GraphError: The model cannot be exported, or its outputs are unknown.
        ConfigError: The optimizer is unknown, or given without training.
    """
    if optimizer is not None and not training:
        raise ConfigError(f"optimizer is {optimizer!r}, but training is false: give training=True")
    rule = OptimizerRule.of(optimizer)
    if not isinstance(model, torch.nn.Module):
        raise GraphError(f"model is of type {type(model).__name__!r}: expected a torch.nn.Module")
    args = (args,) if isinstance(args, torch.Tensor) else tuple(args)
    with log_duration(f"capturing {name or type(model).__name__} with torch.export"):
        capture_result = capture_model(model, args, kwargs or {}, training)
    graph, builder = graph_and_builder(
        capture_result, name or type(model).__name__, rule.name if training else None
    )
    outputs = tuple(
        program_output(builder, port.node)
        for port in capture_result.outputs
        if port.role == "output"
    )
    template = None if training else _output_template(model, args, kwargs or {}, capture_result)
    if template is not None and len(tensors_in(template)) != len(outputs):
        raise GraphError(
            f"model {graph.name!r} returns {len(tensors_in(template))} tensors, its capture "
            f"{len(outputs)}: expected as many"
        )
    gradients: dict[str, tuple[Tensor, ...]] = {}
    for position, nodes in builder.update_gradients.items():
        weight = graph.ops[graph.ops[position].inputs[0][0]].name
        tensors = (resolve_tensor(builder, node, torch.device("cpu"))[0] for node in nodes)
        gradients[weight] = tuple(tensors)
    return Program(
        graph,
        builder,
        find_sources(graph, builder),
        outputs,
        template,
        gradients,
        rule if training else None,
    )


def resolve_tensor(
    builder: TorchGraphBuilder,
    node: Node,
    device: torch.device,
    scalars: Scalars | None = None,
) -> tuple[Tensor, tuple[View, ...]]:
    """The graph's tensor behind a node's value, and the views that make the value of it."""
    views: list[View] = []
    while node in builder.descriptions and node not in builder.nodes_with_ops:
        meaning = builder.descriptions[node]
        if meaning.kind == GETITEM:
            break
        if meaning.kind != IDENTITY:
            views.append(view_function(node, meaning.reads[0], device, scalars))
        node = meaning.reads[0]
    tensor = builder.node_tensors[node][0]
    assert tensor is not None
    if node.op == "placeholder" and tensor in builder.source_nodes:
        sizes, strides = layout(node)
        # It may be another view of the same storage.
        if not same_layout(builder.source_nodes[tensor], node):
            views.append(lambda value: value.as_strided(sizes, strides))
    return tensor, tuple(reversed(views))


def program_output(
    builder: TorchGraphBuilder, node: Node, scalars: Scalars | None = None
) -> ProgramOutput:
    """How a node's value is made of the graph's tensors.

    Clones are no ops, so the value is copied if it, or what it is a view of, is one. So is the new
    value of a state, which may be written into the state itself: the next call changes that.
    """
    tensor, views = resolve_tensor(builder, node, torch.device("cpu"), scalars)
    changed = {port.node for port in builder.capture.outputs if port.role == "change"}
    copied = node in changed
    while node in builder.descriptions and builder.descriptions[node].kind in (IDENTITY, VIEW):
        is_identity = builder.descriptions[node].kind == IDENTITY
        copied = copied or (is_identity and op_name(node) in _CLONES)
        node = builder.descriptions[node].reads[0]
        copied = copied or node in changed
    return ProgramOutput(tensor, views, copied)


def _output_template(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    capture_result: Capture,
) -> Any:
    if not capture_result.value_dependent:
        return output_template(model, args, kwargs)
    with torch.no_grad():
        return model(*args, **kwargs)


def find_sources(graph: Graph, builder: TorchGraphBuilder) -> dict[int, ProgramSource]:
    """The tensors that exist before the step, by position."""
    capture_result, sources = builder.capture, {}
    leaves = {
        name: index for index, name in reversed(list(enumerate(capture_result.argument_names)))
    }
    names: dict[int, list[str]] = {}
    roles: dict[int, str] = {}
    for port in capture_result.inputs:
        keys = builder.node_tensors.get(port.node)
        if port.role != "tangent" and keys and keys[0] is not None:
            position = keys[0][0]
            names.setdefault(position, []).append(port.target)
            roles.setdefault(position, port.role)
    for position, op in enumerate(graph.ops):
        if op.kind in (WEIGHT, STATE, INPUT):
            role = roles.get(
                position, "parameter" if op.name in capture_result.storage else "constant"
            )
            aliases = names.get(position, [op.name])
            memory = capture_result.storage.get(aliases[0])
            aliases += [
                name
                for name, other_memory in capture_result.storage.items()
                if other_memory == memory
            ]
            leaf = leaves[aliases[0]] if role == "input" else -1
            sources[position] = ProgramSource(position, role, tuple(dict.fromkeys(aliases)), leaf)
    return sources


def _run_in_place(
    run: Runner, aliases: Sequence[tuple[int, int]], values: Any
) -> list[torch.Tensor]:
    """Run an op, then copy its outputs into the inputs that they alias."""
    outputs = list(run(values))
    for output, source in aliases:
        outputs[output] = values[source].copy_(outputs[output])
    return outputs
