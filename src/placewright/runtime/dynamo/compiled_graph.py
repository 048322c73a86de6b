"""A compiled graph: one graph of TorchDynamo's, run under a plan by an executor."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from placewright.errors import ExecutionError, GraphError, PlanError
from placewright.frontends.pytorch.aot_graph import (
    capture_aot_graph,
    gradient_input,
    is_saved,
    output_nodes,
)
from placewright.frontends.pytorch.graph import TorchGraphBuilder
from placewright.frontends.pytorch.shapes import Node
from placewright.frontends.pytorch.writes import changed_states
from placewright.graph import Graph
from placewright.runtime.dynamo.steps import CallResolved, ResolvedCall
from placewright.runtime.dynamo.undefined_gradients import GradientSources, undefined_outputs
from placewright.runtime.planned_calls import choose_plan
from placewright.runtime.program.dropout import replace_cpu_kernels
from placewright.runtime.program.program import Program, find_sources, program_output
from placewright.runtime.program.runners import module_attribute
from placewright.runtime.program.scalars import Scalars, is_scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from placewright.frontends.pytorch.aot_graph import GraphInput
    from placewright.runtime.dynamo.backend import PlanBackend
    from placewright.runtime.executor import Executor
    from placewright.runtime.program.optimizer_step import OptimizerRule

    GetOutput = Callable[[Sequence[torch.Tensor], Sequence[Any]], Any]
    """An output of the graph, from the executor's outputs and the arguments of the call."""


class ArgumentsOverlap(Exception):
    """Arguments of a call share memory that it changes, so that its graph does not serve it."""


@dataclass
class JointGraph:
    """What a forward graph and its backward graph share.

    Args:
        input_devices: The device of each input of the compiled function, by index. A forward graph
            writes it in every call; its backward graph returns each gradient on that device.
        outputs: The descriptors of what the forward graph returns to the caller, in order.
    """

    input_devices: dict[int, torch.device] = field(default_factory=dict)
    outputs: Sequence[Any] = ()


class CompiledGraph:
    """A graph of AOTAutograd's: forward, backward or of inference.

    Args:
        module: The graph; its inputs and outputs are flat.
        inputs: The inputs of the function that TorchDynamo compiled.
        joint: What a forward graph and its backward graph share.
        program: What to run in place of the graph: the whole training step that it begins. What
            the graph would save for its backward graph is then left empty.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        inputs: Sequence[GraphInput],
        backend: PlanBackend,
        joint: JointGraph,
        program: Program | None = None,
    ) -> None:
        self.module, self.backend, self.joint = module, backend, joint
        self.inputs = inputs
        self.placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.is_step = program is not None
        self.program = program
        self.reason = ""
        """Why an executor does not run it; empty: one does."""
        try:
            if self.program is None:
                self.program = build_graph_program(module, inputs)
            self.match_plan()
        except (GraphError, PlanError) as error:
            self.program, self.reason = None, str(error)
            replace_cpu_kernels(module)
        self._changed_indices: list[int] = []
        self._saved_states: list[int] = []
        self.executor: Executor | None = None
        self._process = 0
        self._addresses: list[int] = []
        self._snapshots: dict[int, torch.Tensor] = {}
        self._get_outputs = self._output_getters()
        if not any(node.name.startswith("tangents") for node in self.placeholders):
            joint.outputs = [
                descriptor
                for _, descriptor in output_nodes(module.graph)
                if not is_saved(descriptor)
            ]
        self._gradient_sources = GradientSources(module.graph, joint.outputs)
        if self.program is not None:
            self._constants = _constants(self.program)
            changed = changed_states(self.program.capture)
            self._changed_indices = [
                index
                for index, name in enumerate(self.program.capture.argument_names)
                if name in changed
            ]
            saved_nodes = {
                node for node, descriptor in output_nodes(module.graph) if is_saved(descriptor)
            }
            self._saved_states = [
                index
                for index in self._changed_indices
                if index < len(self.placeholders) and self.placeholders[index] in saved_nodes
            ]
            index_of = {name: at for at, name in enumerate(self.program.capture.argument_names)}
            self._weight_names = {
                position: (source.names, index_of[source.names[0]])
                for position, source in self.program.sources.items()
                if source.role != "input" and position not in self._constants
            }

    def match_plan(self) -> None:
        """Take the backend's plan for this graph.

        Raises:
            PlanError: The plan was made for another model.
        """
        if self.program is not None:
            self.plan = choose_plan(self.backend.planned_calls, self.program.graph)

    @property
    def is_symbolic(self) -> bool:
        """Whether it has symbolic sizes, so that it serves many shapes."""
        return any(is_scalar(node) for node in self.placeholders)

    def __call__(self, args: list[Any]) -> list[Any]:
        """Run the graph on flat arguments, under AOTAutograd's convention."""
        for index, (node, value) in enumerate(zip(self.placeholders, args, strict=True)):
            if isinstance(value, torch.Tensor):
                self.joint.input_devices[getattr(node.meta.get("desc"), "idx", -1 - index)] = (
                    value.device
                )
        backend = self.backend
        if self._changed_indices:
            self._check_overlap(args)
        if _is_batched(args):  # by vmap, which does not reach into other threads
            with torch.no_grad():
                return list(self.module(*args))
        with backend.lock:
            backend.count_run()
            if backend.delivery is not None:
                return self._deliver(args)
            if backend.dry_run is not None:
                return self._outputs(backend.dry_run.run(self, args), args)
            if backend.is_resolving and self.reason:
                raise ExecutionError(f"a graph of this call runs eagerly: {self.reason}")
            if backend.is_resolving:
                raise CallResolved(ResolvedCall(self, list(args)))
            if self.program is not None:
                outputs = self._outputs(self._run(args), args)
                if self._gradient_sources.has_tangents:
                    return self._gradient_sources.without_undefined(outputs, undefined_outputs())
                return outputs
        with backend.eager_scope(), torch.no_grad():
            outputs = list(self.module(*args))
        return [get(outputs, args) for get in self._output_getters(computed=False)]

    def _check_overlap(self, args: Sequence[Any]) -> None:
        """Refuse a call that changes memory which another argument reads, too.

        The graph was traced for arguments that share no memory. Calls that are one graph have done
        nothing before this.
        """
        storages = Counter(
            value.untyped_storage().data_ptr() for value in args if isinstance(value, torch.Tensor)
        )
        for index in self._changed_indices:
            address = args[index].untyped_storage().data_ptr()
            if address and storages[address] > 1:
                raise ArgumentsOverlap("an argument shares memory with one that the call changes")

    def _run(self, args: Sequence[Any]) -> list[torch.Tensor]:
        """Run a step; an op that fails raises what it would raise in the model itself."""
        # What is saved of a state is its value before the call, which the backward pass reads.
        self._snapshots = {index: args[index].clone() for index in self._saved_states}
        number = self.submit(args)
        assert self.executor is not None
        try:
            return self.executor.outputs_or_close(number)
        except ExecutionError as error:
            if error.__cause__ is None:
                raise
            error.__cause__.add_note(str(error))
            raise error.__cause__ from None

    def submit(self, args: Sequence[Any]) -> int:
        """Begin a step; the executor knows it by the returned number."""
        assert self.program is not None
        if self.backend.memory_limits is not None:
            self.backend.memory_limits.check(self, args)
        executor, scalars = self.ready_executor(args), self.program.scalars
        if scalars is not None:
            if scalars.differ(args):
                executor.finish_steps()  # which run with the numbers that are bound now
            scalars.bind(args)
        leaves = self.program.input_leaves
        return executor.submit_tensors({position: args[leaf] for position, leaf in leaves.items()})

    def _outputs(self, values: Sequence[torch.Tensor], args: Sequence[Any]) -> list[Any]:
        return [get(values, args) for get in self._get_outputs]

    def _deliver(self, args: Sequence[Any]) -> list[Any]:
        assert self.backend.delivery is not None
        (call, values), self.backend.delivery = self.backend.delivery, None
        if call.graph is not self:  # another graph serves the call by now
            values = self._run(args)
        if self.program is not None and self.program.scalars is not None:
            self.program.scalars.bind(args)
        return self._outputs(values, args)

    # -- the executor --------------------------------------------------------------------------

    def ready_executor(self, args: Sequence[Any]) -> Executor:
        """The executor, made anew if a weight has moved since, or in a forked process."""
        addresses = [args[index].data_ptr() for _, index in self._weight_names.values()]
        if (
            self.executor is None
            or self.executor.broken
            or addresses != self._addresses
            or self._process != os.getpid()
        ):
            self.close()
            assert self.program is not None
            weights = {
                position: self.backend.own_tensor(names, args[index])
                for position, (names, index) in self._weight_names.items()
            }
            self.executor = self.backend.new_executor(
                self.program, self.plan, weights | self._constants
            )
            self._addresses = [tensor.data_ptr() for tensor in weights.values()]
            self._process = os.getpid()
        self.backend.use(self)
        return self.executor

    def close(self) -> None:
        """Stop the executor's threads; the next call starts them again."""
        if self.executor is not None and self._process == os.getpid():
            self.executor.close()
        self.executor = None

    # -- outputs -------------------------------------------------------------------------------

    def _output_getters(self, computed: bool = True) -> list[GetOutput]:
        """How to get each output.

        Args:
            computed: Whether values are those that the program computes; else they are all outputs.
        """
        index_of = {node: index for index, node in enumerate(self.placeholders)}
        getters: list[GetOutput] = []
        count = 0
        for position, (node, descriptor) in enumerate(output_nodes(self.module.graph)):
            is_node = isinstance(node, Node)
            if is_node and node in index_of:
                getters.append(self._argument_getter(index_of[node], is_saved(descriptor)))
            elif is_node and self.is_step and is_saved(descriptor):
                is_tensor = isinstance(node.meta.get("val"), torch.Tensor)
                getters.append(_empty_tensor if is_tensor else _zero)
            elif is_node and isinstance(node.meta.get("val"), torch.Tensor):
                at = count if computed else position
                getters.append(self._tensor_getter(at, node, descriptor))
                count += 1
            elif is_node and is_scalar(node):
                getters.append(self._scalar_getter(node, position, computed))
            else:
                getters.append(_constant_getter(node))
        return getters

    def _argument_getter(self, index: int, saved: bool) -> GetOutput:
        """An argument that is passed on; one that is saved keeps its data if they are replaced."""
        if not saved or is_scalar(self.placeholders[index]):
            return lambda values, args: args[index]

        def get(values: Sequence[torch.Tensor], args: Sequence[Any]) -> torch.Tensor:
            value: torch.Tensor = self._snapshots.get(index, args[index])
            return value.detach()

        return get

    def _tensor_getter(self, at: int, node: Node, descriptor: Any) -> GetOutput:
        """An output on the device that the caller expects.

        A gradient goes to its input's device, a tensor that the model returns to that of the call,
        and one that is saved for the backward graph stays where it is.
        """
        gradient_of, saved = gradient_input(descriptor), is_saved(descriptor)
        device = None if saved else node.meta["val"].device

        def get(values: Sequence[torch.Tensor], args: Sequence[Any]) -> torch.Tensor:
            value = values[at]
            target = device
            if gradient_of is not None:
                target = self.joint.input_devices.get(gradient_of, device)
            elif device is not None:
                target = self.backend.output_device or device
            if target is not None and value.device != target:
                value = value.to(target)
            if torch.is_inference_mode_enabled() and not value.is_inference():
                shape, strides, offset = value.shape, value.stride(), value.storage_offset()
                empty = torch.empty(0, dtype=value.dtype, device=value.device)
                return empty.set_(value.untyped_storage(), offset, shape, strides)
            return value

        return get

    def _scalar_getter(self, node: Node, position: int, computed: bool) -> GetOutput:
        if not computed:
            return lambda values, args: values[position]

        def get(values: Sequence[torch.Tensor], args: Sequence[Any]) -> Any:
            assert self.program is not None
            assert self.program.scalars is not None
            return self.program.scalars.values[node]

        return get


def _constants(program: Program) -> dict[int, torch.Tensor]:
    """The tensors that a graph holds itself, by position."""
    constants = {}
    for node, tensors in program.builder.node_tensors.items():
        if node.op == "get_attr" and tensors[0] is not None:
            constants[tensors[0][0]] = module_attribute(node)
    return constants


def _is_batched(args: Sequence[Any]) -> bool:
    functorch: Any = torch._C._functorch
    return functorch.peek_interpreter_stack() is not None or any(
        isinstance(value, torch.Tensor) and functorch.is_legacy_batchedtensor(value)
        for value in args
    )


def _constant_getter(value: Any) -> GetOutput:
    return lambda values, args: value


def _empty_tensor(values: object, args: object) -> torch.Tensor:
    return torch.empty(0)


def _zero(values: object, args: object) -> int:
    return 0


def build_graph_program(
    module: torch.fx.GraphModule,
    inputs: Sequence[GraphInput],
    rule: OptimizerRule | None = None,
) -> Program:
    """A program of a graph of AOTAutograd's.

    Args:
        rule: How weights are updated, if the graph is the joint graph of a training step.

    Raises:
        GraphError: It cannot be run op by op.
    """
    capture = capture_aot_graph(module, inputs, whole_step=rule is not None)
    scalars = Scalars(module.graph)
    builder = TorchGraphBuilder(capture)
    builder.add_sources()
    builder.add_nodes()
    if not builder.op_nodes:
        raise GraphError("there is nothing to compute")
    graph_outputs = builder.outputs()
    if rule is not None:
        builder.add_updates(rule.name)
    graph = Graph("graph", tuple(builder.ops), graph_outputs)
    used_scalars = None if scalars.is_empty else scalars
    outputs = tuple(
        program_output(builder, port.node, used_scalars)
        for port in capture.outputs
        if port.role == "output"
    )
    return Program(
        graph, builder, find_sources(graph, builder), outputs, rule=rule, scalars=used_scalars
    )
