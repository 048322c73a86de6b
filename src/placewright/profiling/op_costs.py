"""Measures every op of a program on every device, and makes a cost Table of it.

Equal ops are measured once: of each kind the heaviest, then those that matter most. What the time
does not allow, or a device cannot run, is worked out from the roofline, times the median of
measured over worked out of its kind; the table says so (`NOT_MEASURED`). To each op comes what the
runtime takes to run it.

Devices are measured one at a time, while the others rest: workers of one host that compute at the
same time share its memory, and are then slower than the table says. If a model's weights exceed the
GPUs, its host is measured while it feeds them (`company`). On a GPU that has the room a whole step
is run as one CUDA graph, and all ops are lengthened or shortened until they add up to it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.costs import NOT_MEASURED, Roofline, Table
from placewright.errors import PlacewrightError
from placewright.graph import VIEW, Graph
from placewright.profiling.cache_model import cache_states
from placewright.profiling.copy_load import CopyLoad, needs_streaming
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
from placewright.runtime.machine import load_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from placewright.cluster import Cluster
    from placewright.runtime.machine import Machine
    from placewright.runtime.program.program import Program
    from placewright.runtime.real_devices import RealDevice

DEFAULT_BUDGET = 60.0
"""Seconds that measuring a graph may take where nobody says."""
MIN_OP_SECONDS, MAX_OP_SECONDS = 0.01, 0.15
"""Seconds that one op is given, on one device."""
STEP_BUDGET_DIVISOR = 4
"""One part in so many of the budget may be taken by whole steps on a host."""
WHOLE_STEP = "a whole step of"
"""The name under which it is kept beside the ops' times, with the graph's."""
FULL_ROOFLINE = Roofline(compute=1.0, memory=1.0)


@dataclass(frozen=True)
class OpProfile:
    """What measuring a graph gave.

    Args:
        distinct: How many ops differ from one another, times devices.
        measured: How many of them were measured now.
        cached: How many had been measured before on this machine.
        failed: Ops that a device could not run, and why.
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
        """How many were worked out from those of their kind."""
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
        cluster: What the devices can do, to tell which ops matter.
        budget: Seconds that it may take, about.
        refresh: Measure also what was measured before on this machine.
        progress: Told what is being measured, and how much of the budget is used.
        limits: Bytes that may be used, by device, where that is less than it has.
    """
    start = time.monotonic()
    copy_load = copy_load_for(program.graph, cluster, devices, limits or {})
    cache = TimingCache(
        machine, {device.model: copy_load.name for device in devices if not device.is_gpu}
    )
    states = cache_states(program.graph, machine.cache)
    groups = equal_ops(program, states)
    models = {
        device.model: device for device in reversed(devices)
    }  # equal hardware is measured once
    estimates = _roofline_seconds(program.graph, cluster, list(models.values()))
    timings: dict[tuple[str, str], Timing] = {}
    jobs: list[tuple[float, str, str]] = []
    for signature, positions in groups.items():
        for column, model in enumerate(models):
            cached = None if refresh else cache.get(model, signature)
            if cached is not None:
                timings[signature, model] = cached
            else:
                estimate = float(estimates[positions[0], column])
                jobs.append((-estimate * len(positions), signature, model))
    cached_count = len(timings)
    failed: dict[str, str] = {}
    step_budget = budget / STEP_BUDGET_DIVISOR
    is_short = estimates.sum(axis=0) * (WARMUP_STEPS + MIN_STEPS) <= step_budget
    missing_models = {model for _, _, model in jobs} if fits_host(program, machine) else set()
    step_timers: dict[str, StepTimer] = {}
    for (model, device), fits in zip(models.items(), is_short, strict=True):
        if fits and model in missing_models and not device.is_gpu:
            progress(f"steps on {device.name}", 0.0)
            timer = StepTimer(program, device)
            if _run_steps(timer, step_budget, copy_load):
                step_timers[model] = timer
    jobs = [job for job in jobs if job[2] not in step_timers]
    op_seconds = min(MAX_OP_SECONDS, max(MIN_OP_SECONDS, budget / max(len(jobs), 1)))
    for index, (signature, model) in enumerate(_measurement_order(jobs, program.graph, groups)):
        elapsed = time.monotonic() - start
        position, device = groups[signature][0], models[model]
        estimate = float(estimates[position, list(models).index(model)])
        if elapsed + 3 * estimate > budget:
            continue  # a shorter one may still fit
        name = program.graph.ops[position].name
        progress(f"{name} on {device.name}", max(elapsed / budget, index / len(jobs)))
        try:
            with nullcontext() if device.is_gpu else copy_load.running():
                timings[signature, model] = device.run(
                    partial(measure_op, program, position, device, op_seconds, states[position])
                )
        except Exception as error:  # no such kernel there, out of memory, a sample it refuses
            failed[f"{name} on {device.name}"] = _first_line(error)
            continue
        cache.put(model, signature, timings[signature, model])
    for model, timer in step_timers.items():
        elapsed = time.monotonic() - start
        if elapsed < budget:  # and others who share the processor may have come or gone
            progress(f"steps on {models[model].name}", elapsed / budget)
            _run_steps(timer, min(step_budget, budget - elapsed), copy_load)
        step_timings = timer.timings()
        for signature, positions in groups.items():
            if (signature, model) not in timings:
                timings[signature, model] = mean_timing(step_timings, positions)
                cache.put(model, signature, timings[signature, model])
    gpu_steps = {
        model: _gpu_step_seconds(cache, program, device, refresh)
        for model, device in models.items()
        if device.is_gpu
    }
    if gpu_steps:
        from placewright.runtime.cuda.issuer import clear_workspaces

        clear_workspaces()
        load_torch().cuda.empty_cache()
    overhead = {}
    for model, device in models.items():
        try:
            overhead[model] = _runtime_overhead(cache, device, cluster, refresh)
        except (PlacewrightError, RuntimeError) as error:  # the runtime cannot run there
            failed[f"the runtime on {device.name}"], overhead[model] = _first_line(error), 0.0
    cache.save()
    table = _cost_table(
        program.graph, groups, models, estimates, timings, machine, overhead, gpu_steps
    )
    return OpProfile(
        table,
        len(groups) * len(models),
        len(timings) - cached_count,
        cached_count,
        failed,
        time.monotonic() - start,
        overhead,
    )


def copy_load_for(
    graph: Graph, cluster: Cluster, devices: Sequence[RealDevice], limits: Mapping[str, int]
) -> CopyLoad:
    """The company that a host's ops have in plans of a graph: none where nothing need stream."""
    return (
        CopyLoad.from_devices(devices) if needs_streaming(graph, cluster, limits) else CopyLoad(())
    )


def _run_steps(timer: StepTimer, seconds: float, copy_load: CopyLoad) -> bool:
    """Whether steps could be run with random numbers, and were short enough to time some."""
    try:
        with copy_load.running():
            return timer.device.run(partial(timer.run, seconds))
    except Exception:  # out of memory, a sample that an op refuses: then ops are timed one by one
        return False


def _measurement_order(
    jobs: list[tuple[float, str, str]], graph: Graph, groups: dict[str, list[int]]
) -> list[tuple[str, str]]:
    """What to measure: of each kind what matters most, since the rest is worked out from it."""
    first_of_kind: list[tuple[str, str]] = []
    others: list[tuple[str, str]] = []
    covered_kinds = set()
    for _, signature, model in sorted(jobs):
        kind = graph.ops[groups[signature][0]].kind, model
        (others if kind in covered_kinds else first_of_kind).append((signature, model))
        covered_kinds.add(kind)
    return first_of_kind + others


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _runtime_overhead(
    cache: TimingCache, device: RealDevice, cluster: Cluster, refresh: bool
) -> float:
    """What the runtime takes for an op on a model, measured once a machine."""
    timing = None if refresh else cache.get(device.model, OVERHEAD_KEY)
    if timing is None:
        timing = Timing(measure_overhead(device, cluster), 0.0, 1)
        cache.put(device.model, OVERHEAD_KEY, timing)
    return timing.seconds


def _gpu_step_seconds(
    cache: TimingCache, program: Program, device: RealDevice, refresh: bool
) -> float:
    """What a whole step takes on a GPU, measured once a machine; zero where that is not known."""
    name = f"{WHOLE_STEP} {program.graph.fingerprint}"
    timing = None if refresh else cache.get(device.model, name)
    if timing is None:
        timing = device.run(partial(time_gpu_step, program, device))
        if timing is None:  # not kept: there may be more memory free another time
            return 0.0
        cache.put(device.model, name, timing)
    return timing.seconds


def _roofline_seconds(
    graph: Graph, cluster: Cluster, devices: Sequence[RealDevice]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Ops × devices: the roofline's word; views take a start."""
    seconds = FULL_ROOFLINE.op_seconds(graph, cluster)
    view = np.array([op.kind == VIEW for op in graph.ops])
    columns = []
    for device in devices:
        at = cluster.position[device.name]
        columns.append(np.where(view, cluster.devices[at].launch_overhead, seconds[:, at]))
    return np.stack(columns, axis=1)


def _cost_table(
    graph: Graph,
    groups: dict[str, list[int]],
    models: dict[str, RealDevice],
    estimates: np.ndarray[Any, np.dtype[np.float64]],
    timings: dict[tuple[str, str], Timing],
    machine: Machine,
    overhead: dict[str, float],
    gpu_steps: dict[str, float],
) -> Table:
    shape = (len(graph), len(models))
    seconds, issue, spread = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for column, model in enumerate(models):
        scale = _CostEstimator(graph, groups, model, estimates[:, column], timings)
        for signature, positions in groups.items():
            timing = timings.get((signature, model))
            for position in positions:
                if timing is not None:
                    seconds[position, column] = timing.seconds
                    issue[position, column] = timing.issue
                    spread[position, column] = timing.spread
                else:
                    seconds[position, column], issue[position, column] = scale(position)
                    spread[position, column] = NOT_MEASURED
        op_positions = [position for positions in groups.values() for position in positions]
        if models[model].is_gpu:
            if gpu_steps.get(model) and seconds[op_positions, column].sum() > 0:
                seconds[op_positions, column] *= (
                    gpu_steps[model] / seconds[op_positions, column].sum()
                )
            issue[op_positions, column] += overhead[model]  # by the host, which both run on
        else:  # in a step that was run it is known op by op
            seconds[op_positions, column] += np.where(
                issue[op_positions, column], issue[op_positions, column], overhead[model]
            )
            issue[:, column] = 0
    names = tuple(op.name for op in graph.ops)
    issue_seconds = issue if issue.any() else None
    workspace = np.zeros(len(graph), dtype=np.int64)
    for (signature, _), timing in timings.items():
        workspace[groups[signature]] = np.maximum(workspace[groups[signature]], timing.workspace)
    return Table(
        names,
        tuple(models),
        seconds,
        issue=issue_seconds,
        spread=spread,
        machine=machine.key,
        workspace=workspace if workspace.any() else None,
    )


class _CostEstimator:
    """Works out the seconds of ops on one model from those that were measured there."""

    def __init__(
        self,
        graph: Graph,
        groups: dict[str, list[int]],
        model: str,
        estimates: np.ndarray[Any, np.dtype[np.float64]],
        timings: dict[tuple[str, str], Timing],
    ) -> None:
        self.graph, self.estimates = graph, estimates
        ratios: dict[str, list[float]] = defaultdict(list)
        issues: dict[str, list[float]] = defaultdict(list)
        for signature, positions in groups.items():
            timing, kind = timings.get((signature, model)), graph.ops[positions[0]].kind
            if timing is not None and estimates[positions[0]] > 0:
                ratios[kind].append(timing.seconds / float(estimates[positions[0]]))
                issues[kind].append(timing.issue)
        self.ratio = {kind: median(values) for kind, values in ratios.items()}
        self.issue = {kind: median(values) for kind, values in issues.items()}
        self.default_ratio = median(
            [value for values in ratios.values() for value in values] or [1.0]
        )
        self.default_issue = median(
            [value for values in issues.values() for value in values] or [0.0]
        )

    def __call__(self, position: int) -> tuple[float, float]:
        kind = self.graph.ops[position].kind
        seconds = float(self.estimates[position]) * self.ratio.get(kind, self.default_ratio)
        return seconds, self.issue.get(kind, self.default_issue)
