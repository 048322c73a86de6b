"""Measures every op of a program on every device, and makes a cost Table of it.

Equal ops are measured once, first those that tell most about a step: the heaviest of a kind about
all of its kind, another one about itself. Ops for which the budget is too short, or which a device
cannot run, are estimated (`cost_table`). The runtime's own overhead is added to each op.

Devices are measured one at a time, while the others are idle: workers of one host that compute at
the same time share its memory, and are then slower than the table says. If a model's weights exceed
the GPUs, its host is measured while it copies to them (`copy_load`). On a GPU with enough memory a
whole step is run as one CUDA graph, and the times of all ops are scaled until they add up to it.
"""

from __future__ import annotations

import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import PlacewrightError
from placewright.profiling.cache_model import cache_states
from placewright.profiling.copy_load import copy_load_for
from placewright.profiling.cost_table import OpTimings, build_table, roofline_seconds
from placewright.profiling.isolated import measure_op
from placewright.profiling.op_signatures import equal_ops
from placewright.profiling.overhead import OVERHEAD_KEY, measure_overhead
from placewright.profiling.timing import Timing
from placewright.profiling.timing_cache import TimingCache
from placewright.profiling.whole_step import (
    MIN_STEPS,
    WARMUP_STEPS,
    StepTimer,
    fits_host,
    mean_timing,
    time_gpu_step,
)
from placewright.runtime.cuda.backend import current_backend
from placewright.runtime.cuda.workspaces import clear_workspaces
from placewright.runtime.eager_fallback import memory_caps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from placewright.cluster import Cluster
    from placewright.costs import Table
    from placewright.profiling.copy_load import CopyLoad
    from placewright.runtime.machine import Machine
    from placewright.runtime.program.program import Program
    from placewright.runtime.real_devices import RealDevice

DEFAULT_BUDGET = 60.0
"""Seconds that measuring a graph may take by default."""
MIN_OP_SECONDS, MAX_OP_SECONDS = 0.01, 0.15
"""Seconds spent on one op on one device."""
SMALL_SHARE, SMALL_OP_SECONDS = 0.01, 0.02
"""Seconds spent on an op that with all its equals takes less than this share of a device's step."""
LEAST_SECONDS = 1e-5
"""What an op takes at least, as its share is estimated: a roofline knows no fixed times."""
STEP_BUDGET_DIVISOR = 4
"""Whole steps on a host may take this fraction of the budget."""
WHOLE_STEP = "a whole step of"
"""The timing cache's key of a whole step, followed by the graph's fingerprint."""


@dataclass(frozen=True)
class OpProfile:
    """The measurements of a graph.

    Args:
        distinct: How many ops differ from one another, times devices.
        measured: How many of them were measured now.
        cached: How many had been measured before on this machine.
        failed: Ops that a device could not run, and why.
        seconds: How long it took.
        overhead: Seconds that the runtime itself takes for each op, by model; the table has them.
    """

    table: Table
    distinct: int
    measured: int
    cached: int
    failed: dict[str, str]
    seconds: float
    overhead: dict[str, float]

    @property
    def estimated(self) -> int:
        """How many were estimated from others of their kind."""
        return self.distinct - self.measured - self.cached


def profile_ops(
    program: Program,
    machine: Machine,
    cluster: Cluster,
    devices: Sequence[RealDevice],
    budget: float = DEFAULT_BUDGET,
    refresh: bool = False,
    progress: Callable[[str, float], None] = lambda text, share: None,
    limits: Mapping[str, int] | None = None,
) -> OpProfile:
    """Measure the ops of a program on every device.

    Args:
        cluster: The devices' rates, which tell the ops that matter most.
        budget: Seconds that it may take, about.
        refresh: Measure again what was measured before on this machine.
        progress: Called with what is being measured, and the share of the budget that is used.
        limits: Bytes that may be used, by device, where that is less than its memory.
    """
    copy_load = copy_load_for(program.graph, cluster, devices, limits or {})
    caps = {
        device.index: limits[device.name]
        for device in devices
        if limits and device.is_gpu and device.name in limits
    }
    with memory_caps(caps):  # what does not fit is estimated
        return _OpProfiler(
            program, machine, cluster, devices, budget, refresh, progress, copy_load
        ).run()


def prepare_overhead(machine: Machine, cluster: Cluster, devices: Sequence[RealDevice]) -> None:
    """Measure the runtime's overhead on each device, unless that is known.

    It exports small models, and PyTorch then drops every graph that was compiled before: so it is
    best done before a model is captured.
    """
    cache = TimingCache(machine, {device.model: "" for device in devices if not device.is_gpu})
    for device in {device.model: device for device in reversed(devices)}.values():
        with suppress(PlacewrightError, RuntimeError):  # the runtime cannot run there
            _runtime_overhead(cache, device, cluster, refresh=False)
    cache.save()


class _OpProfiler:
    """Measures the ops of one program, phase by phase."""

    def __init__(
        self,
        program: Program,
        machine: Machine,
        cluster: Cluster,
        devices: Sequence[RealDevice],
        budget: float,
        refresh: bool,
        progress: Callable[[str, float], None],
        copy_load: CopyLoad,
    ) -> None:
        self.start = time.monotonic()
        self.program, self.machine, self.cluster = program, machine, cluster
        self.budget, self.refresh, self.progress = budget, refresh, progress
        self.copy_load = copy_load
        self.cache = TimingCache(
            machine, {device.model: copy_load.name for device in devices if not device.is_gpu}
        )
        self.states = cache_states(program.graph, machine.cache)
        # Equal hardware is measured once.
        self.models = {device.model: device for device in reversed(devices)}
        self.groups = equal_ops(program, self.states)
        self.estimates = roofline_seconds(program.graph, cluster, list(self.models.values()))
        positions = [position for group in self.groups.values() for position in group]
        self._totals = np.maximum(self.estimates[positions], LEAST_SECONDS).sum(axis=0)
        self.timings: dict[tuple[str, str], Timing] = {}
        self.failed: dict[str, str] = {}

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start

    def run(self) -> OpProfile:
        """Measure, and make the table."""
        missing = self._read_cache()
        cached = len(self.timings)
        step_timers = self._run_host_steps({model for _, model in missing})
        self._time_ops([job for job in missing if job[1] not in step_timers])
        self._finish_host_steps(step_timers)
        gpu_steps = self._time_gpu_steps()
        overhead = self._measure_overhead()
        self.cache.save()
        measured = OpTimings(
            self.program.graph, self.groups, self.models, self.estimates, self.timings
        )
        return OpProfile(
            build_table(measured, self.machine.key, overhead, gpu_steps),
            len(self.groups) * len(self.models),
            len(self.timings) - cached,
            cached,
            self.failed,
            self.elapsed,
            overhead,
        )

    def _read_cache(self) -> list[tuple[str, str]]:
        """Take cached timings; the signatures and models that are missing."""
        missing = []
        for signature in self.groups:
            for model in self.models:
                cached = None if self.refresh else self.cache.get(model, signature)
                if cached is not None:
                    self.timings[signature, model] = cached
                else:
                    missing.append((signature, model))
        return missing

    def _run_host_steps(self, missing_models: set[str]) -> dict[str, StepTimer]:
        """Time whole steps on workers where they are short enough; the timers, by model."""
        step_budget = self.budget / STEP_BUDGET_DIVISOR
        is_short = self.estimates.sum(axis=0) * (WARMUP_STEPS + MIN_STEPS) <= step_budget
        step_timers: dict[str, StepTimer] = {}
        if not fits_host(self.program, self.machine):
            return step_timers
        for (model, device), fits in zip(self.models.items(), is_short, strict=True):
            if fits and model in missing_models and not device.is_gpu:
                self.progress(f"steps on {device.name}", 0.0)
                timer = StepTimer(self.program, device)
                if _run_steps(timer, step_budget, self.copy_load):
                    step_timers[model] = timer
        return step_timers

    def _time_ops(self, jobs: list[tuple[str, str]]) -> None:
        """Time ops in isolation, those that matter most first, while the budget lasts."""
        op_seconds = min(MAX_OP_SECONDS, max(MIN_OP_SECONDS, self.budget / max(len(jobs), 1)))
        for index, (signature, model) in enumerate(self._measurement_order(jobs)):
            elapsed = self.elapsed
            position, device = self.groups[signature][0], self.models[model]
            if elapsed + 3 * self._estimate(signature, model) > self.budget:
                continue  # a shorter one may still fit
            name = self.program.graph.ops[position].name
            self.progress(f"{name} on {device.name}", max(elapsed / self.budget, index / len(jobs)))
            seconds = op_seconds
            if self._share(signature, model) < SMALL_SHARE:
                seconds = min(op_seconds, SMALL_OP_SECONDS)
            measure = partial(
                measure_op, self.program, position, device, seconds, self.states[position]
            )
            try:
                with nullcontext() if device.is_gpu else self.copy_load.running():
                    timing = device.run(measure)
            except Exception as error:  # no such kernel, out of memory, a sample it refuses
                self.failed[f"{name} on {device.name}"] = _first_line(error)
                continue
            self._keep(signature, model, timing)

    def _estimate(self, signature: str, model: str) -> float:
        """The roofline's seconds of one op of a group."""
        column = list(self.models).index(model)
        return float(self.estimates[self.groups[signature][0], column])

    def _share(self, signature: str, model: str) -> float:
        """The share of a step on a model that the ops of a group take, by the roofline."""
        total = self._totals[list(self.models).index(model)]
        seconds = max(self._estimate(signature, model), LEAST_SECONDS)
        return float(seconds * len(self.groups[signature]) / total)

    def _measurement_order(self, jobs: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Jobs by the share of their device's step that they tell about.

        The longest op of a kind tells about all of its kind, which are estimated from it; another
        one about itself alone.
        """
        total_seconds = {
            (signature, model): self._estimate(signature, model) * len(self.groups[signature])
            for signature, model in jobs
        }
        of_model: dict[str, float] = {}
        of_kind: dict[tuple[str, str], float] = {}
        for (signature, model), seconds in total_seconds.items():
            kind = self._kind(signature), model
            of_kind[kind] = of_kind.get(kind, 0.0) + seconds
            of_model[model] = of_model.get(model, 0.0) + seconds
        told = dict(total_seconds)
        for signature, model in sorted(jobs, key=lambda job: (-total_seconds[job], *job)):
            told[signature, model] = of_kind.pop(
                (self._kind(signature), model), told[signature, model]
            )
        return sorted(jobs, key=lambda job: (-told[job] / (of_model[job[1]] or 1.0), *job))

    def _kind(self, signature: str) -> str:
        return self.program.graph.ops[self.groups[signature][0]].kind

    def _finish_host_steps(self, step_timers: Mapping[str, StepTimer]) -> None:
        """Time a few steps more, and take what whole steps say of each op."""
        step_budget = self.budget / STEP_BUDGET_DIVISOR
        for model, timer in step_timers.items():
            elapsed = self.elapsed
            if elapsed < self.budget:  # other processes may have come or gone
                self.progress(f"steps on {self.models[model].name}", elapsed / self.budget)
                _run_steps(timer, min(step_budget, self.budget - elapsed), self.copy_load)
            step_timings = timer.timings()
            for signature, positions in self.groups.items():
                if (signature, model) not in self.timings:
                    self._keep(signature, model, mean_timing(step_timings, positions))

    def _keep(self, signature: str, model: str, timing: Timing) -> None:
        self.timings[signature, model] = timing
        self.cache.put(model, signature, timing)

    def _time_gpu_steps(self) -> dict[str, float]:
        """Seconds of a whole step on each GPU model; 0 where that is not known."""
        gpu_steps = {
            model: _gpu_step_seconds(self.cache, self.program, device, self.refresh)
            for model, device in self.models.items()
            if device.is_gpu
        }
        if gpu_steps:
            clear_workspaces()
            current_backend().empty_cache()
        return gpu_steps

    def _measure_overhead(self) -> dict[str, float]:
        """Seconds that the runtime takes for an op, by model."""
        overhead = {}
        for model, device in self.models.items():
            try:
                overhead[model] = _runtime_overhead(self.cache, device, self.cluster, self.refresh)
            except (PlacewrightError, RuntimeError) as error:  # the runtime cannot run there
                self.failed[f"the runtime on {device.name}"] = _first_line(error)
                overhead[model] = 0.0
        return overhead


def _run_steps(timer: StepTimer, seconds: float, copy_load: CopyLoad) -> bool:
    """Whether steps could be run on random numbers, and were short enough to time some."""
    try:
        with copy_load.running():
            return timer.device.run(partial(timer.run, seconds))
    except Exception:  # out of memory, a sample that an op refuses: then ops are timed one by one
        return False


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _runtime_overhead(
    cache: TimingCache, device: RealDevice, cluster: Cluster, refresh: bool
) -> float:
    """Seconds that the runtime takes for an op on a model, measured once per machine."""
    timing = None if refresh else cache.get(device.model, OVERHEAD_KEY)
    if timing is None:
        timing = Timing(measure_overhead(device, cluster), 0.0, 1)
        cache.put(device.model, OVERHEAD_KEY, timing)
    return timing.seconds


def _gpu_step_seconds(
    cache: TimingCache, program: Program, device: RealDevice, refresh: bool
) -> float:
    """Seconds of a whole step on a GPU, measured once per machine; 0 where that is not known."""
    name = f"{WHOLE_STEP} {program.graph.fingerprint}"
    timing = None if refresh else cache.get(device.model, name)
    if timing is None:
        timing = device.run(partial(time_gpu_step, program, device))
        if timing is None:  # not cached: more memory may be free another time
            return 0.0
        cache.put(device.model, name, timing)
    return timing.seconds
