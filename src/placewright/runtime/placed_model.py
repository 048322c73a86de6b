"""The placed model: behaves as before, and runs on the devices that a plan names."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils import _pytree as pytree

from placewright import files
from placewright.errors import ExecutionError, PlanError
from placewright.frontends.pytorch.logical_device import trace_on_device
from placewright.plan import Plan
from placewright.result import Result
from placewright.runtime.cuda.backend import current_backend
from placewright.runtime.dynamo.backend import PlanBackend
from placewright.runtime.dynamo.call_checks import (
    COMPILE_ERRORS,
    CodeOfModel,
    ZeroSigns,
    call_shape,
    compile_error_text,
    first_tensor,
    functional_code,
    guarded_hooks,
    reason_to_run_eagerly,
    skipped_frames,
)
from placewright.runtime.dynamo.compiled_graph import ArgumentsOverlap
from placewright.runtime.dynamo.pipeline import pipelined_calls
from placewright.runtime.dynamo.train_step import TrainStep
from placewright.runtime.dynamo.undefined_gradients import note_undefined_gradients
from placewright.runtime.executor import weak_callback
from placewright.runtime.weight_loading import load_weights

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from placewright.runtime.dynamo.compiled_graph import CompiledGraph
    from placewright.runtime.program.host_products import HostKernels
    from placewright.runtime.program.optimizer_step import OptimizerRule

MAX_GRAPHS = 64
"""How often a model is compiled for other shapes, modes and values before calls run eagerly."""


def apply(
    plan: Plan | Result | str | os.PathLike[str],
    model: torch.nn.Module,
    weights: str | os.PathLike[str] | None = None,
    device_map: Mapping[str, str] | None = None,
    optimizer: str | OptimizerRule | None = None,
    cuda_graphs: bool | None = None,
    host_kernels: HostKernels = True,
) -> torch.nn.Module:
    """Let a model run under a plan. The model itself is changed and returned.

    Its weights move to the devices that the plan names. Calls are compiled by TorchDynamo, whose
    guards decide when a graph serves a call; each graph runs under the plan, and so does its
    backward graph. What TorchDynamo cannot trace runs eagerly under the same placement. Outputs are
    on the device of the first tensor among the arguments. `model.placed` has the rest: `train_step`
    (a whole training step), `pipeline` (several calls in flight), `remove`.

    Args:
        plan: A plan, a result, or a file that holds one.
        weights: A safetensors file, an index of several or their folder, for a model on `meta`:
            its tensors go straight to their devices.
        device_map: Real devices of some of the plan's devices, by name, such as
            `{"gpu0": "cuda:1"}`; the others are found by name.
        optimizer: The optimizer of `train_step`: `sgd`, `momentum`, `adam` or an `OptimizerRule`.
        cuda_graphs: Whether runs of ops on a GPU are captured as CUDA graphs; None: if that is
            faster.
        host_kernels: Whether 16-bit products of few rows on the CPU may use our own kernel, where
            it is faster; it rounds otherwise than PyTorch's. `"float32"`: float32 products too.

    Raises:
        PlanError: The plan was made for another model.
        ExecutionError: A device is missing, or has too little memory.
        FileError: A file cannot be read.
    """
    if not isinstance(plan, Plan | Result):
        plan = files.load(plan, "plan")
    bare_plan = plan.plan if isinstance(plan, Result) else plan
    if isinstance(getattr(model, "placed", None), PlacedModel):
        raise PlanError("the model runs under a plan already: model.placed.remove() first")
    placed_model = PlacedModel(bare_plan, model, device_map, optimizer, cuda_graphs, host_kernels)
    if weights is not None:
        load_weights(model, weights, placed_model.torch_devices)
    placed_model.move_weights()
    placed_model.install()
    return model


class PlacedModel:
    """A model that runs under a plan; `apply` sets it as `model.placed`."""

    def __init__(
        self,
        plan: Plan,
        model: torch.nn.Module,
        device_map: Mapping[str, str] | None,
        optimizer: str | OptimizerRule | None,
        cuda_graphs: bool | None,
        host_kernels: HostKernels = True,
    ) -> None:
        self.plan, self.model = plan, model
        self.backend = PlanBackend(plan, model, device_map, cuda_graphs, host_kernels=host_kernels)
        self.backend.on_compile = weak_callback(self._record_code)
        self.torch_devices = {
            name: self.backend.real_devices[device].torch_name
            for name, device in zip(plan.ops, plan.placement.tolist(), strict=True)
        }
        self.has_gpus = any(real_device.is_gpu for real_device in self.backend.real_devices)
        self.eager_calls: Counter[str] = Counter()
        """How many calls ran eagerly, by the reason."""
        self._class_forward = None if "forward" in vars(model) else type(model).forward
        self._zero_signs = ZeroSigns()
        self._eager_scopes = 0
        self._untraceable: dict[Hashable, str] = {}  # calls that are not one graph, and why
        self._check()
        self._set_forward(model.forward)
        self.train = TrainStep(self, optimizer)

    def _check(self) -> None:
        known = set(self.plan.ops)
        names = [name for name, _ in self.model.named_parameters()]
        missing = [name for name in names if name not in known]
        if missing and len(missing) == len(names):
            raise PlanError(
                f"the plan was made for another model: it places none of its {len(names)} "
                f"parameters, such as {missing[0]!r}"
            )
        if self.has_gpus and not current_backend().device_count():
            name = next(device.name for device in self.backend.real_devices if device.is_gpu)
            raise ExecutionError(
                f"device {name!r} is a CUDA device, and this machine has none: "
                f"map it to another one, such as device_map={{{name!r}: 'cpu'}}"
            )

    def _set_forward(self, forward: Callable[..., Any]) -> None:
        """Let calls run this function, compiled as one graph or, if it breaks, as several."""
        self.forward = forward
        self._code, self._functional = CodeOfModel(self.model), functional_code()
        self._signature = inspect.signature(forward)
        self._compiled = self.compile(forward, self.backend)
        self._compiled_in_parts = self.compile(forward, self.backend, whole=False)

    def _record_code(self) -> None:
        self._code = CodeOfModel(self.model)

    def compile(
        self, function: Callable[..., Any], backend: PlanBackend, whole: bool = True
    ) -> Callable[..., Any]:
        """A function compiled for this model alone.

        Args:
            whole: Whether a call must be one graph; else it fails.
        """
        parameters = inspect.signature(torch.compile).parameters
        options: dict[str, Any] = {"guard_filter_fn": self._zero_signs.record_guards}
        limits: dict[str, Any] = (
            {"recompile_limit": MAX_GRAPHS} if "recompile_limit" in parameters else {}
        )
        compiler: Any = torch.compile
        compiled: Callable[..., Any] = compiler(
            _with_own_code(function), backend=backend, fullgraph=whole, options=options, **limits
        )
        return compiled

    # -- the model -----------------------------------------------------------------------------

    @torch.no_grad()
    def move_weights(self) -> None:
        """Move every parameter and buffer that the plan places to its device."""
        targets = [
            (self.torch_devices[name], tensor)
            for name, tensor in self.backend.named_tensors()
            if name in self.torch_devices and not tensor.is_meta
        ]
        # Weights that leave a GPU move first: both might not fit.
        for target, tensor in sorted(targets, key=lambda pair: pair[0] != "cpu"):
            if tensor.device != torch.device(target):
                tensor.data = tensor.data.to(target)

    def install(self) -> None:
        """Redirect the model's calls to this object."""
        model: Any = self.model
        self._saved_attributes = {
            k: v for k, v in vars(model).items() if k in ("forward", "_apply")
        }
        model.placed = self
        model.forward = self._new_forward()
        self._model_apply = model._apply
        model._apply = self._apply
        self._hook = model.register_load_state_dict_post_hook(self._after_load)

    def _new_forward(self) -> Callable[..., Any]:
        @functools.wraps(self.forward)  # libraries read its signature
        def forward(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
                return self.forward(*args, **kwargs)  # the caller compiles it
            return self._call(args, kwargs)

        return forward

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise ExecutionError(
            "a model that runs under a plan cannot be copied or pickled: copy or save it after "
            "model.placed.remove(), or save its state_dict()"
        )

    def remove(self) -> torch.nn.Module:
        """Restore the model as it was; its weights stay where they are."""
        self.recapture()
        model: Any = self.model
        for name in ("placed", "forward", "_apply"):
            model.__dict__.pop(name, None)
        model.__dict__.update(self._saved_attributes)
        self._hook.remove()
        return self.model

    def recapture(self) -> None:
        """Drop all graphs; the next call is compiled again."""
        self.backend.drop_graphs()
        self._untraceable.clear()
        self._set_forward(self.forward)
        self.train.recapture()

    @property
    def graphs(self) -> tuple[CompiledGraph, ...]:
        """The graphs that TorchDynamo has handed over so far."""
        return tuple(self.backend.graphs)

    def _after_load(self, *_: object) -> None:
        """Move weights that were loaded to their devices."""
        self.move_weights()

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """Cast or move the model, and move its weights to their devices again."""
        result = self._model_apply(*args, **kwargs)
        self.move_weights()
        return result

    # -- calls ---------------------------------------------------------------------------------

    def _call(self, args: Any, kwargs: Any) -> Any:
        """Call the model: as one graph, else as several, else eagerly."""
        self._follow_code()
        reason = self.reason_to_run_eagerly(args, kwargs)
        if not reason:
            shape = call_shape(args, kwargs) if self._untraceable else None
            reason = self._untraceable.get(shape, "")
            try:
                if not reason:
                    return self._try_compiled(self._compiled, args, kwargs)
            except COMPILE_ERRORS as error:
                reason = f"TorchDynamo cannot trace it: {compile_error_text(error)}"
                self._untraceable[call_shape(args, kwargs)] = reason
            except ArgumentsOverlap as error:
                reason = str(error)
            try:
                if self._may_break(reason):
                    with warnings.catch_warnings():  # of what TorchDynamo itself does at a break
                        warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor")
                        return self._try_compiled(self._compiled_in_parts, args, kwargs)
            except COMPILE_ERRORS as error:
                reason = f"TorchDynamo cannot trace a part of it: {compile_error_text(error)}"
        self.eager_calls[reason] += 1
        return self._run_eagerly(self.forward, args, kwargs)

    def _follow_code(self) -> None:
        """Compile again if the class of the model or of a module has another forward now."""
        if self._class_forward is not None and type(self.model).forward is not self._class_forward:
            self._class_forward = type(self.model).forward
            self._set_forward(types.MethodType(self._class_forward, self.model))
        if self._code.changed:
            self.recapture()

    def _try_compiled(self, compiled: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a compiled function.

        Raises:
            ArgumentsOverlap: The graph does not serve the call; nothing of it has run.
            ExecutionError: What follows a graph break failed to compile.
        """
        runs = self.backend.run_count
        try:
            outputs = self.run_compiled(compiled, args, kwargs)
        except (*COMPILE_ERRORS, ArgumentsOverlap) as error:
            if self.backend.run_count == runs:
                raise
            raise ExecutionError(
                f"the call cannot go on after a graph break: {compile_error_text(error)}; "
                "make it inside model.placed.eager()"
            ) from error
        if torch.is_grad_enabled():
            note_undefined_gradients(outputs)
        return outputs

    def _may_break(self, reason: str) -> bool:
        """Whether a call may run as several graphs.

        With GPUs it may not: what runs between two graphs would meet weights of several devices.
        Nor may a model that differentiates in its forward pass: a graph is one autograd node.
        """
        never = ("recompile", "autograd", "backward", "shares memory")
        return not self.has_gpus and not any(word in reason for word in never)

    def reason_to_run_eagerly(self, args: Any, kwargs: Any) -> str:
        """Why a call cannot be compiled; empty: it can, as far as is known."""
        reason = reason_to_run_eagerly(args, kwargs)
        if functional_code() != self._functional:
            reason = "functions of torch.nn.functional are replaced"
        if self._eager_scopes:
            reason = "it is inside `placed.eager()`"
        if not reason and self._zero_signs.differ(
            self._signature, self.model, self.forward, args, kwargs
        ):
            reason = "a zero has another sign than in the call that was compiled"
        return reason

    def run_compiled(self, compiled: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a compiled function.

        With GPUs, all tensors are traced as if on the host: a graph is then the one that was
        planned, and each device has its own kernels for its ops. Only autocast of a GPU needs
        tensors of that GPU. Outputs go to the device of the first tensor.
        """
        is_whole = compiled is not self._compiled_in_parts
        with guarded_hooks(), skipped_frames(is_whole) as is_skipped:
            if not self.has_gpus:
                outputs = compiled(*args, **kwargs)
            else:
                tensor = first_tensor(args, kwargs)
                device = torch.device("cpu") if tensor is None else tensor.device
                is_cast = torch.is_autocast_enabled(device.type)
                with (
                    trace_on_device(device if is_cast else torch.device("cpu")),
                    self.backend.outputs_on(device),
                ):
                    outputs = compiled(*args, **kwargs)
        if is_skipped():
            reason = "TorchDynamo skips the model's forward"
            self._untraceable[call_shape(args, kwargs)] = f"{reason}: recompile limit or disabled"
            self.eager_calls[reason] += 1
        return outputs

    def _run_eagerly(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        tensor = first_tensor(args, kwargs)
        if tensor is not None and tensor.is_meta:
            return function(*args, **kwargs)
        with self.backend.eager_scope():
            outputs = function(*args, **kwargs)
        return outputs if tensor is None else _to_device(outputs, tensor.device)

    @contextlib.contextmanager
    def eager(self) -> Iterator[None]:
        """Let calls inside the block run eagerly under the placement, in this thread or another.

        What a compiled call cannot do works there, such as a backward pass of a backward pass.
        """
        self._eager_scopes += 1
        try:
            yield
        finally:
            self._eager_scopes -= 1

    def pipeline(self, calls: Iterable[tuple[Any, ...]], in_flight: int = 4) -> Iterator[Any]:
        """Run several calls with several steps in flight; yields their results in order.

        Args:
            calls: The positional arguments of each call.
            in_flight: How many steps may be in flight at once.

        Raises:
            ExecutionError: A call is not one graph, or steps of this model change states, so that
                they cannot overlap.
        """
        return pipelined_calls(
            self.backend, lambda args: self.run_whole(self._compiled, args), calls, in_flight
        )

    def run_whole(
        self, compiled: Callable[..., Any], args: Any, kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function that was compiled as a whole.

        Raises:
            ExecutionError: This call cannot be compiled.
        """
        reason = self.reason_to_run_eagerly(args, kwargs or {})
        if not reason:
            try:
                return self.run_compiled(compiled, args, kwargs or {})
            except COMPILE_ERRORS as error:
                reason = f"TorchDynamo cannot trace it as a whole: {compile_error_text(error)}"
            except ArgumentsOverlap as error:
                reason = str(error)
        raise ExecutionError(f"calls of this kind cannot be in flight together: {reason}")

    def train_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Run one training step under the plan: loss, gradients and the update of all weights.

        Modules keep their own modes, and weights that require no gradient stay as they are. The
        loss is the first floating-point output, summed unless it is a scalar.

        Raises:
            PlanError: The plan is not for a training step.
        """
        return self.train.step(args, kwargs)

    def train_micro_batches(
        self, micro_batches: Iterable[tuple[Any, ...]], in_flight: int = 4
    ) -> list[torch.Tensor]:
        """Run one training step in micro-batches, several of them in flight; their losses.

        Args:
            micro_batches: The positional arguments of each, all of one shape.

        Raises:
            PlanError: The plan is not for a training step.
            ExecutionError: A step changes states besides weights, so micro-batches cannot overlap.
        """
        return self.train.micro_batches(micro_batches, in_flight)


def _with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a code object of its own: TorchDynamo limits graphs by code object."""
    plain: Any = getattr(function, "__func__", function)
    if not isinstance(plain, types.FunctionType):
        return function
    copy = types.FunctionType(
        plain.__code__.replace(),
        plain.__globals__,
        plain.__name__,
        plain.__defaults__,
        plain.__closure__,
    )
    copy.__kwdefaults__ = plain.__kwdefaults__
    copy.__qualname__, copy.__module__ = plain.__qualname__, plain.__module__
    owner = getattr(function, "__self__", None)
    return copy if owner is None else types.MethodType(copy, owner)


def _to_device(outputs: Any, device: torch.device) -> Any:
    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device != device:
            return value.to(device)
        return value

    return pytree.tree_map(move, outputs)
