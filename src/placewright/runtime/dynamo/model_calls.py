"""How calls of a placed model or its encoder are made: as one graph, else several, else eagerly."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import types
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from placewright.errors import ExecutionError, GraphError
from placewright.frontends.pytorch.logical_device import trace_on_device
from placewright.runtime.callbacks import weak_callback
from placewright.runtime.dynamo.call_checks import (
    COMPILE_ERRORS,
    IS_TORCH_2_11,
    CodeOfModel,
    ZeroSigns,
    call_shape,
    check_guards,
    compile_error_text,
    first_tensor,
    full_guards,
    functional_code,
    named_refusals,
    reason_to_run_eagerly,
    return_from_skipped_frames,
    suppressed_errors,
)
from placewright.runtime.dynamo.dynamic_lengths import DynamicLengths, has_fixed_cache
from placewright.runtime.dynamo.metadata_guards import StaleGraph, leave_out_guards
from placewright.runtime.dynamo.steps import CallNotServed, NotInFlight
from placewright.runtime.garbage_collection import rare_collections

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping

    from placewright.runtime.dynamo.backend import PlanBackend

MAX_GRAPHS = 64
"""How often a model is compiled for other shapes, modes and values before calls run eagerly."""


class ModelCalls:
    """The calls of a model under a plan.

    Args:
        model: The placed model, or a module of it that a program calls by itself.
        backend: What TorchDynamo's graphs of the model are compiled with.
    """

    has_static_shapes = False
    """Whether every shape has a graph of its own; else some sizes become symbols."""

    def __init__(self, model: torch.nn.Module, backend: PlanBackend) -> None:
        self.model, self.backend = model, backend
        backend.on_compile.append(weak_callback(self._record_code))
        backend.calls.add(self)
        self.has_gpus = any(real_device.is_gpu for real_device in backend.real_devices)
        self.eager_calls: Counter[str] = Counter()
        """How many calls ran eagerly, by the reason."""
        self._number = next(_model_numbers)
        self._class_forward = None if "forward" in vars(model) else type(model).forward
        self._zero_signs = ZeroSigns()
        self._eager_scopes = 0
        self._lengths = DynamicLengths(model)
        self._may_be_lazy = True  # until all weights have been seen to have a shape
        self._untraceable: dict[Hashable, str] = {}  # calls that are not one graph, and why
        self._eager_only: set[Hashable] = set()  # calls of which nothing is compiled
        self.on_drop: Callable[[], None] = lambda: None  # called when all graphs are dropped
        self._set_forward(model.forward)

    def drop_graphs(self) -> None:
        """Drop all graphs of the backend; the next call is compiled again."""
        self.backend.drop_graphs()
        for calls in list(self.backend.calls):
            calls.forget_graphs()

    def forget_graphs(self) -> None:
        """Forget the graphs, which the backend has dropped."""
        self._untraceable.clear()
        self._eager_only.clear()
        self._set_forward(self.forward)
        self.on_drop()

    def _set_forward(self, forward: Callable[..., Any]) -> None:
        """Let calls run this function, compiled as one graph or, if it breaks, as several."""
        self.forward = forward
        self._code, self._functional = CodeOfModel(self.model), functional_code()
        self._signature = inspect.signature(forward)
        self.compiled = self.compile(forward, self.backend)
        self._compiled_with_fixed_cache = self.compile(forward, self.backend)
        self._compiled_in_parts = self.compile(forward, self.backend, whole=False)
        self._untraced: list[Callable[..., Any]] = [
            *(self.compiled, self._compiled_with_fixed_cache, self._compiled_in_parts)
        ]
        """Those that have not been called yet: their first call is a long trace."""

    def _record_code(self) -> None:
        self._code = CodeOfModel(self.model)

    def compile(
        self, function: Callable[..., Any], backend: PlanBackend, whole: bool = True
    ) -> Callable[..., Any]:
        """A function compiled for this model alone.

        Its backend is an object of its own, since PyTorch 2.11 wraps a forward of `torch.nn` in one
        function for all models: after a change of code, only the backend tells their graphs apart.

        Args:
            whole: Whether a call must be one graph; else it fails.
        """
        options: dict[str, Any] = {
            "guard_filter_fn": functools.partial(check_guards, self._zero_signs)
        }
        limits: dict[str, Any] = {} if IS_TORCH_2_11 else {"recompile_limit": MAX_GRAPHS}
        if self.has_static_shapes:
            limits["dynamic"] = False
        compiler: Any = torch.compile
        compiled: Callable[..., Any] = compiler(
            _with_own_code(function, self._number),
            backend=lambda module, inputs: backend(module, inputs),
            fullgraph=whole,
            options=options,
            **limits,
        )
        return compiled

    def __call__(self, args: Any, kwargs: Any) -> Any:
        """Call the model: as one graph, else as several, else eagerly."""
        self.follow_code()
        if self.backend.dry_run is not None:
            self.backend.dry_run.begin_call(self.backend.is_model(self.model), kwargs)
        reason = self.reason_to_run_eagerly(args, kwargs)
        if not reason:
            is_fixed = not self.has_static_shapes and has_fixed_cache(kwargs)
            compiled = self._compiled_with_fixed_cache if is_fixed else self.compiled
            if not self.has_static_shapes:
                self._lengths.mark(args, kwargs)
            shape = call_shape(args, kwargs) if self._untraceable else None
            reason = self._untraceable.get(shape, "")
            try:
                if not reason:
                    with self.backend.fixed_length(is_fixed):
                        return self._try_whole(compiled, args, kwargs)
            except COMPILE_ERRORS as error:
                reason = f"TorchDynamo cannot trace it: {compile_error_text(error)}"
                self._untraceable[call_shape(args, kwargs)] = reason
            except CallNotServed as error:
                reason = str(error)
            if self._may_break(reason) and shape not in self._eager_only:
                try:
                    return self._run_in_parts(args, kwargs)
                except CallNotServed as error:
                    reason = str(error)
        if self.backend.dry_run is not None:
            raise GraphError(f"{type(self.model).__name__!r} cannot be captured: {reason}")
        self.count_eager_call(reason)
        return self._run_eagerly(self.forward, args, kwargs)

    def count_eager_call(self, reason: str) -> None:
        """Note that a call runs eagerly, and why."""
        self.eager_calls[reason] += 1

    def follow_code(self) -> None:
        """Compile again if the class of the model or of a module has another forward now."""
        if self._class_forward is not None and type(self.model).forward is not self._class_forward:
            self._class_forward = type(self.model).forward
            self.forward = types.MethodType(self._class_forward, self.model)
            self.drop_graphs()
        elif self._code.changed:
            self.drop_graphs()

    def _try_whole(self, compiled: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function that was compiled as one graph.

        Raises:
            CallNotServed: The function does not serve the call; nothing of it has run.
        """
        runs = self.backend.run_count
        outputs = self.run_compiled(compiled, args, kwargs)
        if self.backend.run_count == runs:
            reason = "TorchDynamo skips the model's forward"
            self._untraceable[call_shape(args, kwargs)] = f"{reason}: recompile limit or disabled"
            self.eager_calls[reason] += 1
        return outputs

    def _run_in_parts(self, args: Any, kwargs: Any) -> Any:
        """Call the model as several graphs; what TorchDynamo fails to compile runs as in Python.

        So the call need not begin again after an error, when a part of it has run.

        Raises:
            CallNotServed: Nothing of the call has run.
            ExecutionError: What follows a graph break failed to compile.
        """
        backend, shape = self.backend, call_shape(args, kwargs)
        runs = backend.run_count
        with warnings.catch_warnings(), suppressed_errors() as errors, backend.in_parts():
            warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor")
            warnings.filterwarnings("ignore", "Dynamo does not know how to trace")
            try:
                outputs = self.run_compiled(self._compiled_in_parts, args, kwargs)
            except COMPILE_ERRORS as error:
                text = compile_error_text(error)
                if backend.dry_run is not None and backend.run_count == runs:
                    raise CallNotServed(f"TorchDynamo cannot trace a part of it: {text}") from error
                raise ExecutionError(
                    f"the call cannot go on after a graph break: {text}; "
                    "make it inside model.placed.eager()"
                ) from error
        if errors and backend.run_count == runs:
            self._eager_only.add(shape)
            text = compile_error_text(errors[0])
            self.count_eager_call(f"TorchDynamo cannot trace a part of it: {text}")
        return outputs

    def _may_break(self, reason: str) -> bool:
        """Whether a call may run as several graphs.

        With GPUs it may not: what runs between two graphs would meet weights of several devices.
        Nor may a model that differentiates in its forward pass: a graph is one autograd node.
        """
        never = ("recompile", "autograd", "backward", "shares memory", "traces")
        return not self.has_gpus and not any(word in reason for word in never)

    def reason_to_run_eagerly(self, args: Any, kwargs: Any) -> str:
        """Why a call cannot be compiled; empty: it can, as far as is known."""
        reason = reason_to_run_eagerly(args, kwargs)
        if functional_code() != self._functional:
            reason = "functions of torch.nn.functional are replaced"
        if self._may_be_lazy:
            weights = itertools.chain(self.model.parameters(), self.model.buffers())
            self._may_be_lazy = any(is_lazy(weight) for weight in weights)
            if self._may_be_lazy:  # TorchDynamo would draw them, and set the generator back
                reason = "lazy modules have no weights yet"
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
        runs = self.backend.run_count
        try:
            return self._run_compiled(compiled, args, kwargs)
        except StaleGraph:  # a graph of a dry run
            pass
        except (KeyError, AttributeError):  # a weight is gone that such a graph reads
            if not self.backend.leaves_out_guards or self.backend.run_count > runs:
                raise
        is_fixed = compiled is self._compiled_with_fixed_cache
        self.drop_graphs()  # now TorchDynamo guards all
        compiled = self._compiled_with_fixed_cache if is_fixed else self.compiled
        return self._run_compiled(compiled, args, kwargs)

    def _run_compiled(self, compiled: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        leave_out_guards(None)
        is_whole = compiled is not self._compiled_in_parts
        self.backend.thread.signature = self._signature
        guards = full_guards(
            MAX_GRAPHS,
            has_fixed_cache=compiled is self._compiled_with_fixed_cache,
            suppress_errors=not is_whole and self.backend.dry_run is None,
        )
        is_first = compiled in self._untraced
        if is_first:
            self._untraced = [other for other in self._untraced if other is not compiled]
        tracing = rare_collections() if is_first else contextlib.nullcontext()
        with tracing, guards, named_refusals(), return_from_skipped_frames(is_whole):
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

    def reason_of_hooks(self) -> str:
        """Why a call must be made by PyTorch's modules; empty: it need not be."""
        model: Any = self.model
        has_hooks = (
            model._forward_hooks
            or model._forward_pre_hooks
            or model._backward_hooks
            or model._backward_pre_hooks
        )
        return "the model itself has hooks" if has_hooks else ""

    def run_whole(
        self, compiled: Callable[..., Any], args: Any, kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function that was compiled as a whole.

        Raises:
            NotInFlight: This call cannot be compiled.
        """
        reason = self.reason_to_run_eagerly(args, kwargs or {})
        if not reason:
            try:
                return self.run_compiled(compiled, args, kwargs or {})
            except COMPILE_ERRORS as error:
                reason = f"TorchDynamo cannot trace it as a whole: {compile_error_text(error)}"
            except CallNotServed as error:
                reason = str(error)
        raise NotInFlight(f"calls of this kind cannot be in flight together: {reason}")


_model_numbers = itertools.count(1)


def _with_own_code(function: Callable[..., Any], number: int) -> Callable[..., Any]:
    """The function with a code object and a name of its own.

    TorchDynamo limits graphs by code object; and it knows by file, line and name which sizes have
    varied, so that a size which one model has seen twice would be symbolic in the first graph of
    another whose forward is the same function, as those of transformers are.
    """
    plain: Any = getattr(function, "__func__", function)
    if not isinstance(plain, types.FunctionType):
        return function
    copy = types.FunctionType(
        plain.__code__.replace(co_name=f"{plain.__code__.co_name}_{number}"),
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
