"""Builds the Graph of a captured PyTorch model: ops with costs, names, modules and phases."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from placewright.errors import GraphError
from placewright.frontends import op_costs
from placewright.frontends.graph_builder import UniqueNames, arithmetic_dtype
from placewright.frontends.pytorch.errors import at_op
from placewright.frontends.pytorch.op_rules import IDENTITY
from placewright.frontends.pytorch.shapes import (
    has_unknown_size,
    node_specs,
    op_name,
)
from placewright.frontends.pytorch.writes import (
    GETITEM,
    changed_states,
    describe_nodes,
    schedule_writes,
)
from placewright.graph import INPUT, STATE, VIEW, WEIGHT, Graph, Op, Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.frontends.pytorch.capture import (
        Capture,
        Port,
        StorageSlice,
    )
    from placewright.frontends.pytorch.op_rules import NodeDescription
    from placewright.frontends.pytorch.shapes import Node

OP_NAME = "placewright_op_name"
"""The key of a node's meta data under which it has the name of its op already."""

STATE_TENSORS = {"sgd": 0, "momentum": 1, "adam": 2}
"""Number of state tensors that an optimizer keeps per weight, each as large as the weight."""


def build_graph(capture: Capture, name: str, optimizer: str | None) -> Graph:
    """The graph of a capture; with an optimizer, its updates too.

    Raises:
        GraphError: The model returns no tensor, or a training step has no backward ops.
    """
    return graph_and_builder(capture, name, optimizer)[0]


def graph_and_builder(
    capture: Capture, name: str, optimizer: str | None
) -> tuple[Graph, TorchGraphBuilder]:
    """The graph of a capture, and the builder, which knows the node of each op."""
    builder = TorchGraphBuilder(capture)
    builder.add_sources()
    builder.add_nodes()
    outputs = builder.outputs()
    if not outputs:
        raise GraphError(f"model {name!r} returns no tensor: there is nothing to compute")
    if optimizer is not None:
        if not any(op.phase == "backward" for op in builder.ops):
            raise GraphError(
                f"model {name!r} has no backward ops: no parameter that requires a gradient "
                "reaches its first floating-point output"
            )
        builder.add_updates(optimizer)
    op_costs.warn_unknown_ops("torch", builder.unknown_ops)
    unknown_sizes = sum(has_unknown_size(node) for node in builder.descriptions)
    if unknown_sizes:
        op_costs.logger.warning(
            "%d ops of %r make tensors whose sizes depend on values: the largest sizes are used",
            unknown_sizes,
            name,
        )
    return Graph(name, tuple(builder.ops), outputs), builder


class TorchGraphBuilder:
    """Builds the graph of a capture op by op."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.descriptions = describe_nodes(capture)
        self.read_nodes = {
            source for description in self.descriptions.values() for source in description.reads
        }
        self.ops: list[Op] = []
        self.names = UniqueNames()
        self.unknown_ops: Counter[str] = Counter()
        self.node_tensors: dict[Node, list[Tensor | None]] = {}  # the tensors of a node's outputs
        self.source_tensors: dict[str, Tensor] = {}  # of each weight, state and input, by name
        self.forward_ops: dict[int, Op] = {}  # autograd's sequence number → its first forward op
        self.op_nodes: dict[int, Node] = {}  # the node of each op
        self.nodes_with_ops: set[Node] = set()  # the nodes that became ops
        self.source_nodes: dict[Tensor, Node] = {}  # the placeholder of each source
        self.state_updates: dict[str, Tensor] = {}  # the new value of each changed state, by name
        self.update_gradients: dict[int, list[Node]] = {}  # the gradients that an update reads

    def add_sources(self) -> None:
        """Add what exists before the step: weights, states, constants and inputs."""
        state_names = changed_states(self.capture)
        tensor_of_storage: dict[StorageSlice, Tensor] = {}
        for port in self.capture.inputs:
            spec = node_specs(port.node)[0]
            is_unread = port.node not in self.read_nodes and port.target not in state_names
            if spec is None or port.role == "tangent" or (port.role == "buffer" and is_unread):
                continue
            storage = self.capture.storage.get(port.target)
            if storage is None or storage not in tensor_of_storage:
                kind = INPUT if port.role == "input" else WEIGHT
                kind = STATE if port.target in state_names else kind
                tensor = self._add_source(port.target, kind, spec.bytes, spec.dtype)
                if storage is not None:
                    tensor_of_storage[storage] = tensor
            else:
                tensor = tensor_of_storage[storage]  # another name of the same weight
            self.node_tensors[port.node] = [tensor]
            self.source_tensors[port.target] = tensor
            self.source_nodes.setdefault(tensor, port.node)
        for target in self.capture.parameters:
            storage = self.capture.storage[target]
            if storage not in tensor_of_storage:  # unread, but it takes memory
                tensor_of_storage[storage] = self._add_source(
                    target, WEIGHT, storage.bytes, storage.dtype
                )

    def _add_source(self, name: str, kind: str, size: int, dtype: str) -> Tensor:
        module = name.rpartition(".")[0]
        return self._add(Op(name, kind, outputs=(size,), dtype=dtype, module=module))

    def _add(self, op: Op) -> Tensor:
        """Add an op under a unique name."""
        name = self.names.next(op.name)
        self.ops.append(op if name == op.name else replace(op, name=name))
        return len(self.ops) - 1, 0

    def add_nodes(self) -> None:
        """Add the op of every node, and the write of every changed state as early as possible."""
        writes_due = schedule_writes(self.capture, self.descriptions)
        for port in writes_due.pop(None, ()):
            self._add_state_write(port)
        for node, description in self.descriptions.items():
            if description.kind == GETITEM:
                output = int(str(node.args[1]))
                self.node_tensors[node] = [self.node_tensors[description.reads[0]][output]]
            elif description.kind == IDENTITY:
                self.node_tensors[node] = [self._tensor_of(description.reads[0])]
            else:
                with at_op(op_name(node)):
                    self._add_node(node, description)
            for port in writes_due.get(node, ()):
                self._add_state_write(port)

    def _add_node(self, node: Node, description: NodeDescription) -> None:
        inputs = tuple(self._tensor_of(source) for source in description.reads)
        specs = node_specs(node)
        sizes = tuple(tensor.bytes for tensor in specs if tensor)
        if description.kind == VIEW and self._is_whole_weight(inputs[0], sizes):
            self.node_tensors[node] = [inputs[0]]
            return
        if description.kind not in op_costs.KNOWN_KINDS:
            self.unknown_ops[description.kind] += 1
        input_specs = [spec for source in description.reads if (spec := node_specs(source)[0])]
        flops, moved = op_costs.cost(
            description.kind,
            input_specs,
            [spec for spec in specs if spec],
            **description.attributes,
        )
        module, phase = self._module_path(node, inputs), _phase(node)
        name = self._full_name(node, module, phase)
        aliases = description.aliases
        if description.kind == VIEW and not aliases:
            aliases = tuple((output, 0) for output in range(len(sizes)))
        position, _ = self._add(
            Op(
                name,
                description.kind,
                tuple(dict.fromkeys(inputs)),
                sizes,
                flops,
                moved,
                dtype=arithmetic_dtype([*input_specs, *(spec for spec in specs if spec)], -1),
                module=module,
                phase=phase,
                aliases=aliases,
            )
        )
        if phase == "forward":
            self.forward_ops.setdefault(node.meta.get("seq_nr", -1), self.ops[position])
        self.op_nodes[position] = node
        self.nodes_with_ops.add(node)
        outputs = iter(range(len(sizes)))
        self.node_tensors[node] = [(position, next(outputs)) if spec else None for spec in specs]

    def _tensor_of(self, node: Node) -> Tensor:
        """The tensor of a node; adds constants and the loss's gradient when they are first read."""
        if node not in self.node_tensors:
            (spec,) = node_specs(node)
            assert spec is not None
            if node.op == "get_attr":
                self.node_tensors[node] = [
                    self._add_source(str(node.target), WEIGHT, spec.bytes, spec.dtype)
                ]
            else:
                loss_node = next(
                    port.node for port in self.capture.outputs if port.role == "output"
                )
                op = Op("loss.backward.ones", "copy", (self._tensor_of(loss_node),), (spec.bytes,))
                op = replace(op, bytes_moved=spec.bytes, dtype=spec.dtype, phase="backward")
                self.node_tensors[node] = [self._add(op)]
        tensor = self.node_tensors[node][0]
        assert tensor is not None
        return tensor

    def _is_whole_weight(self, tensor: Tensor, sizes: tuple[int, ...]) -> bool:
        """Whether a view of these sizes covers a whole weight, so that readers can read that."""
        op = self.ops[tensor[0]]
        return op.kind == WEIGHT and sizes == op.outputs

    def _module_path(self, node: Node, inputs: Sequence[Tensor]) -> str:
        """The path of a node's module, or else of the module of its last input."""
        stack = _module_stack(node)
        if stack:
            path = re.sub(r"@\d+", "", list(stack.values())[-1][0])
            prefix = self.capture.prefix
            return "" if path + "." == prefix else path.removeprefix(prefix)
        return self.ops[inputs[-1][0]].module if inputs else ""

    def _full_name(self, node: Node, module: str, phase: str) -> str:
        """The module's path and the op's name; for a backward op, the forward op's name first.

        Sums of gradients have no forward op.
        """
        if OP_NAME in node.meta:
            return str(node.meta[OP_NAME])
        name = _short_name(op_name(node))
        if phase == "forward":
            return f"{module}.{name}" if module else name
        forward = self.forward_ops.get(node.meta.get("seq_nr", -1)) if _module_stack(node) else None
        owner = forward.name if forward and forward.module == module else module
        name = re.sub(r"^(.*_)?backward(_data)?$", "", name)
        return ".".join(part for part in (owner, "backward", name) if part)

    def _add_state_write(self, port: Port) -> None:
        """Let the op that computes a state's new value write it in place, or else add a copy."""
        state, (position, output) = self.source_tensors[port.target], self._tensor_of(port.node)
        self.state_updates[port.target] = (position, output)
        op, state_op = self.ops[position], self.ops[state[0]]
        (size,) = state_op.outputs
        is_free = output not in [alias_output for alias_output, _ in op.aliases] and op.kind != VIEW
        if state in op.inputs and is_free and op.outputs[output] == size:
            aliases = (*op.aliases, (output, op.inputs.index(state)))
            self.ops[position] = replace(op, aliases=aliases)
        elif not self._is_written(position, output, state):
            self.state_updates[port.target] = self._add(
                Op(
                    f"{port.target}.write",
                    "copy",
                    ((position, output), state),
                    (size,),
                    bytes_moved=op.outputs[output] + size,
                    dtype=state_op.dtype,
                    module=state_op.module,
                    aliases=((0, 1),),
                )
            )

    def _is_written(self, position: int, output: int, state: Tensor) -> bool:
        """Whether a tensor shares the memory of the state already."""
        while (position, output) != state:
            op = self.ops[position]
            source = dict(op.aliases).get(output)
            if source is None:
                return False
            position, output = op.inputs[source]
        return True

    def outputs(self) -> tuple[Tensor, ...]:
        """The tensors that the model returns, and gradients of inputs."""
        inputs = {port.target for port in self.capture.inputs if port.role == "input"}
        output_tensors = [
            self._tensor_of(port.node)
            for port in self.capture.outputs
            if port.role == "output" or (port.role == "gradient" and port.target in inputs)
        ]
        return tuple(dict.fromkeys(output_tensors))

    def add_updates(self, optimizer: str) -> None:
        """Add an update for each weight that gets a gradient, on the weight's device."""
        gradients: dict[Tensor, list[Node]] = {}
        for port in self.capture.outputs:
            if (
                port.role == "gradient"
                and self.ops[self.source_tensors[port.target][0]].kind == WEIGHT
            ):
                gradients.setdefault(self.source_tensors[port.target], []).append(port.node)
        for weight, nodes in gradients.items():
            gradient_tensors = [self._tensor_of(node) for node in nodes]
            weight_op = self.ops[weight[0]]
            self.ops[weight[0]] = replace(weight_op, colocate=weight_op.name)
            size = weight_op.outputs[0]
            spec = op_costs.TensorSpec(
                (size * 8 // op_costs.bits(weight_op.dtype),), weight_op.dtype
            )
            state_count = STATE_TENSORS[optimizer]
            flops, moved = op_costs.cost(
                "optimizer",
                [spec] * (1 + len(gradient_tensors) + state_count),
                [spec] * (1 + state_count),
                ops=op_costs.OPTIMIZER_FLOPS[optimizer],
            )
            position, _ = self._add(
                Op(
                    f"{weight_op.name}.update",
                    "optimizer",
                    (weight, *gradient_tensors),
                    flops=flops,
                    bytes_moved=moved,
                    resident=state_count * size,
                    dtype=weight_op.dtype,
                    module=weight_op.module,
                    phase="update",
                    colocate=weight_op.name,
                )
            )
            self.update_gradients[position] = nodes


def _short_name(name: str) -> str:
    """An op's name without the affixes of PyTorch's variants."""
    if "scaled_dot_product" in name:
        return "attention_backward" if name.endswith("_backward") else "attention"
    name = name.replace("::", ".").strip("_").removeprefix("native_")
    return re.sub(r"_legit\w*", "", name)


def _module_stack(node: Node) -> Mapping[str, tuple[str, str]] | None:
    """The modules, outermost first, whose call produced a node or its forward op."""
    return node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")


def _phase(node: Node) -> str:
    return "backward" if node.meta.get("partitioner_tag") == "is_backward" else "forward"
