"""CUDA graphs: captures runs of ops of a GPU once and replays them.

Issuing a small op from Python takes the host some 20 µs, so a step of many small ops waits for the
host. A run of ops between two points where devices synchronise is captured instead. It starts when
all its streamed weights have arrived, while those of the next runs are being copied. If one GPU
runs all ops, the whole step is captured, with all its streams and the copies of streamed weights.
A graph reads its inputs at fixed addresses, so tensors from other devices are copied there.

Capturing runs nothing, so it needs no step: the shapes of what graphs will read are observed in the
first step, and between two steps all runs are captured, each tensor freed where a step frees it.
"""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from placewright.runtime.cuda.graph_segments import (
    DeviceTensor,
    GraphSegment,
    captured_indices,
    find_segments,
    persistent_tensors,
    segment_reads,
)
from placewright.runtime.instructions import ENV
from placewright.runtime.micro_batches import weight_updates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.graph import Tensor
    from placewright.runtime.cuda.gpu_step import GpuStep
    from placewright.runtime.cuda.issuer import Issuer
    from placewright.runtime.cuda.streams import CudaDevice
    from placewright.runtime.instructions import Instruction

OBSERVE, EAGER, REPLAY = "note", "eager", "replay"
_TRIAL_STEPS = 3  # steps with graphs, and without, before one of both is chosen


class CudaGraphs:
    """Decides which runs of ops are captured, and replays them.

    Args:
        enabled: Whether to capture; None: time steps with and without graphs, and keep the faster.
    """

    def __init__(self, issuer: Issuer, enabled: bool | None) -> None:
        self.issuer, self.backend, self.enabled = issuer, issuer.backend, enabled
        self.segments = (
            {}
            if enabled is False
            else {segment.start: segment for segment in find_segments(issuer)}
        )
        self.mode = EAGER
        self.updates = weight_updates(issuer.jobs.values())
        self.steps = 0
        self.seconds: dict[str, list[float]] = {EAGER: [], REPLAY: []}
        self.templates: dict[DeviceTensor, torch.Tensor] = {}
        """Tensors that graphs may read, without data."""
        self.resident_memory: dict[int, set[int]] = {}
        """Addresses of resident tensors, by device, while a step is observed."""
        self.static_memory: set[int] = set()  # memory that a replay overwrites
        self.static_inputs: dict[DeviceTensor, torch.Tensor] = {}
        """The fixed copies of tensors that graphs read and no graph computes."""
        self.eager_reason = ""
        """Why ops are issued one by one, although graphs were allowed."""
        self._start_time = 0.0

    @property
    def is_decided(self) -> bool:
        """Whether it is decided if steps use graphs."""
        return not self.segments or self.steps > (1 if self.enabled else 2 * _TRIAL_STEPS)

    @property
    def has_graphs(self) -> bool:
        """Whether anything has been captured."""
        return any(segment.graph is not None for segment in self.segments.values())

    @property
    def covers_step(self) -> bool:
        """Whether the current step is one graph, except for a few ops at its end."""
        return self.mode == REPLAY and any(segment.step_ops for segment in self.segments.values())

    @property
    def accumulates(self) -> bool:
        """Whether updates only accumulate gradients now, which is not what was captured."""
        return any(update.accumulates for update in self.updates)

    def required_inputs(self, order_index: int) -> list[DeviceTensor] | None:
        """The tensors that must arrive before the graph that begins here; None without a graph."""
        segment = self.segments.get(order_index) if self.mode == REPLAY else None
        return segment.required_inputs if segment is not None and segment.step_ops else None

    def static_input(self, number: int, tensor: Tensor) -> torch.Tensor | None:
        """The tensor that graphs read for an input; None if no graph reads it."""
        return self.static_inputs.get((number, tensor)) if self.mode == REPLAY else None

    # -- steps ---------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Begin a step: decide whether it uses graphs."""
        if not self.segments:
            return
        if len(self.issuer.steps) > 1:  # their tensors must not be shared
            self.discard("several steps are in flight")
            return
        if self.accumulates:
            self.mode = EAGER
            return
        cuda_devices = list(self.issuer.cuda_devices.values())
        for cuda_device in cuda_devices:
            for other in cuda_devices:
                if other is not cuda_device and other.device == cuda_device.device:
                    cuda_device.compute.wait_stream(other.compute)
        eager_steps = 1 if self.enabled else _TRIAL_STEPS
        self.mode = OBSERVE if self.steps == 0 else EAGER if self.steps < eager_steps else REPLAY
        if self.mode == OBSERVE:
            self.resident_memory = {
                cuda_device.number: set(map(_storage_ptr, cuda_device.job.resident.values()))
                for cuda_device in cuda_devices
            }
        if self.steps == eager_steps:
            self._capture_segments()
        if self.enabled is None and self.steps == 2 * _TRIAL_STEPS:
            self._choose_mode()
        self._start_time = time.perf_counter()

    def finish_step(self) -> None:
        """Finish a step; the first few are timed until the GPU is done."""
        if not self.segments or self.accumulates:
            return
        if self.enabled is None and self.steps < 2 * _TRIAL_STEPS:
            for cuda_device in self.issuer.cuda_devices.values():
                cuda_device.compute.synchronize()
            self.seconds[REPLAY if self.mode == REPLAY else EAGER].append(
                time.perf_counter() - self._start_time
            )
        self.steps += 1

    def _choose_mode(self) -> None:
        """Keep graphs if they are faster; the first step of either kind is not typical."""
        replay_seconds, eager_seconds = (median(self.seconds[mode][1:]) for mode in (REPLAY, EAGER))
        if replay_seconds >= eager_seconds:
            self.discard(
                f"a replay took {1e3 * replay_seconds:.2f} ms, "
                f"op by op it is {1e3 * eager_seconds:.2f}"
            )

    def __str__(self) -> str:
        count = sum(segment.graph is not None for segment in self.segments.values())
        if count:
            return f"{count} graph{'s' * (count > 1)}"
        return f"op by op: {self.eager_reason}" if self.eager_reason else "op by op"

    def discard(self, reason: str = "") -> None:
        """Drop all graphs: ops are issued one by one from now on."""
        self.segments, self.mode, self.eager_reason = {}, EAGER, reason or self.eager_reason
        self.static_memory.clear()
        self.static_inputs.clear()

    def try_discard(self, order_index: int = 0) -> bool:
        """Drop all graphs, since memory is short; false if that is impossible now.

        Args:
            order_index: The step's next op. It is impossible if graphs before it have computed
                tensors that only later graphs could read.
        """
        later_segments = [
            segment for segment in self.segments.values() if segment.start >= order_index
        ]
        if not self.segments or any(
            start < order_index for segment in later_segments for start in segment.producers
        ):
            return False
        self.discard("there is no memory for graphs")
        _empty_cache(self.issuer)
        return True

    def observe(
        self, number: int, instruction: Instruction, inputs: Sequence[torch.Tensor]
    ) -> None:
        """Remember the shapes of the tensors that an op reads, since graphs may read them.

        A state that was changed in place, or a view of a resident tensor, is read where it is.
        """
        for (location, key), value in zip(instruction.inputs, inputs, strict=True):
            if location == ENV and (number, key) not in self.templates:
                is_resident = _storage_ptr(value) in self.resident_memory[number]
                self.templates[number, key] = (
                    value if is_resident else torch.empty_like(value, device="meta")
                )

    def replay(self, step: GpuStep, cuda_device: CudaDevice, order_index: int) -> int:
        """Replay the run of ops that begins here, if there is one; the number of its ops."""
        segment = self.segments.get(order_index) if self.mode == REPLAY else None
        if segment is None:
            return 0
        for index in segment.streaming_indices:
            self.issuer.wait_staging(cuda_device, cuda_device.job.instructions.sequence[index])
        for (number, tensor), static_input in segment.inputs.items():
            source = step.env[number][tensor]
            if source is not static_input:
                step.env[number][tensor] = static_input.copy_(source)
        segment.graph.replay()
        for (number, tensor), value in segment.outputs.items():
            step.env[number][tensor] = value
        if not segment.step_ops:
            return len(segment.op_indices)
        for other in self.issuer.cuda_devices.values():
            if other is not cuda_device:
                other.compute.wait_stream(cuda_device.compute)
        return segment.step_ops

    def stable_copy(self, value: torch.Tensor) -> torch.Tensor:
        """The value, copied if the next replay would overwrite it."""
        if _storage_ptr(value) not in self.static_memory:
            return value
        try:
            return value.clone()
        except torch.OutOfMemoryError:
            self.try_discard()  # then no replay overwrites it
            return value

    # -- capturing -----------------------------------------------------------------------------

    def _capture_segments(self) -> None:
        """Capture all runs of ops, without running them; those that fail are left out."""
        while self.segments:
            _empty_cache(self.issuer)  # a capture cannot use memory cached by earlier steps
            with torch.inference_mode(False), torch.no_grad():
                failed_start = self._capture_all()
            if failed_start is None:
                if not any(candidate.step_ops for candidate in self.segments.values()):
                    self._check_eager_memory()
                for cuda_device in self.issuer.cuda_devices.values():
                    self.backend.synchronize(cuda_device.device)  # or inputs come before the zeros
                break
            self.segments.pop(failed_start, None)
            for segment in self.segments.values():  # which may need the outputs of that one
                segment.graph, segment.inputs, segment.outputs = None, {}, {}
                segment.producers = set()
            self.static_memory.clear()
            self.static_inputs.clear()
        if not self.segments:
            self.mode = EAGER
            _empty_cache(self.issuer)
        self.templates.clear()
        self.resident_memory.clear()

    def _check_eager_memory(self) -> None:
        """Drop all graphs if there is no memory for the ops that are issued between them."""
        try:
            for cuda_device in self.issuer.cuda_devices.values():
                torch.empty(
                    self._eager_bytes(cuda_device), dtype=torch.uint8, device=cuda_device.device
                )
        except torch.OutOfMemoryError:
            self.try_discard()

    def _eager_bytes(self, cuda_device: CudaDevice) -> int:
        """The most bytes at once of received and computed tensors that belong to no graph."""
        number = cuda_device.number
        captured = captured_indices(self.issuer, self.segments.values(), number)
        outputs_of: dict[int, list[Tensor]] = {}
        for holder, key in self.templates:
            if holder == number:
                outputs_of.setdefault(key[0], []).append(key)
        live_bytes: dict[Tensor, int] = {}
        peak = 0
        for index, instruction in enumerate(cuda_device.job.instructions.sequence):
            new_tensors = [
                key for key in instruction.remote_inputs if (number, key) not in self.static_inputs
            ]
            new_tensors += outputs_of.get(instruction.position, []) if index not in captured else []
            live_bytes |= {key: self.templates[number, key].nbytes for key in new_tensors}
            peak = max(peak, sum(live_bytes.values()))
            for key in instruction.frees:
                live_bytes.pop(key, None)
        return peak

    def _capture_all(self) -> int | None:
        """Capture all runs of ops; the start of the first one that fails, else None."""
        step, pools = self.issuer.new_step(), dict[int, Any]()
        producer: dict[DeviceTensor, int] = {}
        for segment in sorted(self.segments.values(), key=lambda candidate: candidate.start):
            cuda_device = self.issuer.cuda_devices[self.issuer.order[segment.start][0]]
            pool = pools.setdefault(cuda_device.number, self.backend.new_graph_pool())
            try:
                self._capture_segment(segment, step, cuda_device, pool, producer)
            except Exception as error:
                self.backend.synchronize(cuda_device.device)
                # The end of an interrupted capture may fail, too.
                out_of_memory = torch.OutOfMemoryError in (type(error), type(error.__context__))
                self.eager_reason = str(error).partition("\n")[0]
            else:
                continue
            if out_of_memory:  # and the error, which referred to the tensors, is gone
                self.try_discard()
            return segment.start
        return None

    def _capture_segment(
        self,
        segment: GraphSegment,
        step: GpuStep,
        cuda_device: CudaDevice,
        pool: Any,
        producer: dict[DeviceTensor, int],
    ) -> None:
        for device_tensor in segment_reads(self.issuer, segment):
            self._bind_input(segment, step, device_tensor)
            segment.producers |= {producer[device_tensor]} if device_tensor in producer else set()
        keys_before = [set(env) for env in step.env]
        persistent = (
            None
            if segment.step_ops
            else persistent_tensors(self.issuer, self.segments.values(), cuda_device.number)
        )
        graph = self.backend.new_graph()
        with self.backend.capture(graph, pool, cuda_device.compute):
            if persistent is None:
                self._issue_whole_step(segment, step, cuda_device)
            else:
                self._issue_segment(segment, step, cuda_device, persistent)
        for number, env in enumerate(step.env):
            for key, value in env.items():
                if key not in keys_before[number] and (persistent is None or key in persistent):
                    segment.outputs[number, key] = value
                elif key not in keys_before[number]:
                    producer[number, key] = segment.start
        segment.graph = graph
        self.static_memory |= set(map(_storage_ptr, segment.outputs.values()))

    def _bind_input(
        self, segment: GraphSegment, step: GpuStep, device_tensor: DeviceTensor
    ) -> None:
        """Give an input of a run of ops a fixed address, unless a graph computes it."""
        number, tensor = device_tensor
        if tensor not in step.env[number]:
            template, cuda_device = self.templates[device_tensor], self.issuer.cuda_devices[number]
            if template.is_meta and device_tensor not in self.static_inputs:
                with self.backend.stream_scope(cuda_device.compute):
                    self.static_inputs[device_tensor] = torch.zeros_like(
                        template, device=cuda_device.device
                    )
                self.static_memory.add(_storage_ptr(self.static_inputs[device_tensor]))
            step.env[number][tensor] = (
                self.static_inputs[device_tensor] if template.is_meta else template
            )
        if device_tensor in self.static_inputs:
            segment.inputs[device_tensor] = self.static_inputs[device_tensor]

    def _issue_segment(
        self, segment: GraphSegment, step: GpuStep, cuda_device: CudaDevice, persistent: set[Tensor]
    ) -> None:
        """Issue ops of one device that need no other device."""
        env, sequence = step.env[cuda_device.number], cuda_device.job.instructions.sequence
        for index in segment.op_indices:
            self.issuer.issue(step, cuda_device, index)
            for tensor in sequence[index].frees:
                if tensor not in persistent:
                    env.pop(tensor, None)

    def _issue_whole_step(
        self, segment: GraphSegment, step: GpuStep, first_device: CudaDevice
    ) -> None:
        """Issue a whole step: other streams fork from the first one, and join it."""
        issuer = self.issuer
        start_event, joined_streams = first_device.record_end(-1), []
        try:
            for cuda_device in issuer.cuda_devices.values():
                if cuda_device is not first_device:
                    joined_streams.append(cuda_device.compute)
                    cuda_device.compute.wait_event(start_event)
                if cuda_device.staging is not None:
                    joined_streams.append(cuda_device.staging.stream)
                    cuda_device.staging.begin_capture(start_event)
            for number, index in issuer.order[: segment.step_ops]:
                cuda_device = issuer.cuda_devices[number]
                if len(issuer.cuda_devices) > 1:
                    self.backend.set_stream(cuda_device.compute)
                instruction = cuda_device.job.instructions.sequence[index]
                issuer.wait_inputs(step, cuda_device, instruction)
                issuer.issue(step, cuda_device, index)
                issuer.finish_op(step, cuda_device, instruction)
        finally:  # ending a capture while another stream is part of it is an error
            self.backend.set_stream(first_device.compute)
            for stream in joined_streams:
                first_device.compute.wait_stream(stream)
            for cuda_device in issuer.cuda_devices.values():
                if cuda_device.staging is not None:
                    # It was captured: no later step could wait for it.
                    cuda_device.staging.last_reader_event = None


def _storage_ptr(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage."""
    return int(tensor.untyped_storage().data_ptr())


def _empty_cache(issuer: Issuer) -> None:
    """Free what the allocator caches."""
    for device in {cuda_device.device for cuda_device in issuer.cuda_devices.values()}:
        issuer.backend.synchronize(device)
    issuer.backend.empty_cache()
