"""The compiler backend of `torch.compile`: runs TorchDynamo's graphs under a plan.

`PlanBackend(plan, model)` is a backend for one model; `placewright` is the one that
`torch.compile(model, backend="placewright", options={"plan": plan})` finds by name.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import threading
import weakref
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.exc import RestartAnalysis

from placewright import files
from placewright.errors import ConfigError, ExecutionError, GraphError, nearest
from placewright.runtime.cuda.backend import current_backend
from placewright.runtime.dynamo.checkpoints import (
    check_checkpoint_draws,
    check_reentrant,
    has_checkpoint,
)
from placewright.runtime.dynamo.compiled_graph import CompiledGraph
from placewright.runtime.dynamo.executor_cache import ExecutorCache
from placewright.runtime.dynamo.graph_inputs import name_inputs
from placewright.runtime.dynamo.graph_outputs import JointGraph
from placewright.runtime.dynamo.lowering import lower, lower_for_inference
from placewright.runtime.dynamo.metadata_guards import guard_metadata
from placewright.runtime.dynamo.partition import partition_joint_graph
from placewright.runtime.dynamo.steps import CallNotServed, NotInFlight
from placewright.runtime.dynamo.tensor_classes import refuse_tensor_classes
from placewright.runtime.dynamo.undefined_gradients import note_undefined_gradients
from placewright.runtime.eager_checkpoints import rerun_checkpoints
from placewright.runtime.eager_fallback import (
    EagerPlacement,
    memory_caps,
    shortage_text,
)
from placewright.runtime.executor import Executor
from placewright.runtime.planned_calls import PlannedCall
from placewright.runtime.program.host_products import check_host_kernels
from placewright.runtime.real_devices import plan_devices
from placewright.runtime.staging_buffers import planned_sizes
from placewright.runtime.weight_storage import shared_positions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from placewright.frontends.pytorch.aot_graph import GraphInput
    from placewright.plan import Plan
    from placewright.runtime.dynamo.dry_run import DryRun
    from placewright.runtime.dynamo.model_calls import ModelCalls
    from placewright.runtime.dynamo.steps import ResolvedCall
    from placewright.runtime.memory_limits import MemoryLimits
    from placewright.runtime.program.host_products import HostKernels
    from placewright.runtime.program.program import Program
    from placewright.runtime.real_devices import RealDevice

logger = logging.getLogger("placewright")

FIRST_STEPS = 16
"""Steps of an executor in which its ops and CUDA graphs load what they need of libraries."""


class PlanBackend:
    """A backend that runs the graphs of one model under a plan.

    It holds no reference to the model, nor to its tensors but in executors: TorchDynamo keeps a
    backend as long as the code that it compiled.

    Args:
        device_map: Real devices of some of the plan's devices, by name.
        cuda_graphs: Whether runs of ops on a GPU are captured as CUDA graphs; None: if that is
            faster.
        host_kernels: Whether products of few rows on the CPU may use our own kernel, if faster.
        sibling: Another backend of the model; both share buffers, and run one graph at a time.
        planned_calls: Plans for several calls of the model, of which each graph takes the nearest;
            none: all graphs run under `plan`.
    """

    def __init__(
        self,
        plan: Plan,
        model: torch.nn.Module | None = None,
        device_map: Mapping[str, str] | None = None,
        cuda_graphs: bool | None = None,
        sibling: PlanBackend | None = None,
        host_kernels: HostKernels = True,
        planned_calls: Sequence[PlannedCall] = (),
    ) -> None:
        self.device_map, self.cuda_graphs = device_map, cuda_graphs
        check_host_kernels(host_kernels)
        self.host_kernels = host_kernels
        self._set_plan(plan, planned_calls)
        self.real_devices = self._find_devices()
        self.executors: ExecutorCache = (
            ExecutorCache(self._staging_sizes()) if sibling is None else sibling.executors
        )
        self.lock = self.executors.lock
        self.graphs: list[CompiledGraph] = []
        self._model: Callable[[], torch.nn.Module | None] = lambda: None
        self.failures: Counter[str] = Counter()  # why graphs could not be compiled
        self._run_counts = threading.local()
        self.on_compile: list[Callable[[], None]] = []  # called before a graph is compiled
        self.calls: weakref.WeakSet[ModelCalls] = weakref.WeakSet()  # that have graphs
        self.leaves_out_guards = False
        """Whether TorchDynamo leaves out guards of a graph's weights; see `metadata_guards`."""
        self.thread = threading.local()
        """`signature`: of the forward that this thread calls, if it is not the model's."""
        self.memory_limits: MemoryLimits | None = None  # None: calls are not checked
        self.held_tensors: list[Callable[[], Sequence[torch.Tensor]]] = []
        """What lies in memory between two calls, besides weights, such as caches."""
        self.on_short_memory: list[Callable[[], None]] = []  # called to free what is held
        self.dry_run: DryRun | None = None  # graphs that run compute nothing
        self.is_resolving = False
        self.delivery: tuple[ResolvedCall, Sequence[torch.Tensor]] | None = None
        self._outputs = threading.local()
        self._eager: tuple[list[int], EagerPlacement] | None = None
        self._eager_lock = threading.RLock()
        if model is not None:
            self._model = weakref.ref(model)
            weakref.finalize(model, self.close).atexit = False

    def _find_devices(self) -> tuple[RealDevice, ...]:
        return plan_devices(self.plan, self.device_map)

    def _set_plan(self, plan: Plan, planned_calls: Sequence[PlannedCall]) -> None:
        self.plan, self.planned_calls = plan, tuple(planned_calls) or (PlannedCall(plan),)
        self.known_names = dict.fromkeys(
            name for planned_call in self.planned_calls for name in planned_call.plan.ops
        )

    def _staging_sizes(self) -> dict[str, int]:
        return planned_sizes(call.plan for call in self.planned_calls)

    def use_plan(self, plan: Plan, planned_calls: Sequence[PlannedCall] = ()) -> None:
        """Let all graphs, those that are compiled already too, run under another plan.

        It must be for the same devices.
        """
        with self.lock:
            self.close()
            self._set_plan(plan, planned_calls)
            self.executors.replan(self._staging_sizes())
            self._eager = None
            if self.memory_limits:
                self.memory_limits.checked.clear()
            for graph in self.graphs:
                graph.match_plan()

    def __call__(
        self, module: torch.fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        """Compile a graph that TorchDynamo hands over."""
        for callback in self.on_compile:
            callback()
        refuse_tensor_classes(module)
        inputs = self.name_inputs(module)
        compiler = partial(self._compile, inputs, JointGraph())
        needs_gradients = torch.is_grad_enabled() and any(
            isinstance(value, torch.Tensor) and value.requires_grad for value in example_inputs
        )
        if needs_gradients:
            check_reentrant(module)

        def partition(joint: torch.fx.GraphModule, *args: Any, **options: Any) -> Any:
            check_checkpoint_draws(module, joint, self.has_gpus)
            return partition_joint_graph(inputs, joint, *args, **options)

        try:
            if needs_gradients:
                compiled = lower(module, example_inputs, compiler, partition)
            else:
                compiled = lower_for_inference(module, example_inputs, compiler)
        except RestartAnalysis:  # TorchDynamo traces again, with other symbols
            raise
        except Exception as error:  # PyTorch cannot compile it, so it runs as it is
            if needs_gradients and has_checkpoint(module):  # it would draw other random numbers
                raise
            logger.debug("a graph runs eagerly under the plan: %s", error)
            self.failures[str(error).partition("\n")[0]] += 1
            return self._eager_function(module)

        is_repeatable = not (needs_gradients and has_checkpoint(module))
        check = guard_metadata(module, inputs, self.dry_run if self.has_gpus else None)
        self.leaves_out_guards |= self.dry_run is not None

        def run(*args: Any) -> Any:
            check(args)
            try:
                outputs = compiled(*args)
            except CallNotServed as error:
                if not self.is_in_parts:  # the whole call runs eagerly
                    raise
                if not is_repeatable:
                    raise ExecutionError(
                        f"the call cannot go on after a graph break: {error}; "
                        "make it inside model.placed.eager()"
                    ) from error
                return self._eager_function(module)(*args)
            note_undefined_gradients(outputs)
            return outputs

        return run

    def name_inputs(self, module: torch.fx.GraphModule) -> list[GraphInput]:
        """The inputs of a graph of TorchDynamo's, named as in the plan."""
        names: dict[int, list[str]] = {}
        for name, tensor in self.named_tensors():
            names.setdefault(id(tensor), []).append(name)
        model, signature = self._model(), getattr(self.thread, "signature", None)
        if signature is None and model is not None:
            signature = inspect.signature(model.forward)
        return name_inputs(module, names, self.known_names, signature)

    def _eager_function(self, module: torch.fx.GraphModule) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with self.lock:
                self.count_run()
                if self.dry_run is not None:
                    raise GraphError("PyTorch cannot compile a graph of this call")
                if self.is_resolving:
                    raise NotInFlight("PyTorch cannot compile the graph of this call")
            with self.eager_scope():
                return module(*args)

        return run

    def _compile(
        self,
        inputs: Sequence[GraphInput],
        joint: JointGraph,
        module: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
    ) -> Callable[[list[Any]], list[Any]]:
        return self.add_graph(CompiledGraph(module, inputs, self, joint))

    def add_graph(self, graph: CompiledGraph) -> Callable[[list[Any]], list[Any]]:
        """A function that runs a graph, under AOTAutograd's convention."""
        self.graphs.append(graph)

        def run(args: list[Any]) -> list[Any]:
            return graph(args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    @property
    def run_count(self) -> int:
        """How many graphs have begun to run in this thread."""
        count: int = getattr(self._run_counts, "value", 0)
        return count

    def count_run(self) -> None:
        """Note that a graph begins to run in this thread."""
        self._run_counts.value = self.run_count + 1

    # -- the model's tensors -------------------------------------------------------------------

    def named_tensors(self) -> list[tuple[str, torch.Tensor]]:
        """The model's parameters and buffers, under all of their names."""
        model = self._model()
        if model is None:
            return []
        return [
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        ]

    def is_model(self, module: torch.nn.Module) -> bool:
        """Whether a module is the whole model."""
        return module is self._model()

    def own_tensor(self, names: Sequence[str], value: torch.Tensor) -> torch.Tensor:
        """The model's own tensor of a weight, whose data may be moved, if the call reads that."""
        for owner in self._owners(names):
            if owner.shape == value.shape and owner.data_ptr() == value.data_ptr():
                return owner
        return value

    def _owners(self, names: Sequence[str]) -> list[torch.Tensor]:
        """The model's tensors of these names."""
        owners = []
        for name in names:
            owner: Any = self._model()
            for part in name.split("."):
                owner = getattr(owner, part, None)
            if isinstance(owner, torch.Tensor):
                owners.append(owner)
        return owners

    # -- executors -----------------------------------------------------------------------------

    def new_executor(
        self,
        program: Program,
        plan: Plan,
        weights: Mapping[int, torch.Tensor],
        args: Sequence[Any] = (),
    ) -> Executor:
        """An executor of a program; streamed weights are packed only while there is no other."""
        self.executors.evict()
        own = [tensor for _, tensor in self.named_tensors()]
        known = [*args, *own, *self.executors.resident_tensors()]
        with torch.inference_mode(False):  # or later calls could not save what is allocated here
            return Executor(
                program,
                weights,
                plan,
                self.device_map,
                cuda_graphs=False if program.scalars is not None else self.cuda_graphs,
                staging_buffers=self.executors.staging_buffers,
                pack_weights=not self.executors,
                host_kernels=self.host_kernels,
                shared_weights=shared_positions(weights, known),
                streams=self.executors.streams,
            )

    def free_held(self) -> None:
        """Free what lies in memory between two calls, besides weights."""
        for callback in self.on_short_memory:
            callback()

    def release_held(self, graph: CompiledGraph) -> None:
        """Free what is held; graphs of other executors refer to it."""
        self.free_held()
        self.executors.close_others(graph)

    def close(self) -> None:
        """Stop all executors; a later call starts its own again."""
        with self.lock:
            for graph in self.graphs:
                graph.close()
                for closed in (graph, *graph.static_graphs):
                    self.executors.forget(closed)

    def drop_graphs(self) -> None:
        """Stop all executors and forget their graphs."""
        self.close()
        self.graphs.clear()
        self.leaves_out_guards = False

    # -- steps in flight -----------------------------------------------------------------------

    @contextlib.contextmanager
    def resolving(self) -> Iterator[None]:
        """Let the next graph raise `CallResolved`, instead of running."""
        self.is_resolving = True
        try:
            yield
        finally:
            self.is_resolving = False

    @contextlib.contextmanager
    def delivering(self, call: ResolvedCall, values: Sequence[torch.Tensor]) -> Iterator[None]:
        """Let the next graph return what its step has computed, instead of running."""
        self.delivery = call, values
        try:
            yield
        finally:
            self.delivery = None

    @contextlib.contextmanager
    def outputs_on(self, device: torch.device) -> Iterator[None]:
        """Let graphs that this thread runs return their outputs on a device."""
        previous = self.output_device
        self._outputs.device = device
        try:
            yield
        finally:
            self._outputs.device = previous

    @contextlib.contextmanager
    def fixed_length(self, is_fixed: bool) -> Iterator[None]:
        """Let symbolic graphs that this thread runs have a form of their own for each size."""
        previous, self.thread.is_fixed = self.has_fixed_length, is_fixed
        try:
            yield
        finally:
            self.thread.is_fixed = previous

    @contextlib.contextmanager
    def in_parts(self) -> Iterator[None]:
        """Let graphs that this thread runs be parts of a call, which cannot begin again."""
        previous, self.thread.is_in_parts = self.is_in_parts, True
        try:
            yield
        finally:
            self.thread.is_in_parts = previous

    @property
    def has_gpus(self) -> bool:
        """Whether a device of the plan is a GPU."""
        return any(real_device.is_gpu for real_device in self.real_devices)

    @property
    def is_in_parts(self) -> bool:
        """Whether the call of this thread is more than one graph."""
        return getattr(self.thread, "is_in_parts", False)

    @property
    def has_fixed_length(self) -> bool:
        """Whether the call of this thread has sizes that many others will have."""
        return getattr(self.thread, "is_fixed", False)

    @property
    def output_device(self) -> torch.device | None:
        """The device of the outputs of graphs; None: as they were traced."""
        device: torch.device | None = getattr(self._outputs, "device", None)
        return device

    # -- eager calls ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def eager_scope(self) -> Iterator[None]:
        """Let PyTorch's functions run on the devices that the plan names.

        Workers share the host's memory, so that there is nothing to do without a GPU.
        """
        if not self.has_gpus:
            yield
            return
        with self._eager_lock:
            mode = self._eager_placement()
            mode.begin_call()
            gpus = {device.torch_device for device in self.real_devices if device.is_gpu}
            for gpu in gpus:
                current_backend().open_context(gpu)  # also for a backward pass in this thread
            with memory_caps(mode.limits), rerun_checkpoints(mode.for_rerun, gpus), mode:
                yield

    @contextlib.contextmanager
    def limited_memory(self, step: int = 0) -> Iterator[None]:
        """Let GPUs keep their limits inside the block, also while executors start.

        Args:
            step: How many steps the executor has begun: libraries load in the first of them.

        Raises:
            ExecutionError: There is too little memory; nothing is left of what was begun.
        """
        limits = {} if self.memory_limits is None else self.memory_limits.of_gpus(self)
        with memory_caps(limits, measure=step < FIRST_STEPS or step % FIRST_STEPS == 0):
            try:
                yield
            except torch.OutOfMemoryError as error:
                raise ExecutionError(
                    f"the call does not fit: {shortage_text(error, limits)}: place the model with "
                    "a higher limit, or with fresh=True"
                ) from error

    def _eager_placement(self) -> EagerPlacement:
        """The mode of eager calls, made anew if the model has other tensors now."""
        tensors = dict(self.named_tensors())
        ids = [id(tensor) for tensor in tensors.values()]
        if self._eager is None or self._eager[0] != ids:
            limits = None if self.memory_limits is None else self.memory_limits.of_gpus(self)
            self._eager = ids, EagerPlacement.of(self.plan, self.real_devices, tensors, limits)
        return self._eager[1]


def placewright(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend of `torch.compile(model, backend="placewright", options={"plan": plan})`.

    Weights stay where they are, so the model must be on one device, as PyTorch has it. Options are
    `plan` (a plan, a result, or a file that holds one), `model`, `device_map`, `cuda_graphs` and
    `host_kernels`.
    """
    settings = dict(options or {})
    allowed = ("plan", "model", "device_map", "cuda_graphs", "host_kernels")
    unknown = sorted(set(settings) - set(allowed))
    if unknown:
        raise ConfigError(
            f"option {unknown[0]!r} of backend 'placewright' is unknown: "
            f"{nearest(unknown[0], allowed)}"
        )
    if "plan" not in settings:
        raise ConfigError(
            'backend "placewright" needs a plan: torch.compile(model, backend="placewright", '
            'options={"plan": plan})'
        )
    plan = files.read_plan(settings.pop("plan"))
    return PlanBackend(plan, **settings)(module, example_inputs)
