"""Calls of one module of a placed model: as one graph, else as several, else eagerly."""

from __future__ import annotations

import inspect
import types
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from placewright.errors import ExecutionError, GraphError
from placewright.frontends.pytorch.logical_device import trace_on_device
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
from placewright.runtime.dynamo.dynamic_lengths import DynamicLengths
from placewright.runtime.dynamo.undefined_gradients import note_undefined_gradients

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Hashable, Mapping

    from placewright.runtime.dynamo.backend import PlanBackend

MAX_GRAPHS = 64
"""How often a module is compiled for other shapes, modes and values before calls run eagerly."""


class CompiledCalls:
    """The calls of one module, compiled with a backend that runs graphs under a plan.

    Args:
        module: The placed model, or a module of it that a program calls by itself.
        eager_calls: Counts calls that ran eagerly, by the reason.
        on_new_code: Called when a module's class has another forward than before.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        backend: PlanBackend,
        eager_calls: Counter[str],
        on_new_code: Callable[[], None],
    ) -> None:
        self.module, self.backend, self.eager_calls = module, backend, eager_calls
        self._on_new_code = on_new_code
        self.has_gpus = any(real_device.is_gpu for real_device in backend.real_devices)
        self.eager_scopes = 0
        self._class_forward = None if "forward" in vars(module) else type(module).forward
        self._zero_signs = ZeroSigns()
        self._lengths = DynamicLengths(module)
        self._untraceable: dict[Hashable, str] = {}  # calls that are not one graph, and why
        self._set_forward(module.forward)

    def _set_forward(self, forward: Callable[..., Any]) -> None:
        """Let calls run this function, compiled as one graph or, if it breaks, as several."""
        self.forward = forward
        self._code, self._functional = CodeOfModel(self.module), functional_code()
        self._signature = inspect.signature(forward)
        self._compiled = self.compile(forward, self.backend)
        self._compiled_in_parts = self.compile(forward, self.backend, whole=False)

    def record_code(self) -> None:
        """Note the functions that a graph is compiled with."""
        self._code = CodeOfModel(self.module)

    def compile(
        self, function: Callable[..., Any], backend: PlanBackend, whole: bool = True
    ) -> Callable[..., Any]:
        """A function compiled for this module alone.

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

    def recapture(self) -> None:
        """Drop what was compiled; the next call is compiled again."""
        self._untraceable.clear()
        self._set_forward(self.forward)

    def __call__(self, args: Any, kwargs: Any) -> Any:
        """Call the module: as one graph, else as several, else eagerly."""
        self._follow_code()
        if self.backend.dry_run is not None:
            self.backend.dry_run.begin_call(self.backend.is_model(self.module))
        reason = self.reason_to_run_eagerly(args, kwargs)
        if not reason:
            self._lengths.mark(args, kwargs)
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
        if self.backend.dry_run is not None:
            raise GraphError(f"{type(self.module).__name__!r} cannot be captured: {reason}")
        self.eager_calls[reason] += 1
        return self._run_eagerly(self.forward, args, kwargs)

    def _follow_code(self) -> None:
        """Compile again if the class of the model or of a module has another forward now."""
        if self._class_forward is not None and type(self.module).forward is not self._class_forward:
            self._class_forward = type(self.module).forward
            self._set_forward(types.MethodType(self._class_forward, self.module))
        if self._code.changed:
            self._on_new_code()

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
        if self.eager_scopes:
            reason = "it is inside `placed.eager()`"
        if not reason and self._zero_signs.differ(
            self._signature, self.module, self.forward, args, kwargs
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
        self.backend.thread.signature = self._signature
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

    def run_one_graph(self, args: Any) -> Any:
        """Call the module; the call must be one graph.

        Raises:
            ExecutionError: This call cannot be compiled.
        """
        return self.run_whole(self._compiled, args)

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
