"""Checks of a call that TorchDynamo's guards do not make; what fails one runs eagerly.

TorchDynamo guards modes, shapes, hooks of modules and Python state. It does not see hooks of all
modules, transforms that are active around the call, or the sign of a zero.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import os
import random
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn.modules import module as module_hooks
from torch.utils import _pytree as pytree

from placewright.frontends.pytorch.aot_graph import all_attention_kernels
from placewright.runtime.dynamo.graph_inputs import WRAPPER_ARGS, WRAPPER_KWARGS
from placewright.runtime.dynamo.metadata_guards import kept_guards
from placewright.runtime.dynamo.steps import CallNotServed
from placewright.runtime.dynamo.tensor_classes import PLAIN_TENSORS

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence


COMPILE_ERRORS = (
    TorchDynamoException,
    FailOnRecompileLimitHit,
    GuardOnDataDependentSymNode,
    UnsupportedFakeTensorException,
    DynamicOutputShapeException,
    DataDependentOutputException,
)
"""What TorchDynamo raises where it cannot compile a call as one graph."""

IS_TORCH_2_11 = "recompile_limit" not in inspect.signature(torch.compile).parameters
"""Whether PyTorch is 2.11, whose guards see less."""


@contextlib.contextmanager
def full_guards(
    max_graphs: int, has_fixed_cache: bool = False, suppress_errors: bool = False
) -> Iterator[None]:
    """Let TorchDynamo guard all that a model's graphs depend on.

    By default it does not guard hooks of modules. PyTorch 2.11 does not look at weights whose
    module has the same dictionaries as before, and so misses one that was frozen or transposed;
    and it has no limit of recompilations for one function (`max_graphs`), but for all.

    Calls with a fixed cache are traced with equal symbols for equal sizes, where sizes are not
    marked as static: that takes half as long as with a symbol for each layer.

    Warnings that transformers gives once, whatever the call, are left out; other log lines break a
    graph.

    With `suppress_errors` a function that TorchDynamo fails to compile runs as Python runs it.
    """
    settings: dict[str, Any] = {
        "skip_nnmodule_hook_guards": False,
        "ignore_logger_methods": _single_warnings(),
    }
    if suppress_errors:
        settings["suppress_errors"] = True
    if has_fixed_cache:
        settings |= {
            "assume_static_by_default": False,
            "specialize_int": True,
            "specialize_float": True,
        }
    if IS_TORCH_2_11:
        settings |= {
            "guard_nn_modules_using_dict_tags": False,
            "use_recursive_dict_tags_for_guards": False,
            "skip_tensor_guards_with_matching_dict_tags": False,
            "recompile_limit": max_graphs,
        }
    previous = _guard_settings.enter(settings)
    try:
        yield
    finally:
        _guard_settings.exit(previous)


def _single_warnings() -> set[Any]:
    """Methods of loggers that say the same text once."""
    method = getattr(logging.Logger, "warning_once", None)  # of transformers
    ignored: set[Any] = torch._dynamo.config.ignore_logger_methods
    return ignored if method is None else {*ignored, method}


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """PyTorch 2.11 writes its settings as JSON for its metrics, which functions are not."""
    return not record.getMessage().startswith("Unexpected exception logging compilation metrics")


if IS_TORCH_2_11:
    logging.getLogger("torch._dynamo.metrics_context").addFilter(_is_worth_a_line)


class _GuardSettings:
    """TorchDynamo's settings: each thread has its own, but in PyTorch 2.11 all share them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0  # that are inside
        self._previous: dict[str, Any] = {}  # before the first of them came

    def enter(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        config: Any = torch._dynamo.config
        with self._lock:
            previous = {name: getattr(config, name) for name in settings}
            if not self._threads:
                self._previous = previous
            self._threads += 1
            for name, value in settings.items():
                setattr(config, name, value)
        return previous

    def exit(self, previous: Mapping[str, Any]) -> None:
        config: Any = torch._dynamo.config
        with self._lock:
            self._threads -= 1
            if IS_TORCH_2_11:
                previous = {} if self._threads else self._previous
            for name, value in previous.items():
                setattr(config, name, value)


_guard_settings = _GuardSettings()


@contextlib.contextmanager
def named_refusals() -> Iterator[None]:
    """Name the errors with which PyTorch refuses a call that it has not begun.

    While it traces a model, in version 2.11 in any thread, it refuses compiled calls. TorchDynamo
    lets failures of its own assertions pass; they have the stack of the model's code.

    Raises:
        CallNotServed: It refuses the call.
    """
    try:
        yield
    except RuntimeError as error:
        if "symbolically trace a dynamo-optimized function" not in str(error):
            raise
        raise CallNotServed("PyTorch traces a model at this moment") from error
    except AssertionError as error:
        if not hasattr(error, "real_stack"):
            raise
        raise CallNotServed("TorchDynamo cannot trace it: it fails") from error


class _SuppressedErrors(logging.Filter):
    """Collects the errors that TorchDynamo suppresses, instead of logging them."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.local()

    def filter(self, record: logging.LogRecord) -> bool:
        errors: list[BaseException] | None = getattr(self.thread, "errors", None)
        error = record.exc_info[1] if record.exc_info else None
        if errors is None or error is None:
            return True
        errors.append(error)
        return False


_suppressed_errors = _SuppressedErrors()
logging.getLogger("torch._dynamo.convert_frame").addFilter(_suppressed_errors)


@contextlib.contextmanager
def suppressed_errors() -> Iterator[list[BaseException]]:
    """The errors that TorchDynamo suppresses in this thread, inside the block."""
    thread = _suppressed_errors.thread
    previous, thread.errors = getattr(thread, "errors", None), []
    try:
        yield thread.errors
    finally:
        thread.errors = previous


class _FrameCount:
    """PyTorch's count of compiled frames, which all threads share.

    PyTorch 2.13 counts the frames of calls that must be one graph. Where a call has none, it runs
    the call, and then raises an error instead of returning. It does so only where it has begun the
    count itself, from -1; and while the count is not -1, it compiles nothing after a graph break.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0  # that are inside, of any thread
        dynamo: Any = torch._C._dynamo.eval_frame
        self._set: Any = getattr(dynamo, "set_fullgraph_compiled_frame_count", lambda _: -1)

    @contextlib.contextmanager
    def begun(self) -> Iterator[None]:
        """Begin the count, and end it when the last call ends."""
        with self._lock:
            if not self._calls:
                self._set(0)
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                if not self._calls:
                    self._set(-1)


_frame_count = _FrameCount()


def return_from_skipped_frames(is_whole: bool) -> contextlib.AbstractContextManager[None]:
    """Let a call that must be one graph (`is_whole`) return where TorchDynamo skips its frame."""
    return _frame_count.begun() if is_whole else contextlib.nullcontext()


def reason_to_run_eagerly(args: Any, kwargs: Mapping[str, Any]) -> str:
    """Why a call cannot be compiled; empty: it can, as far as is known."""
    for leaf in pytree.tree_leaves((args, dict(kwargs))):
        if isinstance(leaf, torch.Tensor):
            # Nested tensors end the interpreter in torch 2.13, and sparse ones have no strides.
            if leaf.is_nested or leaf.layout != torch.strided or leaf.is_meta:
                return "an argument is a sparse, nested or meta tensor"
            if type(leaf) not in PLAIN_TENSORS:
                return f"an argument is of the tensor class {type(leaf).__name__!r}"
    reason = _reason_not_to_compile()
    if reason:
        return reason
    hooks: Any = module_hooks
    if hooks._has_any_global_hook():
        return "there are hooks of all modules"
    if not all_attention_kernels():
        return "attention kernels are restricted around the call"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "it is inside a transform of torch.func"
    if torch.autograd.forward_ad._current_level >= 0:
        return "it is inside forward-mode differentiation"
    modes: Any = torch.overrides
    if modes._get_current_function_mode_stack():
        return "a torch function mode is active"
    if torch.utils._python_dispatch._get_current_dispatch_mode_stack():
        return "a torch dispatch mode is active"
    return ""


def _reason_not_to_compile() -> str:
    """Why `torch.compile` would not compile, or not with our backend; empty: it does."""
    if torch._dynamo.config.disable or os.environ.get("TORCHDYNAMO_DISABLE") == "1":
        return "torch.compile is disabled"
    stance: Any = getattr(torch._dynamo.eval_frame, "_stance", None)
    name = getattr(stance, "stance", "default")
    if name not in ("default", "fail_on_recompile"):
        return f"the stance of torch.compile is {name!r}"
    if getattr(stance, "backend", None) is not None:
        return "torch.compile is set to another backend"
    return ""


class CodeOfModel:
    """The functions that a model's graphs hold: TorchDynamo does not notice all replacements."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._classes = list({type(module) for module in model.modules()})
        self._methods = self._current_methods()

    @property
    def changed(self) -> bool:
        """Whether a class of the model's modules has another forward now."""
        return self._current_methods() != self._methods

    def _current_methods(self) -> list[Any]:
        return [kind.forward for kind in self._classes]


def refuse_own_generators(entries: Sequence[Any]) -> None:
    """Refuse code that draws from a `random.Random` of its own.

    TorchDynamo takes its state for a constant, so that every call would draw the same numbers.

    Args:
        entries: What TorchDynamo guards.

    Raises:
        CallNotServed: There is such a generator.
    """
    for entry in entries:
        value = getattr(entry, "value", None)
        if value is random.Random or isinstance(value, random.Random):
            raise CallNotServed("it draws from a random.Random of its own")


def functional_code() -> list[Any]:
    """The functions of `torch.nn.functional`, which a program may replace by others."""
    functional: Any = torch.nn.functional
    return list(vars(functional).values())


class ZeroSigns:
    """The signs of the zeros that compiled graphs hold: TorchDynamo takes -0.0 for 0.0."""

    def __init__(self) -> None:
        self._signs: dict[str, float] = {}  # of the float that an expression reads

    def record_guards(self, entries: Sequence[Any]) -> None:
        """Record zeros among the values that TorchDynamo guards."""
        for entry in entries:
            value = getattr(entry, "value", None)
            if isinstance(value, float) and value == 0.0:
                name = getattr(entry.orig_guard, "name", "")
                expression = str(name() if callable(name) else name)
                self._signs.setdefault(expression, math.copysign(1.0, value))

    def differ(
        self,
        signature: inspect.Signature,
        owner: object,
        forward: Callable[..., Any],
        args: Any,
        kwargs: Mapping[str, Any],
    ) -> bool:
        """Whether one of the zeros has the other sign in a call of `owner.forward`.

        Its expression reads a local name of the forward, or of a function around it.
        """
        if not self._signs:
            return False
        local_names: dict[str, Any] = {"self": owner, "fn": forward, "model_forward": forward}
        local_names |= dict.fromkeys(WRAPPER_ARGS, args) | dict.fromkeys(WRAPPER_KWARGS, kwargs)
        try:
            local_names |= signature.bind(*args, **kwargs).arguments
        except TypeError:
            return False
        for expression, sign in self._signs.items():
            try:
                value = eval(expression, {"L": local_names})
            except Exception:  # it reads what this call does not have
                continue
            if isinstance(value, float) and value == 0.0 and math.copysign(1.0, value) != sign:
                return True
        return False


def check_guards(zero_signs: ZeroSigns, entries: Sequence[Any]) -> list[bool]:
    """Check and record what TorchDynamo guards; which guards are kept.

    It is no method of the calls: TorchDynamo would keep the model as long as its code.
    """
    refuse_own_generators(entries)
    zero_signs.record_guards(entries)
    return kept_guards(entries)


def compile_error_text(error: BaseException) -> str:
    """The first line of an error of TorchDynamo's."""
    if isinstance(error, FailOnRecompileLimitHit):
        return "it has been compiled too often: the recompile limit is reached"
    inner = getattr(error, "inner_exception", None)  # what a backend raised
    text = str(error if inner is None else inner)
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def call_shape(args: Any, kwargs: Mapping[str, Any]) -> Hashable:
    """A coarse key of calls that are alike; calls of one key may still differ."""
    leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
    return (
        str(spec),
        torch.is_grad_enabled(),
        *(
            (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else type(leaf)
            for leaf in leaves
        ),
    )


def first_tensor(args: Any, kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """The first tensor among the arguments of a call."""
    first = next(iter((*args, *kwargs.values())), None)
    if isinstance(first, torch.Tensor):  # as it most often is: nothing need be flattened
        return first
    leaves = pytree.tree_leaves((args, dict(kwargs)))
    return next((leaf for leaf in leaves if isinstance(leaf, torch.Tensor)), None)
