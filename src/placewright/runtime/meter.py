"""Plans in, their measured step times out; each in a child process, so that a crash loses nothing.

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
from placewright.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.runtime.executor import Executor

STEPS, DROPPED = 10, 5
WARM = 10  # steps before those, at most, until the runtime has chosen between its ways
START = 300.0  # seconds that a child may take to load and capture a model
PATIENCE = 5.0  # seconds that a child may take to end by itself


@dataclass(frozen=True)
class Measured:
    """What a plan took.

    Args:
        seconds: The step time, or the period with several steps in flight; infinity if it could
            not be run.
        spread: Between the quickest and the slowest of the steps that count, as a share.
        failure: Why it could not be run.
    """

    seconds: float
    spread: float = 0.0
    failure: str = ""


@dataclass(frozen=True, eq=False)
class Judged:
    """What plans took, in turn, as a trainer wants it; see `training.environment.Judged`."""

    seconds: NDArray[np.float64]
    over: NDArray[np.int64]
    share: NDArray[np.float64]

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Whether each plan could be run."""
        valid: NDArray[np.bool_] = np.isfinite(self.seconds)
        return valid


def time_steps(
    executor: Executor,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    steps: int = STEPS,
    dropped: int = DROPPED,
    in_flight: int = 1,
) -> Measured:
    """Run a plan's steps and time them.

    With several in flight the time is that between the ends of steps, on average.
    """
    import torch

    def wait() -> None:
        if executor.issuer is not None:
            torch.cuda.synchronize()

    for _ in range(0 if in_flight > 1 else WARM):
        if executor.settled:
            break
        executor(*args, **kwargs)
    if in_flight > 1:
        waiting = [executor.submit(*args, **kwargs) for _ in range(in_flight)]
        ends = []
        for at in range(dropped + steps * in_flight):
            executor.result(waiting.pop(0))
            ends.append(time.perf_counter())
            if at + in_flight < dropped + steps * in_flight:
                waiting.append(executor.submit(*args, **kwargs))
        wait()
        between = np.diff([*ends[dropped:-1], time.perf_counter()])
        return Measured(float(between.mean()), float(np.ptp(between) / max(between.mean(), 1e-12)))
    seconds = []
    for _ in range(steps):
        wait()
        begin = time.perf_counter()
        executor(*args, **kwargs)
        wait()
        seconds.append(time.perf_counter() - begin)
    counted = seconds[dropped:] or seconds
    middle = median(counted)
    return Measured(middle, (max(counted) - min(counted)) / middle)


@dataclass
class Meter:
    """Measures plans of one model in a child process, which it starts again when it dies.

    It is what a trainer's environment takes as its `measure`: called with a problem and plans ×
    ops, it gives their measured times.

    Args:
        model: A Python file and a function that builds the model, such as `model.py:build`; a
            network's name, such as `inception-v3:training=false`; or a function that can be
            pickled and gives (model, args, kwargs).
        where: Places of devices by name.
        timeout: Seconds that one plan may take.
        in_flight: How many steps are under way at once.
    """

    model: Any
    training: bool = False
    optimizer: str | None = None
    where: Mapping[str, str] | None = None
    timeout: float = 60.0
    in_flight: int = 1
    steps: int = STEPS
    dropped: int = DROPPED
    measured: dict[bytes, Measured] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.steps <= self.dropped:
            raise ConfigError(f"{self.steps} steps, {self.dropped} dropped: expected more steps")
        self._child: Any = None
        self._pipe: Any = None

    def __call__(self, problem: Problem, device: NDArray[np.int32]) -> Judged:
        """The measured times of plans × ops."""
        plans = [Plan.of(problem, row) for row in np.atleast_2d(device)]
        seconds = np.array([self.measure(plan).seconds for plan in plans])
        none = np.zeros(len(plans), dtype=np.int64)
        return Judged(seconds, none, none.astype(np.float64))

    def measure(self, plan: Plan) -> Measured:
        """The measured time of a plan; the same plan is measured once.

        Raises:
            ConfigError: The model cannot be built or captured.
            ExecutionError: The process that is to run plans died or hung before it ran any.
        """
        parts = (plan.device, plan.priority, plan.staging)
        key = b"|".join(b"" if part is None else part.tobytes() for part in parts)
        if key not in self.measured:
            self.measured[key] = self._ask(plan)
        return self.measured[key]

    def _ask(self, plan: Plan) -> Measured:
        if self._child is None or not self._child.is_alive():
            self._start()
        try:
            self._pipe.send(
                (plan, dict(self.where or {}), self.in_flight, self.steps, self.dropped)
            )
            answer = self._answer(self.timeout)
        except TimeoutError:
            self.close()
            return Measured(math.inf, failure=f"it took more than {self.timeout:g} seconds")
        except (EOFError, OSError):
            self.close()
            return Measured(math.inf, failure="the process that ran it died")
        assert isinstance(answer, Measured)
        return answer

    def _start(self) -> None:
        """Start a child that has the model; where that fails it would for every plan, so raise."""
        context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
        self._pipe, theirs = context.Pipe()
        what = (self.model, self.training, self.optimizer)
        child = context.Process(target=serve, args=(theirs, *what), daemon=True)
        child.start()
        self._child = child
        theirs.close()
        try:
            failure = self._answer(START)
        except TimeoutError:
            self.close()
            raise ExecutionError(
                f"the model cannot be measured: it was not built and captured in {START:g} "
                "seconds: take a smaller one, or plan without measuring"
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

    def _answer(self, seconds: float) -> Any:
        if not self._pipe.poll(seconds):
            raise TimeoutError
        return self._pipe.recv()

    def close(self) -> None:
        """End the child process: asked first, so that it leaves nothing behind."""
        if self._child is not None:
            self._pipe.close()
            self._child.join(PATIENCE)
            if self._child.is_alive():
                self._child.kill()
                self._child.join()
            self._child = None

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def serve(pipe: Any, model: Any, training: bool, optimizer: str | None) -> None:
    """What the child does: capture the model, then run every plan it is sent."""
    import torch

    from placewright.runtime.executor import Executor
    from placewright.runtime.program.program import program_of

    sys.stdout = sys.stderr  # what the model prints is no part of an answer
    torch.set_num_threads(1)
    try:
        built, args, kwargs = build(model)
        program = program_of(built, args, kwargs, training, optimizer)
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
        return
    pipe.send(None)
    while True:
        try:
            plan, where, in_flight, steps, dropped = pipe.recv()
        except EOFError:
            return
        try:
            with Executor(program, built, plan, where) as run:
                found = time_steps(run, args, kwargs, steps, dropped, in_flight)
        except Exception as error:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            own = isinstance(error, PlacewrightError)  # whose text says all
            found = Measured(
                math.inf, failure=str(error) if own else f"{type(error).__name__}: {error}"
            )
        pipe.send(found)


def build(model: Any) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
    """The model that a file's function, a network's name or a function stands for.

    What is on `meta` gets made-up numbers: the time of a step does not depend on them.
    """
    if callable(model):
        made = model()
        built, args, kwargs = made if len(made) == 3 else (*made, {})
    elif ".py" in str(model):
        from placewright.frontends.python_file import build_model

        built, args, kwargs = build_model(str(model))
    else:
        from placewright.zoo import built as network

        built, args, kwargs = network(str(model))
    return _filled(built), *_given(args, kwargs)


def _filled(model: Any) -> Any:
    """The model with numbers wherever it has none; weights that are one stay one."""
    import torch

    filled: dict[torch.Tensor, torch.Tensor] = {}  # by identity, as tensors are hashed
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is None or not tensor.is_meta:
                    continue
                if tensor not in filled:
                    made = torch.empty_like(tensor, device="cpu")
                    made = made.normal_(0, 0.02) if made.is_floating_point() else made.zero_()
                    if isinstance(tensor, torch.nn.Parameter):
                        made = torch.nn.Parameter(made, tensor.requires_grad)
                    filled[tensor] = made
                table[name] = filled[tensor]
    return model


def _given(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    import torch

    def given(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_meta:
            made = torch.empty_like(value, device="cpu")
            return made.normal_() if made.is_floating_point() else made.zero_()
        return value

    made: tuple[Any, Any] = torch.utils._pytree.tree_map(given, (_tuple(args), dict(kwargs)))
    return made


def _tuple(args: Any) -> tuple[Any, ...]:
    import torch

    return (args,) if isinstance(args, torch.Tensor) else tuple(args)
