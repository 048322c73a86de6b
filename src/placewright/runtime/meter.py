"""Meter: measures step times of plans in a child process, so that a crash loses nothing.

A step is run ten times, the first five are dropped, and the median of the rest is the step time. A
plan that runs out of memory, crashes or takes too long is infeasible: that is data, not an error.
One whose process crashed or hung is run again after a pause, a few times.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import ConfigError, ExecutionError, PlacewrightError
from placewright.outcome import Outcome
from placewright.plan import Plan
from placewright.runtime.measurement_journal import (
    Measurement,
    append_measurement,
    plan_digest,
    read_measurements,
    section_key,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from placewright.files.journal import Journal, JournalSection
    from placewright.problem import Problem
    from placewright.runtime.executor import Executor

logger = logging.getLogger("placewright")

STEPS, WARMUP_STEPS = 10, 5
MAX_TRIAL_STEPS = 10  # before those, at most, until the runtime has decided on graphs
START_TIMEOUT = 300.0  # seconds that a child may take to load and capture a model
EXIT_TIMEOUT = 5.0  # seconds that a child may take to exit
MAX_PAUSE = 60.0  # seconds between two attempts, at most


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
        attempts: How often a plan is run whose process crashes or hangs.
        pause: Seconds before the second attempt; twice as long before each further one.
        journal: A journal to which each measured plan is written, and from which those of an
            earlier process on the same machine are taken.
    """

    model: Any
    training: bool = False
    optimizer: str | None = None
    device_map: Mapping[str, str] | None = None
    timeout: float = 60.0
    in_flight: int = 1
    steps: int = STEPS
    warmup_steps: int = WARMUP_STEPS
    attempts: int = 2
    pause: float = 1.0
    journal: Journal | None = None
    measurements: dict[str, Measurement] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.attempts < 1 or not self.pause >= 0:
            raise ConfigError(
                f"{self.attempts} attempts with pauses of {self.pause} seconds: expected 1 or "
                "more attempts, and a pause of 0 or more"
            )
        if self.steps <= self.warmup_steps:
            raise ConfigError(
                f"{self.steps} steps, {self.warmup_steps} dropped: expected more steps"
            )
        self._section: JournalSection | None = None
        self._was_started = False
        self._child: Any = None
        self._pipe: Any = None

    def __call__(
        self,
        problem: Problem,
        placements: NDArray[np.int32],
        priority: NDArray[np.float64] | None = None,
        fusion: NDArray[np.int32] | None = None,
    ) -> Outcome:
        """The measured times of plans × ops."""
        parts = [None if part is None else np.atleast_2d(part) for part in (priority, fusion)]
        plans = [
            Plan.of(problem, row, *(None if part is None else part[at] for part in parts))
            for at, row in enumerate(np.atleast_2d(placements))
        ]
        seconds = np.array([self.measure(plan).seconds for plan in plans])
        zeros = np.zeros(len(plans), dtype=np.int64)
        return Outcome(seconds, zeros, zeros.astype(np.float64))

    def measure(self, plan: Plan) -> Measurement:
        """The measured time of a plan; the same plan is measured once.

        Raises:
            ConfigError: The model cannot be built or captured.
            ExecutionError: The child process died or hung before it ran a plan.
        """
        if self.journal is not None and self._section is None:
            self._section = self._open_section(self.journal)
        digest = plan_digest(plan)
        if digest not in self.measurements:
            measurement = self._measure_repeatedly(plan)
            if self.journal is not None and self._section is not None:
                append_measurement(self._section, digest, measurement)
            self.measurements[digest] = measurement
        return self.measurements[digest]

    def _open_section(self, journal: Journal) -> JournalSection:
        names = ("training", "optimizer", "in_flight", "steps", "warmup_steps")
        settings = {name: getattr(self, name) for name in names}
        section = journal.section(
            "measurements", section_key(self.model, self.device_map, settings)
        )
        self.measurements = {**read_measurements(section), **self.measurements}
        return section

    def _measure_repeatedly(self, plan: Plan) -> Measurement:
        """Run a plan until its process neither crashes nor hangs, at most `attempts` times."""
        for attempt in range(1, self.attempts):
            measurement = self._request(plan)
            if not measurement.crashed:
                return replace(measurement, attempts=attempt)
            logger.warning("a plan is run again: %s", measurement.failure)
            self._pause(attempt)
        return replace(self._request(plan), attempts=self.attempts)

    def _pause(self, attempt: int) -> None:
        time.sleep(min(MAX_PAUSE, self.pause * 2 ** (attempt - 1)))

    def _request(self, plan: Plan) -> Measurement:
        if self._child is None or not self._child.is_alive():
            self._restart()
        try:
            self._pipe.send(
                (plan, dict(self.device_map or {}), self.in_flight, self.steps, self.warmup_steps)
            )
            reply = self._receive(self.timeout)
        except TimeoutError:
            self._child.kill()
            self.close()
            failure = f"it took more than {self.timeout:g} seconds"
            return Measurement(math.inf, failure=failure, crashed=True)
        except (EOFError, OSError):
            child = self._child
            self.close()
            failure = f"the process that ran it died ({_exit_reason(child.exitcode)})"
            return Measurement(math.inf, failure=failure, crashed=True)
        assert isinstance(reply, Measurement)
        return reply

    def _restart(self) -> None:
        """Start a child. If an earlier one was ready, one that dies is tried again."""
        for attempt in range(1, self.attempts if self._was_started else 1):
            try:
                return self._start()
            except ExecutionError as error:
                logger.warning("a process is started again: %s", error)
                self._pause(attempt)
        return self._start()

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
        self._was_started = True

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
    from placewright.runtime.sample_model import load_model

    threading.Thread(target=_exit_with_parent, daemon=True).start()
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


def _exit_with_parent() -> None:
    """End this process when its parent is gone, whatever a plan is doing."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _exit_reason(code: int | None) -> str:
    """How a process ended."""
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _send(pipe: Any, reply: Any) -> None:
    """Send a reply, or exit if the parent is gone: nobody would read a traceback."""
    try:
        pipe.send(reply)
    except OSError:
        sys.exit(1)
