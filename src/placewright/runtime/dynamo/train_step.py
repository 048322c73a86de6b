"""Training steps: loss, gradients and updates of a placed model as one program.

A step is compiled as a call is, so that TorchDynamo's guards decide when a program serves it. What
cannot be one program, for example a model with hooks on gradients, runs as an ordinary loop would:
forward, backward, then the same update of every weight.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import default_partition

from placewright.errors import ConfigError, ExecutionError, GraphError, PlanError
from placewright.frontends.pytorch.aot_graph import backward_without_autocast
from placewright.runtime.dynamo.backend import PlanBackend
from placewright.runtime.dynamo.call_checks import COMPILE_ERRORS, call_shape, compile_error_text
from placewright.runtime.dynamo.checkpoints import check_checkpoint_draws, check_reentrant
from placewright.runtime.dynamo.compiled_graph import (
    CompiledGraph,
    build_graph_program,
)
from placewright.runtime.dynamo.graph_inputs import real_tensor
from placewright.runtime.dynamo.graph_outputs import JointGraph
from placewright.runtime.dynamo.lowering import unread_draws, without_unread_draws
from placewright.runtime.dynamo.steps import CallNotServed, resolve_call
from placewright.runtime.micro_batches import share_optimizer_states, train_micro_batches
from placewright.runtime.program.optimizer_step import OptimizerRule, WeightUpdate
from placewright.runtime.program.runners import InputRead

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

    from placewright.plan import Plan
    from placewright.runtime.dynamo.model_calls import ModelCalls
    from placewright.runtime.executor import Executor
    from placewright.runtime.program.optimizer_step import OptimizerState
    from placewright.runtime.program.program import Program


class TrainStep:
    """The training steps of a placed model.

    Args:
        optimizer: `sgd`, `momentum`, `adam` or a rule; None: `sgd`.
    """

    def __init__(
        self, plan: Plan, calls: ModelCalls, optimizer: str | OptimizerRule | None
    ) -> None:
        self.plan, self.calls, self.optimizer = plan, calls, optimizer
        self._backend: TrainBackend | None = None
        self._compiled: Callable[..., Any] | None = None
        self._not_one_program: dict[Hashable, str] = {}  # steps that are no program, and why

    def use_plan(self, plan: Plan) -> None:
        """Run steps under another plan; the optimizer's states stay."""
        self.plan = plan
        self.recapture()
        if self._backend is not None:
            self._backend.use_plan(plan)

    def recapture(self) -> None:
        """Drop all programs; the optimizer's states stay."""
        if self._backend is not None:
            self._backend.drop_graphs()
        self._compiled = None
        self._not_one_program.clear()

    def step(self, args: Any, kwargs: Mapping[str, Any]) -> torch.Tensor:
        """Run a step; its loss."""
        backend, compiled = self._ready()
        reason = self.calls.reason_to_run_eagerly(args, kwargs) or self._hooks()
        if not reason and self._not_one_program:
            reason = self._not_one_program.get(call_shape(args, kwargs), "")
        if not reason:
            runs = backend.run_count
            try:
                with torch.enable_grad():
                    loss: torch.Tensor = self.calls.run_compiled(compiled, args, kwargs)
                if backend.run_count > runs:
                    return loss.detach()
                # PyTorch ran the forward pass alone.
                self._count_loop("TorchDynamo skips it")
                return self._update_weights(backend, loss)
            except CallNotServed as error:
                reason = str(error)
            except COMPILE_ERRORS as error:
                reason = compile_error_text(error)
                self._not_one_program[call_shape(args, kwargs)] = reason
        self._count_loop(reason)
        return self._run_loop(backend, args, kwargs)

    def micro_batches(
        self, micro_batches: Iterable[tuple[Any, ...]], in_flight: int
    ) -> list[torch.Tensor]:
        """Run a step in parts; their losses."""
        calls = list(micro_batches)
        if not calls:
            raise ConfigError("a step of no micro-batches: expected one or more")
        backend, compiled = self._ready()
        reason = self._hooks()
        if reason:
            raise ExecutionError(f"micro-batches cannot be in flight together: {reason}")
        with backend.lock, torch.enable_grad():
            resolved = [
                resolve_call(backend, partial(self.calls.run_whole, compiled, args))
                for args in calls
            ]
            graph = resolved[0].graph
            if any(call.graph is not graph for call in resolved):
                raise ExecutionError(
                    "micro-batches differ in shape, so that they are no one program: expected one "
                    "shape"
                )
            flat_calls = [tuple(call.args) for call in resolved]
            with backend.limited_memory():
                return train_micro_batches(
                    graph.ready_executor(flat_calls[0]), flat_calls, in_flight, graph.submit
                )

    def _ready(self) -> tuple[TrainBackend, Callable[..., Any]]:
        self.calls.follow_code()
        if not any(name.endswith(".update") for name in self.plan.ops):
            raise PlanError("the plan is not for a training step: plan with --training")
        if self._backend is None:
            self._backend = self._new_backend(OptimizerRule.of(self.optimizer))
        if self._compiled is None:
            self._compiled = self.calls.compile(self._loss_function(), self._backend)
        return self._backend, self._compiled

    def _new_backend(self, rule: OptimizerRule) -> TrainBackend:
        return TrainBackend(rule, self.calls.model, self.calls.backend)

    def _loss_function(self) -> Callable[..., torch.Tensor]:
        model_forward = self.calls.forward

        def loss(*call_args: Any, **call_kwargs: Any) -> torch.Tensor:
            return loss_of(model_forward(*call_args, **call_kwargs))

        return loss

    def _hooks(self) -> str:
        """Why a step cannot be one program; empty: it can, as far as hooks go."""
        reason = self.calls.reason_of_hooks()
        if reason:
            return reason
        for name, weight in self.calls.model.named_parameters():
            if weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None):
                return f"weight {name!r} has a hook on its gradient"
        return ""

    def _count_loop(self, reason: str) -> None:
        """Note that a step runs as a loop, and why."""
        self.calls.eager_calls[f"a training step: {reason}"] += 1

    def _run_loop(
        self, backend: TrainBackend, args: Any, kwargs: Mapping[str, Any]
    ) -> torch.Tensor:
        """Forward, backward and updates, as an ordinary loop runs them."""
        with torch.enable_grad():
            loss = loss_of(self.calls.model(*args, **kwargs))
        return self._update_weights(backend, loss)

    def _update_weights(self, backend: TrainBackend, loss: torch.Tensor) -> torch.Tensor:
        """Backward and updates, after a forward pass that PyTorch ran."""
        if not loss.requires_grad:
            raise GraphError(
                "the step has no backward ops: no parameter that requires a gradient reaches "
                "the model's first floating-point output"
            )
        weights = {
            name: weight
            for name, weight in self.calls.model.named_parameters()
            if weight.requires_grad
        }
        gradients = {name: weight.grad for name, weight in weights.items()}
        try:
            for weight in weights.values():
                weight.grad = None
            with backend.limited_memory():
                loss.backward()  # type: ignore[no-untyped-call]
                for name, weight in weights.items():
                    if weight.grad is not None:
                        update = WeightUpdate(backend.rule, (InputRead(1),))
                        states = backend.optimizer_states
                        update.state = states.setdefault(f"{name}.update", update.state)
                        update((weight, weight.grad))
        finally:
            for name, weight in weights.items():
                weight.grad = gradients[name]
        return loss.detach()


class TrainBackend(PlanBackend):
    """A backend whose graphs are whole training steps; it returns losses without a graph.

    Args:
        sibling: The backend of the model's calls.
    """

    def __init__(self, rule: OptimizerRule, model: torch.nn.Module, sibling: PlanBackend) -> None:
        super().__init__(
            sibling.plan,
            model,
            sibling.device_map,
            sibling.cuda_graphs,
            sibling,
            sibling.host_kernels,
        )
        self.rule, self._sibling = rule, sibling
        self.optimizer_states: dict[str, OptimizerState] = {}  # by weight, shared by all programs

    def __call__(
        self, module: torch.fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        self._check_weights(module)
        inputs = self.name_inputs(module)
        check_reentrant(module)
        programs: list[Program] = []

        def partition(
            joint: torch.fx.GraphModule, joint_inputs: Any, **options: Any
        ) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
            check_checkpoint_draws(module, joint, self.has_gpus)
            programs.append(build_graph_program(joint, inputs, self.rule))
            return default_partition(joint, joint_inputs, **options)

        def compile_step(
            module: torch.fx.GraphModule, example_inputs: Sequence[Any]
        ) -> Callable[[list[Any]], list[Any]]:
            return self.add_graph(CompiledGraph(module, inputs, self, JointGraph(), programs[-1]))

        with backward_without_autocast(), unread_draws():
            compiled: Callable[..., Any] = aot_autograd(
                fw_compiler=compile_step,
                bw_compiler=lambda module, example_inputs: module,
                inference_compiler=_refuse,
                partition_fn=without_unread_draws(partition),
                keep_inference_input_mutations=True,
            )(module, example_inputs)
        return compiled

    @contextlib.contextmanager
    def limited_memory(self, step: int = 0) -> Iterator[None]:
        """As for the model's calls, whose limits these are."""
        with self._sibling.limited_memory(step):
            yield

    def _check_weights(self, module: torch.fx.GraphModule) -> None:
        """Refuse a step that trains a weight which the plan does not place: it has no update.

        Raises:
            GraphError: There is such a weight.
        """
        names: dict[int, list[str]] = {}
        for name, tensor in self.named_tensors():
            if tensor.requires_grad:
                names.setdefault(id(tensor), []).append(name)
        for node in module.graph.find_nodes(op="placeholder"):
            weight_names = names.get(id(real_tensor(node)), ())
            if weight_names and not any(name in self.known_names for name in weight_names):
                raise GraphError(f"the plan does not place weight {weight_names[0]!r}")

    def new_executor(self, *args: Any) -> Executor:
        executor = super().new_executor(*args)
        share_optimizer_states(executor.jobs.values(), self.optimizer_states)
        return executor


def _refuse(module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> NoReturn:
    raise GraphError("the step has no backward ops")


def loss_of(outputs: Any) -> torch.Tensor:
    """The first floating-point tensor of a model's outputs, summed unless it is a scalar.

    Raises:
        GraphError: There is none.
    """
    loss = _first_float(outputs)
    if loss is None:
        raise GraphError("the model returns no floating-point tensor that could be a loss")
    return loss.sum() if loss.dim() else loss


def _first_float(value: Any) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value if value.is_floating_point() else None
    if isinstance(value, dict):
        value = list(value.values())
    elif not isinstance(value, list | tuple):
        value = list(vars(value).values()) if hasattr(value, "__dict__") else []
    for item in value:
        loss = _first_float(item)
        if loss is not None:
            return loss
    return None
