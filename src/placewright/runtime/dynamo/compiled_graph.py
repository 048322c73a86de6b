"""A compiled graph: one graph of TorchDynamo's, run under a plan by an executor."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any

import torch

from placewright.errors import ExecutionError, GraphError, PlanError
from placewright.frontends.pytorch.aot_graph import (
    capture_aot_graph,
    changed_inputs,
    gradient_input,
    is_saved,
    output_nodes,
)
from placewright.frontends.pytorch.graph import TorchGraphBuilder
from placewright.graph import Graph
from placewright.runtime.dynamo.call_checks import IS_TORCH_2_11
from placewright.runtime.dynamo.double_backward import refuse_double_backward
from placewright.runtime.dynamo.graph_outputs import GraphCall, GraphOutputs
from placewright.runtime.dynamo.static_graph import make_static
from placewright.runtime.dynamo.steps import CallNotServed, CallResolved, NotInFlight, ResolvedCall
from placewright.runtime.dynamo.undefined_gradients import GradientSources, undefined_outputs
from placewright.runtime.planned_calls import choose_plan
from placewright.runtime.program.dropout import replace_cpu_kernels
from placewright.runtime.program.program import Program, find_sources, program_output
from placewright.runtime.program.runners import module_attribute
from placewright.runtime.program.scalars import Scalars, is_scalar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from placewright.frontends.pytorch.aot_graph import GraphInput
    from placewright.runtime.dynamo.backend import PlanBackend
    from placewright.runtime.dynamo.graph_outputs import JointGraph
    from placewright.runtime.executor import Executor
    from placewright.runtime.program.optimizer_step import OptimizerRule


MAX_STATIC_GRAPHS = 16
"""Sizes for which a symbolic graph has a form of its own; those not used for longest go."""

logger = logging.getLogger("placewright")


@contextlib.contextmanager
def models_own_errors() -> Iterator[None]:
    """Raise what an op raised where the executor says that it failed, as the model itself does."""
    try:
        yield
    except ExecutionError as error:
        if error.__cause__ is None:
            raise
        error.__cause__.add_note(str(error))
        raise error.__cause__ from None


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
        self.is_symbolic = any(is_scalar(node) for node in self.placeholders)
        """Whether it has symbolic sizes, so that it serves many shapes."""
        self._static_graphs: OrderedDict[tuple[int, ...], CompiledGraph | None] = OrderedDict()
        self.is_step = program is not None
        self.program = program
        self.reason = ""
        """Why an executor does not run it; empty: one does."""
        try:
            if self.program is None:
                self.program = build_graph_program(module, inputs)
            self.match_plan()
        except (GraphError, PlanError) as error:
            if self.is_step:  # the graph alone would train nothing
                raise
            self.program, self.reason = None, str(error)
            replace_cpu_kernels(module)
        self.executor: Executor | None = None
        self._process = 0
        self._addresses: list[int] = []
        self._find_changes()
        self._find_outputs()
        if self.program is not None:
            self._constants = _constants(self.program)
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
        for graph in self.static_graphs:
            graph.match_plan()

    def _find_changes(self) -> None:
        """Find the arguments that the graph changes, and those of them that it saves."""
        changed = changed_inputs(self.module.graph)
        saved = {node for node, kind in output_nodes(self.module.graph) if is_saved(kind)}
        self._changed_indices = [
            index for index, node in enumerate(self.placeholders) if node in changed
        ]
        self._saved_states = [
            index
            for index in self._changed_indices
            if self.placeholders[index] in saved and not self.is_step
        ]

    def _find_outputs(self) -> None:
        """Find what the graph returns, and which outputs its gradients depend on."""
        graph, joint = self.module.graph, self.joint
        kinds = [kind for _, kind in output_nodes(graph)]
        trains = any(is_saved(kind) or gradient_input(kind) is not None for kind in kinds)
        self._gradient_inputs = [
            (index, node.meta["desc"].idx)
            for index, node in enumerate(self.placeholders)
            if trains and hasattr(node.meta.get("desc"), "idx") and not is_scalar(node)
        ]
        """Where inputs of the compiled function are among the arguments, if gradients follow."""
        if not any(node.name.startswith("tangents") for node in self.placeholders):
            joint.outputs = [kind for _, kind in output_nodes(graph) if not is_saved(kind)]
        self._gradient_sources = GradientSources(graph, joint.outputs)
        backend = self.backend
        scalars = None if self.program is None else self.program.scalars

        def new_outputs(computed: bool) -> GraphOutputs:
            return GraphOutputs(
                graph, joint, lambda: backend.output_device, scalars, self.is_step, computed
            )

        self._program_outputs = new_outputs(computed=True)
        self._module_outputs = new_outputs(computed=False)

    @property
    def static_graphs(self) -> list[CompiledGraph]:
        """The graphs of single sizes that were made of this one."""
        return [graph for graph in self._static_graphs.values() if graph is not None]

    def at_sizes(self, args: Sequence[Any]) -> CompiledGraph:
        """The graph for the sizes of a call, with numbers in place of symbols, if it can be made.

        TorchDynamo traces nothing for that; and CUDA graphs can be captured of it.
        """
        sizes = tuple(value for value in args if isinstance(value, int))
        if sizes not in self._static_graphs:
            graph = None
            try:
                module = make_static(self.module, args)
                graph = CompiledGraph(module, self.inputs, self.backend, self.joint)
            except Exception as error:  # the symbolic graph serves the call, too
                logger.debug("a graph has no form for sizes %s: %s", sizes, error)
            is_right = graph is not None and graph.program is not None and not graph.is_symbolic
            self._static_graphs[sizes] = graph if is_right else None
            if len(self._static_graphs) > MAX_STATIC_GRAPHS:
                oldest = self._static_graphs.popitem(last=False)[1]
                if oldest is not None:
                    oldest.close()
        self._static_graphs.move_to_end(sizes)
        return self._static_graphs[sizes] or self

    def __call__(self, args: list[Any]) -> list[Any]:
        """Run the graph on flat arguments, under AOTAutograd's convention."""
        if self.backend.has_fixed_length and self.is_symbolic:
            with self.backend.lock:
                graph = self.at_sizes(args)
            if graph is not self:
                return graph(args)
        for index, input_index in self._gradient_inputs:
            self.joint.input_devices[input_index] = args[index].device
        if self._changed_indices:
            self._check_overlap(args)
        if not self._gradient_sources.has_tangents:
            return self._run(args)
        undefined = undefined_outputs()
        gradients = self._gradient_sources.without_undefined(self._run(args), undefined)
        is_differentiated = IS_TORCH_2_11 and torch.is_grad_enabled()
        return refuse_double_backward(gradients) if is_differentiated else gradients

    def _run(self, args: Sequence[Any]) -> list[Any]:
        """The outputs: by the executor, or as PyTorch runs the graph."""
        backend = self.backend
        if _is_batched(args):  # by vmap, which does not reach into other threads
            return self._run_module(args)
        with backend.lock:
            backend.count_run()
            if backend.delivery is not None:
                return self._deliver(args)
            if backend.dry_run is not None:
                values = backend.dry_run.run(self, args)
                return self._program_outputs.of(GraphCall(args, args, values))
            if backend.is_resolving:
                if self.reason:
                    raise NotInFlight(f"a graph of this call runs eagerly: {self.reason}")
                raise CallResolved(ResolvedCall(self, list(args), self._saved(args)))
            if self.program is not None:
                saved = self._saved(args)
                return self._program_outputs.of(GraphCall(args, saved, self._run_step(args)))
        return self._run_module(args)

    def _run_module(self, args: Sequence[Any]) -> list[Any]:
        saved = self._saved(args)
        with self.backend.eager_scope(), torch.no_grad():
            values = list(self.module(*args))
        return self._module_outputs.of(GraphCall(args, saved, values))

    def _saved(self, args: Sequence[Any]) -> Sequence[Any]:
        """The arguments as the backward graph shall see them.

        What is saved of a state is its value before the call.
        """
        if not self._saved_states:
            return args
        saved = list(args)
        for index in self._saved_states:
            saved[index] = args[index].clone()
        return saved

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
                raise CallNotServed("an argument shares memory with one that the call changes")

    def _run_step(self, args: Sequence[Any]) -> list[torch.Tensor]:
        """Run a step; an op that fails raises what it would raise in the model itself."""
        step = 0 if self.executor is None else self.executor.step_count
        with self.backend.limited_memory(step):
            number = self.submit(args)
            assert self.executor is not None
            with models_own_errors():
                return self.executor.outputs_or_close(number)

    def submit(self, args: Sequence[Any]) -> int:
        """Begin a step; the executor knows it by the returned number."""
        assert self.program is not None
        if self.backend.memory_limits is not None:
            self.backend.memory_limits.check(self, args)
        tensors = {at: args[leaf] for at, leaf in self.program.input_leaves.items()}
        executor, scalars = self.ready_executor(args), self.program.scalars
        if executor.takes_memory_of_another_thread(tensors):
            executor.finish_steps()
            self.close()
            executor = self.ready_executor(args)
        if scalars is not None:
            if scalars.differ(args):
                executor.finish_steps()  # which run with the numbers that are bound now
            scalars.bind(args)
        return executor.submit_tensors(tensors)

    def _deliver(self, args: Sequence[Any]) -> list[Any]:
        assert self.backend.delivery is not None
        (call, values), self.backend.delivery = self.backend.delivery, None
        saved = call.saved
        if call.graph is not self:  # another graph serves the call by now
            saved, values = self._saved(args), self._run_step(args)
        if self.program is not None and self.program.scalars is not None:
            self.program.scalars.bind(args)
        return self._program_outputs.of(GraphCall(args, saved, values))

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
                self.program, self.plan, weights | self._constants, args
            )
            self._addresses = [tensor.data_ptr() for tensor in weights.values()]
            self._process = os.getpid()
        self.backend.executors.use(self)
        return self.executor

    def close(self) -> None:
        """Stop the executor's threads; the next call starts them again."""
        for graph in self.static_graphs:
            graph.close()
        if self.executor is not None and self._process == os.getpid():
            self.executor.close()
        self.executor = None


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
