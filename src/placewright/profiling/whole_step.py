"""Times the ops of a program inside whole steps.

An op that is called repeatedly in isolation finds its code, and the parts of its tensors that each
core needs, in the caches. In a step other ops run in between: the same op takes 10 % longer, and a
small one 50 %. So if a step is short, whole steps are timed. On a GPU a whole step tells how much
longer all ops together take in it.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from placewright.graph import WEIGHT
from placewright.profiling.op_signatures import STORED_KINDS
from placewright.profiling.timing import (
    Timing,
    summarise,
    time_cuda_graph,
)
from placewright.runtime.cuda.backend import current_backend
from placewright.runtime.instructions import ENV, compile_graph
from placewright.runtime.machine import load_torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.graph import Tensor
    from placewright.runtime.cpu_worker import (
        CpuWorker,
        Message,
        StepDone,
    )
    from placewright.runtime.instructions import DeviceInstructions
    from placewright.runtime.machine import Machine
    from placewright.runtime.program.program import Program
    from placewright.runtime.real_devices import RealDevice

MIN_STEPS, MAX_STEPS = 5, 20
"""Steps that are timed in one run, after the warm-up."""
WARMUP_STEPS = 2
HOST_MEMORY_DIVISOR = 8
"""Random weights for the steps may take this fraction of the host's memory."""


def fits_host(program: Program, machine: Machine) -> bool:
    """Whether the host has memory for another copy of all weights, states and inputs."""
    ops = program.graph.ops
    stored_bytes = sum(sum(op.outputs) for op in ops if op.kind in STORED_KINDS)
    return stored_bytes <= machine.memory // HOST_MEMORY_DIVISOR


class _TimeLimitError(Exception):
    """The time is up before a step has ended."""


class StepTimer:
    """Times a program's steps on a worker, in several runs whose samples add up.

    They are run as a worker of the runtime runs them, which takes its own time between ops: after a
    large op its code and data are in no near cache, and it takes three times as long as between
    small ones. Other processes come and go, so steps at several moments say more than at one.
    """

    def __init__(self, program: Program, device: RealDevice) -> None:
        self.program, self.device = program, device
        self.instructions = step_instructions(program)
        self.positions = [turn.position for turn in self.instructions.sequence]
        self.worker: CpuWorker | None = None
        self.step_inputs: dict[Tensor, Any] = {}
        self.deadline = math.inf
        self.op_spans: list[tuple[float, float]] = []
        self.step_seconds: list[list[tuple[float, float]]] = []
        """Seconds before and of each op, step by step."""

    def run(self, seconds: float, max_steps: int = MAX_STEPS) -> bool:
        """Time some steps; to be called within `device.run`.

        Args:
            seconds: How long it may take, about.

        Returns:
            Whether there was time for `MIN_STEPS`.
        """
        deadline = time.perf_counter() + seconds
        if self.worker is None:
            self.worker = self._make_worker()
        for step in range(WARMUP_STEPS + max_steps):
            self.deadline = deadline if step < WARMUP_STEPS else math.inf
            try:
                self._run_step(self.worker)
            except _TimeLimitError:
                self.worker = None
                return False
            if step >= WARMUP_STEPS:
                ends = [self.op_spans[0][0], *(end for _, end in self.op_spans)]
                self.step_seconds.append(
                    [
                        (begin - previous_end, end - begin)
                        for previous_end, (begin, end) in zip(ends, self.op_spans, strict=False)
                    ]
                )
            if time.perf_counter() > deadline:
                break
        return step + 1 - WARMUP_STEPS >= MIN_STEPS

    def _make_worker(self) -> CpuWorker:
        """A worker whose thread is not started: it runs in the calling thread."""
        from placewright.runtime.cpu_worker import CpuWorker, DeviceJob
        from placewright.runtime.micro_batches import op_runners
        from placewright.runtime.weight_storage import add_views

        program, instructions, device = self.program, self.instructions, self.device
        stored_tensors = _initial_tensors(program, device)
        self.step_inputs = {tensor: stored_tensors.pop(tensor) for tensor in instructions.inputs}
        add_views(program, instructions, device, stored_tensors)
        names = [program.graph.ops[position].name for position in self.positions]
        runners = op_runners(program, instructions, device)
        return CpuWorker(
            DeviceJob(
                0,
                device,
                instructions,
                stored_tensors,
                runners,
                names,
                _discard_message,
                self._finish_step,
                record=self._record_op,
            )
        )

    def _run_step(self, worker: CpuWorker) -> None:
        from placewright.runtime.cpu_worker import Message

        self.op_spans.clear()
        worker.inbox.put(Message("begin", 0, None, self.step_inputs))
        worker.serve()

    def _record_op(self, position: int, begin: float, end: float) -> None:
        self.op_spans.append((begin, end))
        if end > self.deadline:
            raise _TimeLimitError

    def _finish_step(self, done: StepDone) -> None:
        from placewright.runtime.cpu_worker import Message

        if done.failure is not None:
            raise done.failure
        assert self.worker is not None
        self.worker.inbox.put(Message("stop"))

    def timings(self) -> dict[int, Timing]:
        """The timing of each op; later samples start over.

        A core that is taken away for a moment delays one op of many. No op's median shows that, but
        nearly every step's time does: all ops are scaled until they add up to the median step.
        """
        steps, self.step_seconds = self.step_seconds, []
        timings = []
        for op_steps in zip(*steps, strict=True):
            gap, duration = zip(*op_steps, strict=True)
            timings.append(summarise(duration, median(gap)))
        median_step = median(sum(gap + duration for gap, duration in step) for step in steps)
        scale = median_step / sum(timing.seconds + timing.issue for timing in timings)
        return {
            position: replace(timing, seconds=timing.seconds * scale, issue=timing.issue * scale)
            for position, timing in zip(self.positions, timings, strict=True)
        }


def time_gpu_step(program: Program, device: RealDevice) -> Timing | None:
    """Time a step as one CUDA graph; to be called within `device.run`.

    Returns:
        None if it cannot be captured, or might not fit into memory.
    """
    from placewright.runtime.micro_batches import op_runners
    from placewright.runtime.weight_storage import add_views

    torch = load_torch()
    needed_bytes = sum(sum(op.outputs) for op in program.graph.ops)
    if needed_bytes > current_backend().free_bytes(device.index) // 2:
        return None
    instructions = step_instructions(program)
    try:
        stored_tensors = _initial_tensors(program, device)
        step_inputs = {tensor: stored_tensors.pop(tensor) for tensor in instructions.inputs}
        add_views(program, instructions, device, stored_tensors)
        runners = op_runners(program, instructions, device)

        def run_step(_: int) -> None:
            env = dict(step_inputs)
            for instruction, run in zip(instructions.sequence, runners, strict=True):
                outputs = run(
                    [
                        env[key] if storage == ENV else stored_tensors[key]
                        for storage, key in instruction.inputs
                    ]
                )
                env |= {
                    (instruction.position, output): value for output, value in enumerate(outputs)
                }
                for tensor in instruction.frees:
                    env.pop(tensor, None)

        return time_cuda_graph(torch, device.index, run_step, 1)
    except Exception:  # out of memory, a sample that an op refuses
        return None


def step_instructions(program: Program) -> DeviceInstructions:
    """The instructions of a device that runs the whole step."""
    graph = program.graph
    return compile_graph(graph, [0] * len(graph), 1, changes=program.changes).per_device[0]


def mean_timing(timings: Mapping[int, Timing], positions: Sequence[int]) -> Timing:
    """One timing of equal ops: their mean, so that the step's total stays the same.

    Views of weights alone are not scheduled, and take no time.
    """
    op_timings = [timings.get(at, Timing(0.0, 0.0, 0)) for at in positions]
    return Timing(
        fmean(timing.seconds for timing in op_timings),
        fmean(timing.spread for timing in op_timings),
        min(timing.samples for timing in op_timings),
        fmean(timing.issue for timing in op_timings),
    )


def _discard_message(target: int, message: Message) -> None:
    """Discard it: there is no other device."""


def _initial_tensors(program: Program, device: RealDevice) -> dict[Tensor, Any]:
    """Random weights, states and inputs; weights are small, so that no number overflows."""
    from placewright.profiling.sample_inputs import (
        index_limits,
        needs_unique_indices,
        sample_like,
    )

    limits: dict[Tensor, int] = {}
    distinct_tensors: set[Tensor] = set()
    for node in program.builder.op_nodes.values():
        for source, limit in index_limits(node).items():
            for tensor in program.builder.node_tensors.get(source) or ():
                if tensor is not None:
                    limits[tensor] = min(limit, limits.get(tensor, limit))
                    distinct_tensors |= {tensor} if needs_unique_indices(node) else set()
    tensors = {}
    for at, op in enumerate(program.graph.ops):
        if op.kind in STORED_KINDS:
            for output in range(len(op.outputs)):
                tensor = at, output
                template = program.meta_tensors[tensor]
                value = sample_like(
                    template, device.torch_device, limits.get(tensor), tensor in distinct_tensors
                )
                if op.kind == WEIGHT and template.dim() > 1 and template.is_floating_point():
                    value.div_(max(1, template.numel() // max(1, template.shape[0])))
                tensors[tensor] = value
    return tensors
