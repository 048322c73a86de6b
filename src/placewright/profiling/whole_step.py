"""Times the ops of a program inside whole steps.

An op that is called again and again alone finds its code, and the parts of its tensors that each
core needs, where the last call left them. In a step other ops come in between: the same op takes a
tenth longer, and a small one half as long again. So where a step is short, it is run as it is. Of a
GPU a whole step tells how much longer ops take in it, all together.
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
"""Steps that are timed at a time; those before are not."""
WARMUP_STEPS = 2
HOST_MEMORY_DIVISOR = 8
"""One part in so many of the host's memory may be taken by weights that are made for it."""


def fits_host(program: Program, machine: Machine) -> bool:
    """Whether the host has memory for another copy of all that a step begins with."""
    ops = program.graph.ops
    stored_bytes = sum(sum(op.outputs) for op in ops if op.kind in STORED_KINDS)
    return stored_bytes <= machine.memory // HOST_MEMORY_DIVISOR


class _TimeLimitError(Exception):
    """The time is up, and no step is over yet."""


class StepTimer:
    """A program's steps on a worker, to be run now and again; what they take adds up.

    They are run as a worker of the runtime runs them, which takes time of its own between ops:
    after a large op its code and data are in no near cache, and it takes three times as long as in
    a row of small ones. Others who share a processor come and go, so steps of several moments say
    more than of one.
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
            seconds: That it may take, about.

        Returns:
            Whether there was time for a few.
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
        """A worker whose thread is not started: it serves in the thread of who asks."""
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
        """What each op takes; steps that come after this are counted anew.

        A core that is taken away for a moment delays one op of many, so no op's median shows it,
        and nearly every step's does: all are lengthened until they add up to the median step.
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
    """A step as one CUDA graph; to be called within `device.run`.

    Returns:
        None where it cannot be captured, or there may be no room for it.
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
    """What a device does in a step that does all of it."""
    graph = program.graph
    return compile_graph(graph, [0] * len(graph), 1, changes=program.changes).per_device[0]


def mean_timing(timings: Mapping[int, Timing], positions: Sequence[int]) -> Timing:
    """One timing of ops that are equal: their mean, so that a step of them stays as long.

    Views of nothing but weights take no turn in a step, and no time.
    """
    op_timings = [timings.get(at, Timing(0.0, 0.0, 0)) for at in positions]
    return Timing(
        fmean(timing.seconds for timing in op_timings),
        fmean(timing.spread for timing in op_timings),
        min(timing.samples for timing in op_timings),
        fmean(timing.issue for timing in op_timings),
    )


def _discard_message(target: int, message: Message) -> None:
    """There is no other device."""


def _initial_tensors(program: Program, device: RealDevice) -> dict[Tensor, Any]:
    """Tensors for all that a step begins with; weights are small, so that no number overflows."""
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
