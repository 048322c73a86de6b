"""Staging buffers that the executors of a model share, since only one of them runs at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from placewright.runtime.staging_layout import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from placewright.plan import Plan

_MAX_COPIES_OF_AN_OP = 256  # alignment adds up to `ALIGNMENT` bytes to each of them


class StagingBuffers:
    """One staging buffer for each device, as large as the largest that an executor needs.

    Args:
        sizes: Bytes that an executor will need, by the name of the device, as far as that is known:
            a buffer that grows later is in memory twice until its readers have let go of it.
    """

    def __init__(self, sizes: dict[str, int] | None = None) -> None:
        self.sizes = {} if sizes is None else sizes
        self.on_replace: Callable[[], None] = lambda: None
        """Called before a larger buffer is allocated: executors let go of the one they read."""
        self._buffers: dict[str, torch.Tensor] = {}

    def find(self, name: str) -> torch.Tensor | None:
        """The buffer of a device, if there is one."""
        return self._buffers.get(name)

    def take(self, name: str, size: int, device: torch.device) -> torch.Tensor:
        """The buffer of a device, with `size` bytes or more."""
        buffer = self._buffers.get(name)
        if buffer is not None and len(buffer) >= size:
            return buffer
        if buffer is not None:
            del buffer, self._buffers[name]
            self.on_replace()
        size = max(size, self.sizes.get(name, 0))
        self._buffers[name] = torch.empty(size, dtype=torch.uint8, device=device)
        return self._buffers[name]

    def clear(self) -> None:
        """Let go of all buffers."""
        self._buffers.clear()


def planned_sizes(plans: Iterable[Plan]) -> dict[str, int]:
    """Bytes of the largest staging buffer of each device in these plans, with alignment."""
    sizes: dict[str, int] = {}
    for plan in plans:
        if plan.staging is not None:
            for name, size in zip(plan.device_names, plan.staging.tolist(), strict=True):
                if size >= 0:
                    aligned = int(size) + _MAX_COPIES_OF_AN_OP * ALIGNMENT
                    sizes[name] = max(sizes.get(name, 0), aligned)
    return sizes
