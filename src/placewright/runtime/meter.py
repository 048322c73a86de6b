"""Meter: measures step times of plans in a child process, so that a crash loses nothing.

A step is run ten times, the first five are dropped, and the median of the rest is the step time. A
plan that runs out of memory, crashes or takes too long is infeasible: that is data, not an error.
"""

from __future__ import annotations

import math
import multiprocessing
import sys
import time
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import ConfigError, ExecutionError, PlacewrightError
from placewright.frontends.model_spec import ModelSpec
from placewright.outcome import Outcome
from placewright.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.runtime.executor import Executor

STEPS, WARMUP_STEPS = 10, 5
MAX_TRIAL_STEPS = 10  # before those, at most, until the runtime has decided on graphs
RANDOM_BLOCK = 1 << 20  # random numbers that are drawn for a weight, and repeated
START_TIMEOUT = 300.0  # seconds that a child may take to load and capture a model
EXIT_TIMEOUT = 5.0  # seconds that a child may take to exit


@dataclass(frozen=True)
class Measurement:
    """The measurement of one plan.

    Args:
        seconds: The step time, or the period with several steps in flight; infinity if it could
            not be run.
        spread: The range of the timed steps, as a share of their median.
        failure: Why it could not be run.
    """

    seconds: float
    spread: float = 0.0
    failure: str = ""


def time_steps(
    executor: Executor,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    steps: int = STEPS,
    warmup_steps: int = WARMUP_STEPS,
    in_flight: int = 1,
) -> Measurement:
    """Run a plan's steps and time them.

    With several in flight it is the mean time between the ends of steps.
    """
    from placewright.runtime.cuda.backend import current_backend

    def synchronize() -> None:
        if executor.issuer is not None:
            current_backend().synchronize()

    for _ in range(0 if in_flight > 1 else MAX_TRIAL_STEPS):
        if executor.is_warm:
            break
        executor(*args, **kwargs)
    if in_flight > 1:
        submitted = [executor.submit(*args, **kwargs) for _ in range(in_flight)]
        ends = []
        for index in range(warmup_steps + steps * in_flight):
            executor.result(submitted.pop(0))
            ends.append(time.perf_counter())
            if index + in_flight < warmup_steps + steps * in_flight:
                submitted.append(executor.submit(*args, **kwargs))
        synchronize()
        intervals = np.diff([*ends[warmup_steps:-1], time.perf_counter()])
        return Measurement(
            float(intervals.mean()), float(np.ptp(intervals) / max(intervals.mean(), 1e-12))
        )
    seconds = []
    for _ in range(steps):
        synchronize()
        start = time.perf_counter()
        executor(*args, **kwargs)
        synchronize()
        seconds.append(time.perf_counter() - start)
    timed = seconds[warmup_steps:] or seconds
    median_seconds = median(timed)
    return Measurement(median_seconds, (max(timed) - min(timed)) / median_seconds)


@dataclass
class Meter:
    """Measures plans of one model in a child process, which it restarts when it dies.

    A trainer's environment takes it as `measure`: called with a problem and plans × ops, it returns
    their measured times.

    Args:
        model: A Python file and a function that builds the model, such as `model.py:build`; a
            network's name, such as `inception-v3:training=false`; or a function that can be
            pickled and returns (model, args, kwargs).
        device_map: Real devices of some of the plan's devices, by name.
        timeout: Seconds that one plan may take.
        in_flight: How many steps are in flight at once.
    """

    model: Any
    training: bool = False
    optimizer: str | None = None
    device_map: Mapping[str, str] | None = None
    timeout: float = 60.0
    in_flight: int = 1
    steps: int = STEPS
    warmup_steps: int = WARMUP_STEPS
    measurements: dict[bytes, Measurement] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.steps <= self.warmup_steps:
            raise ConfigError(
                f"{self.steps} steps, {self.warmup_steps} dropped: expected more steps"
            )
        self._child: Any = None
        self._pipe: Any = None

    def __call__(self, problem: Problem, placements: NDArray[np.int32]) -> Outcome:
        """The measured times of plans × ops."""
        plans = [Plan.of(problem, row) for row in np.atleast_2d(placements)]
        seconds = np.array([self.measure(plan).seconds for plan in plans])
        zeros = np.zeros(len(plans), dtype=np.int64)
        return Outcome(seconds, zeros, zeros.astype(np.float64))

    def measure(self, plan: Plan) -> Measurement:
        """The measured time of a plan; the same plan is measured once.

        Raises:
            ConfigError: The model cannot be built or captured.
            ExecutionError: The child process died or hung before it ran a plan.
        """
        arrays = (plan.placement, plan.priority, plan.staging)
        key = b"|".join(b"" if array is None else array.tobytes() for array in arrays)
        if key not in self.measurements:
            self.measurements[key] = self._request(plan)
        return self.measurements[key]

    def _request(self, plan: Plan) -> Measurement:
        if self._child is None or not self._child.is_alive():
            self._start()
        try:
            self._pipe.send(
                (plan, dict(self.device_map or {}), self.in_flight, self.steps, self.warmup_steps)
            )
            reply = self._receive(self.timeout)
        except TimeoutError:
            self.close()
            return Measurement(math.inf, failure=f"it took more than {self.timeout:g} seconds")
        except (EOFError, OSError):
            self.close()
            return Measurement(math.inf, failure="the process that ran it died")
        assert isinstance(reply, Measurement)
        return reply

    def _start(self) -> None:
        """Start a child that builds the model; a failure would concern every plan, so raise."""
        context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
        self._pipe, child_pipe = context.Pipe()
        arguments = (self.model, self.training, self.optimizer)
        child = context.Process(target=serve_plans, args=(child_pipe, *arguments), daemon=True)
        child.start()
        self._child = child
        child_pipe.close()
        try:
            failure = self._receive(START_TIMEOUT)
        except TimeoutError:
            self.close()
            raise ExecutionError(
                f"the model cannot be measured: it was not built and captured in {START_TIMEOUT:g} "
                "seconds: use a smaller one, or plan without measuring"
            ) from None
        except (EOFError, OSError):
            self.close()
            raise ExecutionError(
                "the model cannot be measured: the process that built and captured it died "
                f"(exit code {child.exitcode}): see that there is memory for it, or plan "
                "without measuring"
            ) from None
        if failure is not None:
            self.close()
            raise ConfigError(f"the model cannot be measured: {failure}")

    def _receive(self, timeout: float) -> Any:
        if not self._pipe.poll(timeout):
            raise TimeoutError
        return self._pipe.recv()

    def close(self) -> None:
        """End the child process: let it exit first, then kill it."""
        if self._child is not None:
            self._pipe.close()
            self._child.join(EXIT_TIMEOUT)
            if self._child.is_alive():
                self._child.kill()
                self._child.join()
            self._child = None

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def serve_plans(pipe: Any, model: Any, training: bool, optimizer: str | None) -> None:
    """The child process: captures the model, then runs every plan it receives."""
    import torch

    from placewright.runtime.cuda.backend import current_backend
    from placewright.runtime.executor import Executor
    from placewright.runtime.program.program import build_program

    sys.stdout = sys.stderr  # what the model prints must not mix with replies
    torch.set_num_threads(1)
    try:
        module, args, kwargs = load_model(model)
        program = build_program(module, args, kwargs, training, optimizer)
    except Exception as error:
        _send(pipe, f"{type(error).__name__}: {error}")
        return
    _send(pipe, None)
    while True:
        try:
            plan, device_map, in_flight, steps, warmup_steps = pipe.recv()
        except (EOFError, OSError):  # the parent has closed the pipe, or is gone
            return
        try:
            with Executor(program, module, plan, device_map) as executor:
                measurement = time_steps(executor, args, kwargs, steps, warmup_steps, in_flight)
        except Exception as error:
            if current_backend().device_count():
                current_backend().empty_cache()
            is_ours = isinstance(error, PlacewrightError)  # its text is complete
            measurement = Measurement(
                math.inf, failure=str(error) if is_ours else f"{type(error).__name__}: {error}"
            )
        _send(pipe, measurement)


def _send(pipe: Any, reply: Any) -> None:
    """Send a reply, or exit if the parent is gone: nobody would read a traceback."""
    try:
        pipe.send(reply)
    except OSError:
        sys.exit(1)


def load_model(model: Any) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
    """The model of a file's function, a network's name or a function.

    Tensors on `meta` get random numbers: the time of a step does not depend on them.
    """
    if callable(model):
        result = model()
        module, args, kwargs = result if len(result) == 3 else (*result, {})
    elif ModelSpec.parse(str(model)).is_python:
        from placewright.frontends.python_file import build_model

        module, args, kwargs = build_model(str(model))
    else:
        from placewright.zoo import build_network as network

        module, args, kwargs = network(str(model))
    return _fill_weights(module), *_fill_inputs(args, kwargs)


def _fill_weights(model: Any) -> Any:
    """Fill the model's tensors on `meta` with random numbers; tied weights stay tied."""
    import torch

    replacements: dict[torch.Tensor, torch.Tensor] = {}  # by identity
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is None or not tensor.is_meta:
                    continue
                if tensor not in replacements:
                    data = torch.empty_like(tensor, device="cpu")
                    data = _fill_random(data) if data.is_floating_point() else data.zero_()
                    if isinstance(tensor, torch.nn.Parameter):
                        data = torch.nn.Parameter(data, tensor.requires_grad)
                    replacements[tensor] = data
                table[name] = replacements[tensor]
    return model


def _fill_random(tensor: Any) -> Any:
    """Fill a tensor with small random numbers: a block of them, repeated.

    Drawing every number would take minutes for a large model, copying takes as long as memory does.
    """
    if tensor.numel() <= RANDOM_BLOCK or not tensor.is_contiguous():
        return tensor.normal_(0, 0.02)
    flat = tensor.view(-1)
    flat[:RANDOM_BLOCK].normal_(0, 0.02)
    filled = RANDOM_BLOCK
    while filled < len(flat):
        size = min(filled, len(flat) - filled)
        flat[filled : filled + size].copy_(flat[:size])
        filled += size
    return tensor


def _fill_inputs(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    import torch

    def fill(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_meta:
            data = torch.empty_like(value, device="cpu")
            return data.normal_() if data.is_floating_point() else data.zero_()
        return value

    filled: tuple[Any, Any] = torch.utils._pytree.tree_map(fill, (_as_tuple(args), dict(kwargs)))
    return filled


def _as_tuple(args: Any) -> tuple[Any, ...]:
    import torch

    return (args,) if isinstance(args, torch.Tensor) else tuple(args)
