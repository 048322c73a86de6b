"""The issuer: one host thread issues the ops of all CUDA devices in plan order.

The host waits only where an op needs a tensor that a CPU device has not computed yet. By then it
has issued every transfer and every copy of streamed weights that can run in the meantime.
"""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

import torch

from placewright.runtime.cpu_worker import DeviceJob, Message, StepDone
from placewright.runtime.cuda.backend import current_backend
from placewright.runtime.cuda.gpu_step import GpuStep, input_locations
from placewright.runtime.cuda.graphs import OBSERVE, REPLAY, CudaGraphs
from placewright.runtime.cuda.streams import CudaDevice, shared_streams
from placewright.runtime.cuda.workspaces import clear_workspaces, open_issuers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from placewright.graph import Tensor
    from placewright.runtime.cuda.backend import CudaEvent
    from placewright.runtime.cuda.streams import DeviceStreams
    from placewright.runtime.instructions import Instruction


class Issuer:
    """Issues the ops of all CUDA devices of a plan.

    Args:
        jobs: Jobs of the CUDA devices, by device number.
        order: (device, index in its sequence) of each of their ops, in the plan's order.
        source: Returns a resident tensor on the device that holds it.
        cuda_graphs: Whether to capture runs of ops once and replay them; None: if that is faster.
        has_workers: Whether CPU devices have ops, too.
        streams: Streams by the name of their device, which other executors use, too.
    """

    def __init__(
        self,
        jobs: Mapping[int, DeviceJob],
        order: Sequence[tuple[int, int]],
        device_count: int,
        source: Callable[[Tensor], torch.Tensor],
        cuda_graphs: bool | None,
        has_workers: bool = True,
        streams: dict[str, DeviceStreams] | None = None,
    ) -> None:
        self.is_single_gpu = (
            len({job.real_device.index for job in jobs.values()}) == 1 and not has_workers
        )
        """Whether one GPU runs all ops, on one stream or several."""
        self.jobs, self.order, self.device_count = jobs, order, device_count
        self.backend = current_backend()
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        shared = {} if streams is None else streams
        self.cuda_devices = {
            number: CudaDevice(job, source, shared_streams(shared, job.real_device))
            for number, job in jobs.items()
        }
        self.steps: list[GpuStep] = []
        self.has_staging = any(
            cuda_device.staging is not None for cuda_device in self.cuda_devices.values()
        )
        self.current_device: CudaDevice | None = None
        self.cuda_graphs = CudaGraphs(self, cuda_graphs)
        open_issuers.add(self)
        self.local_indices = [
            index if number == previous and self._is_local(jobs[number], index) else -1
            for (number, index), (previous, _) in zip(order, [(-1, -1), *order], strict=False)
        ]
        """The index of each op that follows one of its device and needs no other device; or -1."""
        self.next_step = 0

    # -- steps ---------------------------------------------------------------------------------

    def run_until(self, number: int) -> bool:
        """Issue ops until a step is complete on the GPUs; false if stopped before that."""
        devices = {cuda_device.device for cuda_device in self.cuda_devices.values()}
        for device in devices:
            self.backend.open_context(device)
        previous_streams = {device: self.backend.current_stream(device) for device in devices}
        try:
            with torch.no_grad():
                while any(step.number <= number for step in self.steps) or self._is_expected(
                    number
                ):
                    step = self._ready_step()
                    if step is None:
                        message = self.inbox.get()
                    elif self.inbox.empty():
                        self._advance(step)
                        continue
                    else:
                        message = self.inbox.get_nowait()
                    if message.kind == "stop":
                        return False
                    self._process_message(message)
        finally:
            self.current_device = None
            for stream in previous_streams.values():
                self.backend.set_stream(stream)
        return True

    def _is_expected(self, number: int) -> bool:
        """Whether a step was begun, and its message has not been read yet."""
        return self.next_step <= number

    def _process_message(self, message: Message) -> None:
        if message.kind == "begin":
            self.next_step = message.step + 1
            step = self.new_step(message.step)
            self.steps.append(step)
            was_covered = self.cuda_graphs.covers_step
            self.cuda_graphs.begin_step()
            if (
                was_covered
                and not self.cuda_graphs.covers_step
                and self.steps[0].order_index == 0 < len(self.steps) - 1
            ):
                self._begin_staging()  # of the previous step, which was to be one graph
            for number, cuda_device in self.cuda_devices.items():
                step.env[number].update(message.value[number])
                if (
                    cuda_device.staging is not None
                    and len(self.steps) == 1
                    and not self.cuda_graphs.covers_step
                ):
                    cuda_device.staging.begin_step()
            return
        step = next(step for step in self.steps if step.number == message.step)
        target, key = message.key
        if message.kind == "read":
            step.reads_done.add((target, key))
            return
        try:
            self._receive(step, target, key, message.value, message.event)
        except Exception as error:
            self._fail(step, error)

    def new_step(self, number: int = -1) -> GpuStep:
        """A step of which no op has been issued yet."""
        return GpuStep(number, [{} for _ in range(self.device_count)])

    def _receive(
        self,
        step: GpuStep,
        target: int,
        key: Tensor,
        value: torch.Tensor,
        ready_event: CudaEvent | None,
    ) -> None:
        cuda_device = self.cuda_devices[target]
        if value.is_cuda and value.device == cuda_device.device:  # another stream of the same GPU
            step.env[target][key] = value
            if ready_event is not None:
                step.arrival_events[target, key] = ready_event
        else:
            try:
                local, arrival = cuda_device.receive(
                    value, ready_event, self.cuda_graphs.static_input(target, key)
                )
            except torch.OutOfMemoryError:
                if not self.cuda_graphs.try_discard(step.order_index):
                    raise
                local, arrival = cuda_device.receive(value, ready_event)
            step.env[target][key], step.arrival_events[target, key] = local, arrival

    def _ready_step(self) -> GpuStep | None:
        """The oldest step whose next op has all inputs from CPU devices."""
        for step in self.steps[:1] if self.has_staging else self.steps:
            number, index = self.order[step.order_index]
            instruction = self.jobs[number].instructions.sequence[index]
            required = self.cuda_graphs.required_inputs(step.order_index)
            if required is None:
                is_ready = all(tensor in step.env[number] for tensor in instruction.remote_inputs)
            else:
                is_ready = all(tensor in step.env[holder] for holder, tensor in required)
            if is_ready and all(self._has_read(step, number, op) for op in instruction.waits_for):
                return step
        return None

    def _has_read(self, step: GpuStep, number: int, op: int) -> bool:
        return (number, op) in step.reads_done or op in step.read_events

    # -- ops -----------------------------------------------------------------------------------

    def _advance(self, step: GpuStep) -> None:
        """Issue the next op of a step, or the captured run of ops that begins with it."""
        number, index = self.order[step.order_index]
        cuda_device, job = self.cuda_devices[number], self.jobs[number]
        if self.current_device is not cuda_device:
            self.backend.set_stream(cuda_device.compute)
            self.current_device = cuda_device
        try:
            required = self.cuda_graphs.required_inputs(step.order_index)
            if required is None:
                self.wait_inputs(step, cuda_device, job.instructions.sequence[index])
            else:
                self._wait_graph_inputs(step, cuda_device, required)
            count = self.cuda_graphs.replay(step, cuda_device, step.order_index)
            if not count:
                self._issue_op(step, cuda_device, index)
            if required is None:
                for op_index in (
                    self.cuda_graphs.segments[step.order_index].notifying_indices
                    if count
                    else (index,)
                ):
                    self.finish_op(step, cuda_device, job.instructions.sequence[op_index])
            step.order_index += count or 1
            if required is None:  # otherwise the next op may be of another device
                self._issue_local(step, cuda_device)
        except Exception as error:
            self._fail(step, error)
            return
        if step.order_index == len(self.order):
            self._finish_step(step)

    def _fail(self, step: GpuStep, error: Exception) -> None:
        """Report that the next op of a step has failed."""
        self.steps.remove(step)
        number, index = self.order[step.order_index]
        job = self.jobs[number]
        job.report(StepDone(step.number, number, {}, error, job.names[index]))

    def _issue_local(self, step: GpuStep, cuda_device: CudaDevice) -> None:
        """Issue the following ops that need no other device, in a tight loop.

        A host that is slower than the GPU spends most of its time here. It looks for messages in
        between, since a tensor that arrives may have to be sent on at once.
        """
        job, env = cuda_device.job, step.env[cuda_device.number]
        staging, inbox_empty = cuda_device.staging, self.inbox.empty
        sequence, runners = job.instructions.sequence, job.runners
        locations = input_locations(cuda_device, step)
        arrival_events = {} if staging is None else staging.arrival_events
        segments = self.cuda_graphs.segments if self.cuda_graphs.mode == REPLAY else {}
        for order_index in range(step.order_index, len(self.order)):
            index = self.local_indices[order_index]
            if (
                index < 0
                or order_index in segments
                or self.cuda_graphs.mode == OBSERVE
                or not inbox_empty()
            ):
                return
            instruction = sequence[index]
            position = instruction.position
            arrival = arrival_events.get(position)
            if arrival is not None:
                cuda_device.compute.wait_event(arrival)
            try:
                outputs = runners[index](
                    [locations[location][key] for location, key in instruction.inputs]
                )
            except torch.OutOfMemoryError:
                return  # it is issued alone, which can free memory
            for output, value in enumerate(outputs):
                env[position, output] = value
            if arrival is not None and staging is not None:
                staging.reader_issued(cuda_device.record_end(position))
            for tensor in instruction.frees:
                env.pop(tensor, None)
            step.order_index = order_index + 1

    @staticmethod
    def _is_local(job: DeviceJob, index: int) -> bool:
        """Whether an op waits for no other device, and no other device for it."""
        instruction = job.instructions.sequence[index]
        synchronises = (
            instruction.remote_inputs
            or instruction.waits_for
            or instruction.sends
            or instruction.notifies
            or instruction.in_place
        )
        return not synchronises and job.on_op is None

    def _issue_op(self, step: GpuStep, cuda_device: CudaDevice, index: int) -> None:
        """Issue an op that is part of no graph; if memory is short, discard the graphs."""
        try:
            self.issue(step, cuda_device, index)
            return
        except torch.OutOfMemoryError:
            if cuda_device.job.instructions.sequence[
                index
            ].in_place or not self.cuda_graphs.try_discard(step.order_index):
                raise
        self.issue(step, cuda_device, index)

    def wait_inputs(self, step: GpuStep, cuda_device: CudaDevice, instruction: Instruction) -> None:
        """Let the compute stream wait for an op's inputs from other streams."""
        for tensor in instruction.remote_inputs:
            event = step.arrival_events.pop((cuda_device.number, tensor), None)
            if event is not None:
                cuda_device.compute.wait_event(event)
                self.backend.record_use(step.env[cuda_device.number][tensor], cuda_device.compute)
        for op in instruction.waits_for:
            if op in step.read_events:
                cuda_device.compute.wait_event(step.read_events[op])
        self.wait_staging(cuda_device, instruction)

    def _wait_graph_inputs(
        self, step: GpuStep, cuda_device: CudaDevice, required: Sequence[tuple[int, Tensor]]
    ) -> None:
        """Let the stream of a captured step wait for all inputs from other devices."""
        for holder, tensor in required:
            event = step.arrival_events.pop((holder, tensor), None)
            if event is not None:
                cuda_device.compute.wait_event(event)
                self.backend.record_use(step.env[holder][tensor], cuda_device.compute)

    @staticmethod
    def wait_staging(cuda_device: CudaDevice, instruction: Instruction) -> None:
        """Let the compute stream wait for an op's streamed weights."""
        if (
            cuda_device.staging is not None
            and instruction.position in cuda_device.staging.arrival_events
        ):
            cuda_device.compute.wait_event(cuda_device.staging.arrival_events[instruction.position])

    def issue(self, step: GpuStep, cuda_device: CudaDevice, index: int) -> None:
        """Issue one op on the current stream."""
        job, env = cuda_device.job, step.env[cuda_device.number]
        locations = input_locations(cuda_device, step)
        instruction = job.instructions.sequence[index]
        inputs = [locations[location][key] for location, key in instruction.inputs]
        if self.cuda_graphs.mode == OBSERVE:
            self.cuda_graphs.observe(cuda_device.number, instruction, inputs)
        outputs = job.runners[index](inputs)
        for output, value in enumerate(outputs):
            env[instruction.position, output] = value
        if job.on_op is not None:
            job.on_op(cuda_device.number, step, instruction, outputs)

    def finish_op(self, step: GpuStep, cuda_device: CudaDevice, instruction: Instruction) -> None:
        """Send an op's outputs, release its part of the staging buffer, and free dead tensors."""
        env, position = step.env[cuda_device.number], instruction.position
        is_streamed = (
            cuda_device.staging is not None and position in cuda_device.staging.arrival_events
        )
        if instruction.sends or instruction.notifies or is_streamed:
            event = cuda_device.record_end(position)
            for output, target in instruction.sends:
                self.send(
                    step, cuda_device, target, (position, output), env[position, output], event
                )
            for target in instruction.notifies:
                if target in self.cuda_devices:
                    step.read_events[position] = event
                else:
                    event.synchronize()
                    cuda_device.job.send(target, Message("read", step.number, position))
            if is_streamed and cuda_device.staging is not None:
                cuda_device.staging.reader_issued(event)
        for tensor in instruction.frees:
            env.pop(tensor, None)

    def send(
        self,
        step: GpuStep,
        cuda_device: CudaDevice,
        target: int,
        key: Tensor,
        value: torch.Tensor,
        event: CudaEvent,
    ) -> None:
        """Send a tensor from a GPU."""
        if target in self.cuda_devices:
            self._receive(step, target, key, value, event)
        else:
            pending: Any = cuda_device.to_host(value, event)
            cuda_device.job.send(target, Message("tensor", step.number, key, pending))

    def _finish_step(self, step: GpuStep) -> None:
        self.steps.remove(step)
        for number, cuda_device in self.cuda_devices.items():
            outputs = {}
            with self.backend.stream_scope(cuda_device.compute):
                for tensor in cuda_device.job.instructions.outputs:
                    in_env = tensor in step.env[number]
                    value = step.env[number][tensor] if in_env else cuda_device.job.resident[tensor]
                    outputs[tensor] = self.cuda_graphs.stable_copy(value)
            cuda_device.job.report(StepDone(step.number, number, outputs))
        if self.steps:
            self._begin_staging()
        self.cuda_graphs.finish_step()

    def _begin_staging(self) -> None:
        for cuda_device in self.cuda_devices.values():
            if cuda_device.staging is not None:
                cuda_device.staging.begin_step()

    def wait_for_caller(self) -> None:
        """Let all that is issued from now on wait for the caller's streams."""
        for cuda_device in self.cuda_devices.values():
            caller_stream = self.backend.current_stream(cuda_device.device)
            cuda_device.compute.wait_stream(caller_stream)
            cuda_device.incoming.wait_stream(caller_stream)
            if cuda_device.staging is not None:
                cuda_device.staging.stream.wait_stream(caller_stream)

    def release(self) -> None:
        """Free staging buffers, graphs and workspaces of the streams (cuBLAS: 32 MiB each).

        Explicitly: devices and buffers refer to each other, so they would stay until the garbage
        collector runs.
        """
        for cuda_device in self.cuda_devices.values():
            cuda_device.compute.synchronize()
            cuda_device.staging = None
        self.cuda_graphs.discard()
        self.cuda_devices, self.jobs = {}, {}
        open_issuers.discard(self)
        clear_workspaces()

    def join_caller(self, outputs: Iterable[torch.Tensor]) -> None:
        """Let the caller's streams wait for all that was issued, and record their use."""
        for cuda_device in self.cuda_devices.values():
            self.backend.current_stream(cuda_device.device).wait_stream(cuda_device.compute)
        for value in outputs:
            if value.is_cuda:
                self.backend.record_use(value, self.backend.current_stream(value.device))
