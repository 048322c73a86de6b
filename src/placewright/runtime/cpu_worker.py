"""CPU workers: a thread that runs the ops of one CPU device, and its weight streamer.

A worker reads messages from its inbox: begin a step, receive a tensor of another device. It runs
its ops in the plan's order, and waits for the next one to become ready (rule 2). With several steps
in flight it takes the oldest step whose next op is ready.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from placewright.errors import ExecutionError
from placewright.runtime.cuda.backend import current_backend
from placewright.runtime.host_allocator import run_in_main_arena
from placewright.runtime.instructions import ENV, RESIDENT
from placewright.runtime.staging_buffers import StagingBuffers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from placewright.graph import Tensor
    from placewright.runtime.cuda.backend import CudaEvent
    from placewright.runtime.instructions import DeviceInstructions, Instruction
    from placewright.runtime.program.runners import Runner
    from placewright.runtime.real_devices import RealDevice
    from placewright.runtime.staging_layout import StagedCopy
    from placewright.runtime.weight_storage import ResidentTensors


PAGEABLE_BYTES = 2**16  # bytes up to which a pageable copy does not block the issuing thread


class Message(NamedTuple):
    """A message to a device.

    Args:
        kind: `begin` (with the inputs), `tensor`, `read` (an op has read memory that will change),
            `copy` (of a streamed weight) or `stop`.
        event: Marks when the value is complete, if a GPU still computes it.
    """

    kind: str
    step: int = 0
    key: Any = None
    value: Any = None
    event: CudaEvent | None = None


class StepDone(NamedTuple):
    """A device's report that its part of a step has ended."""

    step: int
    device: int
    outputs: Mapping[Tensor, torch.Tensor]
    failure: BaseException | None = None
    op: str = ""


class PendingTensor(NamedTuple):
    """A tensor that is still being copied from a GPU."""

    value: torch.Tensor
    event: CudaEvent

    def wait(self) -> torch.Tensor:
        """Wait for the copy; the tensor."""
        self.event.synchronize()
        return self.value


@dataclass
class WorkerStep:
    """A step that a worker has begun."""

    number: int
    env: dict[Tensor, Any]
    next_index: int = 0
    copies: dict[int, torch.Tensor] = field(default_factory=dict)
    reads_done: set[int] = field(default_factory=set)

    def is_ready(self, instruction: Instruction) -> bool:
        """Whether an op can run."""
        return (
            all(tensor in self.env for tensor in instruction.remote_inputs)
            and all(op in self.reads_done for op in instruction.waits_for)
            and all(
                key in self.copies
                for location, key in instruction.inputs
                if location not in (ENV, RESIDENT)
            )
        )


@dataclass(frozen=True)
class DeviceJob:
    """All that a device needs to run its part of steps.

    Args:
        runners: The function that runs each op of the sequence.
        names: The names of these ops.
        send: Sends a message to another device.
        report: Reports that the device's part of a step has ended.
        gpus: The numbers of the devices that are GPUs.
        staging_buffers: Staging buffers; programs that never run at the same time share them.
        record: Called with (position, begin, end) after every op, if given.
        on_op: Called with (device, step, instruction, outputs) after every op, if given.
    """

    number: int
    real_device: RealDevice
    instructions: DeviceInstructions
    resident: ResidentTensors
    runners: Sequence[Runner]
    names: Sequence[str]
    send: Callable[[int, Message], None]
    report: Callable[[StepDone], None]
    gpus: frozenset[int] = frozenset()
    staging_buffers: StagingBuffers = field(default_factory=StagingBuffers)
    record: Callable[[int, float, float], None] | None = None
    on_op: Callable[[int, Any, Instruction, Sequence[torch.Tensor]], None] | None = None


class CpuWorker(threading.Thread):
    """A CPU device: a thread with its own cores."""

    def __init__(self, job: DeviceJob, streamer: Callable[[Message], None] | None = None) -> None:
        super().__init__(name=f"placewright-{job.real_device.name}", daemon=True)
        self.job, self.streamer = job, streamer
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.steps: list[WorkerStep] = []
        self.early_messages: dict[int, list[Message]] = {}  # of steps that have not begun here
        self.current_op = 0, next(iter(job.names), "")  # the current step and op

    def run(self) -> None:
        with report_errors(self):
            run_in_main_arena(self._work)

    def _work(self) -> None:
        # Errors are reported here, too: this may run in a thread that `run` started.
        with report_errors(self), torch.no_grad():
            self.job.real_device.bind_thread()
            self.serve()

    def serve(self) -> None:
        """Process messages and run ops until a message says to stop.

        Errors of ops are reported. Other errors are raised; the thread reports these, too.
        """
        while True:
            step = self._ready_step()
            if step is not None and self.inbox.empty():
                self._run_op(step)
                continue
            message = self.inbox.get()
            if message.kind == "stop":
                return
            self.current_op = message.step, self.current_op[1]
            self._process_message(message)

    def _process_message(self, message: Message) -> None:
        if message.kind == "begin":
            self.steps.append(WorkerStep(message.step, dict(message.value)))
            if self.streamer is not None:
                self.streamer(message)
            for early_message in self.early_messages.pop(message.step, ()):
                self._process_message(early_message)
            return
        target_step = next((step for step in self.steps if step.number == message.step), None)
        if target_step is None:
            self.early_messages.setdefault(message.step, []).append(message)
        elif message.kind == "tensor":
            target_step.env[message.key] = message.value
        elif message.kind == "copy":
            target_step.copies[message.key] = message.value
        else:
            target_step.reads_done.add(message.key)

    def _ready_step(self) -> WorkerStep | None:
        """The oldest step whose next op is ready; a staging buffer serves one step at a time."""
        candidates = self.steps[:1] if self.streamer is not None else self.steps
        sequence = self.job.instructions.sequence
        for step in candidates:
            if step.is_ready(sequence[step.next_index]):
                return step
        return None

    def _run_op(self, step: WorkerStep) -> None:
        job = self.job
        instruction = job.instructions.sequence[step.next_index]
        env, resident = step.env, job.resident
        self.current_op = step.number, job.names[step.next_index]
        try:
            for tensor in instruction.remote_inputs:
                if isinstance(env[tensor], PendingTensor):
                    env[tensor] = env[tensor].wait()
            inputs = [
                env[key]
                if location == ENV
                else resident[key]
                if location == RESIDENT
                else step.copies[key]
                for location, key in instruction.inputs
            ]
            start = time.perf_counter()
            outputs = job.runners[step.next_index](inputs)
            end = time.perf_counter()
        except Exception as error:
            self.steps.remove(step)
            job.report(StepDone(step.number, job.number, {}, error, job.names[step.next_index]))
            return
        position = instruction.position
        for output, value in enumerate(outputs):
            env[position, output] = value
        for output, target in instruction.sends:
            value = outputs[output]
            if target in job.gpus and value.nbytes > PAGEABLE_BYTES:
                # Pinned here, so that the issuing thread does not wait.
                value = current_backend().pin(value)
            job.send(target, Message("tensor", step.number, (position, output), value))
        for target in instruction.notifies:
            job.send(target, Message("read", step.number, position))
        staged_keys = [
            key for location, key in instruction.inputs if location not in (ENV, RESIDENT)
        ]
        if staged_keys and self.streamer is not None:
            del inputs
            for key in staged_keys:
                del step.copies[key]
            self.streamer(Message("read", step.number, position))
        if job.on_op is not None:
            job.on_op(job.number, step, instruction, outputs)
        for tensor in instruction.frees:
            env.pop(tensor, None)
        if job.record is not None:
            job.record(position, start, end)
        step.next_index += 1
        if step.next_index == len(job.instructions.sequence):
            self._finish_step(step)

    def _finish_step(self, step: WorkerStep) -> None:
        self.steps.remove(step)
        outputs = {
            tensor: step.env[tensor] if tensor in step.env else self.job.resident[tensor]
            for tensor in self.job.instructions.outputs
        }
        self.job.report(StepDone(step.number, self.job.number, outputs))


class WeightStreamer(threading.Thread):
    """Copies streamed weights into a CPU device's staging buffer, in order, as space permits."""

    def __init__(self, job: DeviceJob, source: Callable[[Tensor], torch.Tensor]) -> None:
        super().__init__(name=f"placewright-{job.real_device.name}-copies", daemon=True)
        assert job.instructions.staging is not None
        self.job, self.staging, self.source = job, job.instructions.staging, source
        self.buffer = staging_buffer(job, torch.device("cpu"))
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.pending_steps: deque[int] = deque()  # that wait for their copies, oldest first
        self.readers_done = 0  # in this step
        sequence = job.instructions.sequence
        self.names = {
            instruction.position: name
            for instruction, name in zip(sequence, job.names, strict=True)
        }
        # The step, and the op whose weight is copied.
        self.current_op = 0, self.names[self.staging.readers[0]]

    def run(self) -> None:
        with report_errors(self), torch.no_grad():
            while self._receive():
                while self.pending_steps:
                    if not self._copy_step(self.pending_steps.popleft()):
                        return

    def _receive(self) -> bool:
        """Wait for the next message; false if it says to stop."""
        message = self.inbox.get()
        if message.kind == "begin":
            self.pending_steps.append(message.step)
        elif message.kind == "read":
            self.readers_done += 1
        return message.kind != "stop"

    def _copy_step(self, step: int) -> bool:
        """Copy the weights of a step, and wait for its readers; false if stopped."""
        self.readers_done = 0
        for number, copy in enumerate(self.staging.copies):
            if not self._wait(copy.readers_before):
                return False
            self.current_op = step, self.names[copy.reader]
            self.job.send(self.job.number, Message("copy", step, number, self._copy_weight(copy)))
        return self._wait(len(self.staging.readers))

    def _wait(self, readers: int) -> bool:
        """Wait until this many readers have ended; false if stopped."""
        while self.readers_done < readers:
            if not self._receive():
                return False
        return True

    def _copy_weight(self, copy: StagedCopy) -> torch.Tensor:
        try:
            source = self.source(copy.tensor)
            staged = staging_view(self.buffer, copy.offset, source)
            dense_view(staged).copy_(dense_view(source))
        except Exception as error:
            raise ExecutionError(f"a weight that it reads cannot be copied: {error}") from error
        return staged


@contextmanager
def report_errors(thread: CpuWorker | WeightStreamer) -> Iterator[None]:
    """Report any error of a thread: the caller would wait for it forever."""
    try:
        yield
    except BaseException as error:  # SystemExit, too, ends only the thread
        step, op = thread.current_op
        thread.job.report(StepDone(step, thread.job.number, {}, error, op))


def staging_buffer(job: DeviceJob, device: torch.device) -> torch.Tensor:
    """The staging buffer of a device; a larger one replaces one that is too small."""
    assert job.instructions.staging is not None
    size = job.instructions.staging.capacity
    return job.staging_buffers.take(job.real_device.name, size, device)


def staging_view(buffer: torch.Tensor, offset: int, template: torch.Tensor) -> torch.Tensor:
    """A tensor like `template` in a staging buffer; it is filled through its `dense_view`."""
    dense = torch.empty_like(dense_view(template), device="meta")
    size = dense.untyped_storage().nbytes()
    span = buffer[offset : offset + size].view(template.dtype)
    return span.as_strided(dense.shape, dense.stride()).expand(template.shape)


def dense_view(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without its expanded dimensions, whose stride is 0."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    sizes = [1 if stride == 0 else size for size, stride in pairs]
    return tensor.as_strided(sizes, tensor.stride(), tensor.storage_offset())
