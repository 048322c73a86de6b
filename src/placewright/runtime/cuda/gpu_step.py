"""A step on GPUs while it is being issued: its tensors, and the events that ops wait for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from placewright.graph import Tensor
    from placewright.runtime.cuda.backend import CudaEvent
    from placewright.runtime.cuda.streams import CudaDevice


@dataclass
class GpuStep:
    """A step that is being issued.

    Args:
        env: Tensors that were computed or received in this step, by device.
        order_index: The next op, in the issuer's order.
        arrival_events: Events of tensors that are being received, by device and tensor.
        reads_done: (device, op) of reads that workers have reported.
        read_events: Events of ops on GPUs whose reads others wait for.
    """

    number: int
    env: list[dict[Tensor, torch.Tensor]]
    order_index: int = 0
    arrival_events: dict[tuple[int, Tensor], CudaEvent] = field(default_factory=dict)
    reads_done: set[tuple[int, int]] = field(default_factory=set)
    read_events: dict[int, CudaEvent] = field(default_factory=dict)


def input_locations(cuda_device: CudaDevice, step: GpuStep) -> tuple[Any, Any, Any]:
    """The tensors that an op can read: by `ENV`, `RESIDENT` and `STAGED`."""
    return (
        step.env[cuda_device.number],
        cuda_device.job.resident,
        None if cuda_device.staging is None else cuda_device.staging.slots,
    )
