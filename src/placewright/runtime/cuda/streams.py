"""CUDA streams and the staging buffer of one CUDA device of a plan.

A device has a compute stream for its ops, one stream for incoming tensors, one for tensors that go
to the host and one for streamed weights, so that none waits without need. A stream that uses a
tensor of another stream waits for an event, and the use is recorded with the allocator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from placewright.errors import ExecutionError
from placewright.runtime.cpu_worker import (
    PendingTensor,
    dense_view,
    staging_buffer,
    staging_view,
)
from placewright.runtime.cuda.backend import current_backend

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.graph import Tensor
    from placewright.runtime.cpu_worker import DeviceJob
    from placewright.runtime.cuda.backend import CudaEvent, CudaStream
    from placewright.runtime.real_devices import RealDevice
    from placewright.runtime.staging_layout import Staging

TRANSFER_PRIORITY = -1  # of streams that carry tensors: ahead of weights and ops


class DeviceStreams:
    """The streams of one CUDA device of a plan.

    Executors that never run at the same time share them. So cuBLAS has one workspace for all (32
    MiB on Hopper for each stream), and memory that one executor has freed serves the next one:
    PyTorch's allocator keeps freed memory by stream.
    """

    def __init__(self, real_device: RealDevice) -> None:
        self.backend = current_backend()
        self.device = torch.device(real_device.torch_name)
        self.context: Any = None
        self.compute = self._new_compute_stream(real_device)
        self.incoming = self.backend.new_stream(self.device, TRANSFER_PRIORITY)
        self.outgoing = self.backend.new_stream(self.device, TRANSFER_PRIORITY)
        self.weights = self.backend.new_stream(self.device)

    def _new_compute_stream(self, real_device: RealDevice) -> CudaStream:
        if not real_device.multiprocessors:
            return self.backend.new_stream(self.device)
        try:
            self.context, stream = self.backend.confined_stream(
                real_device.index, real_device.multiprocessors
            )
            return stream
        except (RuntimeError, AttributeError) as error:
            raise ExecutionError(
                f"device {real_device.name!r} is confined to {real_device.multiprocessors} "
                f"multiprocessors: this PyTorch or GPU cannot do that ({error})"
            ) from error


def shared_streams(shared: dict[str, DeviceStreams], real_device: RealDevice) -> DeviceStreams:
    """The streams of a device among those that executors share, which it is added to."""
    streams = shared.get(real_device.name)
    if streams is None or streams.backend is not current_backend():
        streams = shared[real_device.name] = DeviceStreams(real_device)
    return streams


class CudaDevice:
    """One CUDA device of a plan: streams of a GPU, and a staging buffer for streamed weights.

    Args:
        source: Returns a resident tensor on the device that holds it.
    """

    def __init__(
        self,
        job: DeviceJob,
        source: Callable[[Tensor], torch.Tensor],
        streams: DeviceStreams,
    ) -> None:
        self.job, self.number, self.backend = job, job.number, streams.backend
        self.device, self.streams = streams.device, streams
        self.compute, self.incoming, self.outgoing = (
            streams.compute,
            streams.incoming,
            streams.outgoing,
        )
        self.end_events: dict[int, CudaEvent] = {}  # of each op that other streams wait for
        if job.instructions.staging:  # memory is scarce
            self._init_cublas()
        self.staging = (
            _StagingBuffer(self, job.instructions.staging, source)
            if job.instructions.staging
            else None
        )

    def _init_cublas(self) -> None:
        """Let cuBLAS allocate its workspace for the compute stream first.

        Allocated between other tensors it would fragment the free memory around it.
        """
        with self.backend.stream_scope(self.compute):
            matrix = torch.ones(8, 8, device=self.device)
            torch.mm(matrix, matrix)

    def record_end(self, position: int) -> CudaEvent:
        """Record on the compute stream that an op has ended."""
        event = self.end_events.get(position)
        if event is None:
            event = self.end_events[position] = self.backend.new_event()
        event.record(self.compute)
        return event

    def receive(
        self,
        value: torch.Tensor,
        ready_event: CudaEvent | None,
        static_input: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, CudaEvent]:
        """Copy a tensor from the host or another GPU to this one.

        Args:
            static_input: The tensor to copy into, if graphs read it there; its last reader has
                been issued.

        Returns:
            The tensor here, and the event of its arrival.
        """
        if ready_event is not None:
            self.incoming.wait_event(ready_event)
        with self.backend.stream_scope(self.incoming):
            if static_input is None:
                local = value.to(self.device, non_blocking=True)
            else:
                local = static_input.copy_(value, non_blocking=True)
            if value.is_cuda:
                self.backend.record_use(value, self.incoming)
            arrival = self.backend.new_event()
            arrival.record(self.incoming)
        return local, arrival

    def stored_to_host(self, value: torch.Tensor) -> PendingTensor:
        """Copy a resident tensor to the host, after all ops that were issued before."""
        event = self.backend.new_event()
        event.record(self.compute)
        return self.to_host(value, event)

    def to_host(self, value: torch.Tensor, ready_event: CudaEvent) -> PendingTensor:
        """Copy a tensor to the host."""
        self.outgoing.wait_event(ready_event)
        with self.backend.stream_scope(self.outgoing):
            host_copy = self.backend.pinned_like(value)
            host_copy.copy_(value, non_blocking=True)
            self.backend.record_use(value, self.outgoing)
            arrival = self.backend.new_event()
            arrival.record(self.outgoing)
        return PendingTensor(host_copy, arrival)


class _CopyBatch(NamedTuple):
    """Weights that are copied together.

    Args:
        readers_before: How many readers must have been issued before.
        pairs: Target and source of each copy; one pair if the weights are adjacent at both ends.
        readers: Ops that have all their weights after this batch.
    """

    readers_before: int
    pairs: list[tuple[torch.Tensor, torch.Tensor]]
    readers: list[int]


class _StagingBuffer:
    """The staging buffer of a device: copies run ahead of the ops as far as it permits (rule 6).

    The host issues a copy as soon as the op that must end before it has been issued; the copy
    stream then waits for that op's event. So the host never waits for space in the buffer.
    """

    def __init__(
        self, cuda_device: CudaDevice, staging: Staging, source: Callable[[Tensor], torch.Tensor]
    ) -> None:
        self.cuda_device, self.staging = cuda_device, staging
        self.stream = cuda_device.streams.weights
        self.buffer = staging_buffer(cuda_device.job, cuda_device.device)
        self.slots = [
            staging_view(self.buffer, copy.offset, source(copy.tensor)) for copy in staging.copies
        ]
        self.batches = self._new_batches(source)
        self.arrival_events = {
            reader: cuda_device.backend.new_event() for reader in staging.readers
        }
        self.next_batch = self.issued_readers = 0
        self.last_reader_event: CudaEvent | None = None

    def _new_batches(self, source: Callable[[Tensor], torch.Tensor]) -> list[_CopyBatch]:
        batches, slots = [], iter(self.slots)
        for batch in self.staging.batches:
            pairs = [(dense_view(next(slots)), dense_view(source(copy.tensor))) for copy in batch]
            readers = list(dict.fromkeys(copy.reader for copy in batch))
            batches.append(_CopyBatch(batch[0].readers_before, merge_copies(pairs), readers))
        return batches

    def begin_step(self) -> None:
        """Begin a step: the buffer is free once the last reader of the previous step has ended."""
        if self.last_reader_event is not None:
            self.stream.wait_event(self.last_reader_event)
        else:
            self.stream.wait_stream(self.cuda_device.compute)
        self.next_batch = self.issued_readers = 0
        self.issue_copies()

    def begin_capture(self, event: CudaEvent) -> None:
        """Begin a step that is being captured: copies follow an event of the compute stream."""
        self.stream.wait_event(event)
        self.next_batch = self.issued_readers = 0
        self.issue_copies()

    def issue_copies(self) -> None:
        """Issue every copy whose part of the buffer is free, or is freed by ops already issued."""
        if not self._can_issue():
            return
        with self.cuda_device.backend.stream_scope(self.stream):
            while self._can_issue():
                self._copy_batch(self.batches[self.next_batch])
                self.next_batch += 1

    def _can_issue(self) -> bool:
        """Whether the next copy may be issued."""
        return (
            self.next_batch < len(self.batches)
            and self.batches[self.next_batch].readers_before <= self.issued_readers
        )

    def _copy_batch(self, batch: _CopyBatch) -> None:
        if batch.readers_before:
            self.stream.wait_event(
                self.cuda_device.end_events[self.staging.readers[batch.readers_before - 1]]
            )
        for slot, weight in batch.pairs:
            slot.copy_(weight, non_blocking=True)
        for reader in batch.readers:
            self.arrival_events[reader].record(self.stream)

    def reader_issued(self, event: CudaEvent) -> None:
        """Note that a reader has been issued; `event` marks its end."""
        self.issued_readers += 1
        self.last_reader_event = event
        self.issue_copies()


def merge_copies(
    pairs: list[tuple[torch.Tensor, torch.Tensor]],
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Copies as one copy of bytes, if all are adjacent at both ends; otherwise unchanged."""
    offsets = {slot.data_ptr() - weight.data_ptr() for slot, weight in pairs}
    storages = {side.untyped_storage().data_ptr() for pair in pairs for side in pair}
    same_strides = all(slot.stride() == weight.stride() for slot, weight in pairs)
    if len(pairs) < 2 or len(offsets) > 1 or len(storages) > 2 or not same_strides:
        return pairs
    sides = zip(*pairs, strict=True)
    slots, weights = (_byte_span(list(side)) for side in sides)
    return [(slots, weights)] if len(slots) == len(weights) else pairs


def _byte_span(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The bytes from the first of some tensors of one storage to the end of the last one."""
    first, last = tensors[0], tensors[-1]
    begin = int(first.storage_offset()) * first.element_size()
    end = int(last.storage_offset()) * last.element_size() + last.nbytes
    view = torch.empty(0, dtype=torch.uint8, device=first.device)
    return view.set_(first.untyped_storage(), begin, (end - begin,), (1,))
