"""The transport of a process group with NCCL: tensors go from GPU to GPU, control messages by gloo.

**It has not been run on GPUs.** Tests run all of it but NCCL itself, over gloo and the host.

NCCL has no tags, and runs the messages of one pair of ranks and one group one after the other, in
both directions: a receive that waits would hold up a send behind it. So each stage of tensors has
two groups, one for messages to a higher rank and one for those to a lower rank. Then a message
waits for earlier ones of its own stream alone, as the proof in `tensor_streams.py` needs it.

A frame is copied to the GPU before it is sent, and from there into the host's frame when it has
arrived. The caller's thread waits for that, in a CUDA stream of its own.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from placewright.errors import ExecutionError
from placewright.runtime.cuda.backend import current_backend
from placewright.runtime.distributed.transport import (
    FIRST_STREAM_TAG,
    GlooTransport,
    loopback_by_default,
    named_loss,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.runtime.distributed.transport import Transport


def open_transport(timeout: float) -> Transport:
    """The transport of the initialised process group: NCCL if that is its backend, else gloo.

    Args:
        timeout: Seconds that a message may take.

    Raises:
        ExecutionError: No process group is initialised.
    """
    is_ready = dist.is_available() and dist.is_initialized()
    if is_ready and "nccl" in str(dist.get_backend()).lower():
        return NcclTransport(timeout)
    return GlooTransport(timeout)


class NcclTransport:
    """Sends tensors of streams by NCCL, and all else by gloo.

    Args:
        timeout: Seconds that a message may take.
        backend: The backend of torch.distributed for tensors; tests give gloo.
        device: Where its buffers are; None: the GPU of this rank, by LOCAL_RANK.

    Raises:
        ExecutionError: No process group is initialised, or this rank has no GPU.
    """

    def __init__(
        self, timeout: float, backend: str = "nccl", device: torch.device | None = None
    ) -> None:
        self._control = GlooTransport(timeout)
        self.rank, self.world_size = self._control.rank, self._control.world_size
        self.stages = self._control.stages
        self._timeout = datetime.timedelta(seconds=timeout)
        self._device = _rank_gpu() if device is None else device
        with loopback_by_default():
            self._groups: list[tuple[Any, Any]] = [  # of each stage: upwards and downwards
                (self._new_group(backend), self._new_group(backend)) for _ in range(self.stages + 1)
            ]

    def _new_group(self, backend: str) -> Any:
        return dist.new_group(backend=backend, timeout=self._timeout)

    def _group(self, tag: int, source: int, target: int) -> Any:
        """The group of a stream; those beyond the stages, which measure links, share the last."""
        stage = min(tag - FIRST_STREAM_TAG, self.stages)
        return self._groups[stage][int(target < source)]

    def send(self, buffer: torch.Tensor, target: int, tag: int) -> None:
        """Send a buffer of bytes, and wait until it may be used again."""
        if tag < FIRST_STREAM_TAG:
            self._control.send(buffer, target, tag)
            return
        group = self._group(tag, self.rank, target)
        with named_loss(target), _own_stream(self._device):
            on_device = buffer.to(self._device)
            work: Any = dist.isend(on_device, group=group, group_dst=target)
            work.wait(self._timeout)
            self._synchronize()

    def receive(self, buffer: torch.Tensor, source: int, tag: int) -> Callable[[float], None]:
        """Post a receive; the function waits for it, for some seconds at most."""
        if tag < FIRST_STREAM_TAG:
            return self._control.receive(buffer, source, tag)
        group = self._group(tag, source, self.rank)
        with named_loss(source), _own_stream(self._device):
            on_device = torch.empty_like(buffer, device=self._device)
            work: Any = dist.irecv(on_device, group=group, group_src=source)

        def wait(timeout: float) -> None:
            with named_loss(source), _own_stream(self._device):
                work.wait(datetime.timedelta(seconds=timeout))
                buffer.copy_(on_device)
                self._synchronize()

        return wait

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            current_backend().current_stream(self._device).synchronize()

    def disconnect(self) -> None:
        """Break the connections to all ranks: whatever waits fails."""
        for group in (group for pair in self._groups for group in pair):
            with contextlib.suppress(RuntimeError, AttributeError):  # gloo has no such method
                group.abort()
        self._control.disconnect()

    def close(self) -> None:
        """Destroy the process groups; nothing may wait any more."""
        groups = [group for pair in self._groups for group in pair]
        self._groups = []
        for group in groups if dist.is_initialized() else ():
            with contextlib.suppress(RuntimeError, ValueError, AssertionError):
                dist.destroy_process_group(group)
        self._control.close()


def _own_stream(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """A CUDA stream of this block: the ops of steps must not wait for a message."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    backend = current_backend()
    return backend.stream_scope(backend.new_stream(device))


def _rank_gpu() -> torch.device:
    """The GPU of this rank: torchrun numbers the processes of a host."""
    index, count = int(os.environ.get("LOCAL_RANK", "0")), current_backend().device_count()
    if index >= count:
        raise ExecutionError(
            f"the process group has NCCL, and this process is number {index} of its host, which "
            f"has {count} GPUs: start at most one process for each GPU, or initialise it with gloo"
        )
    return torch.device(current_backend().device_name(index))
