"""Pinned memory in huge pages, for weights that are copied to a GPU and read by the host.

A plan for several calls may stream a weight to the GPU in one call, and compute with it on the host
in another. Memory that CUDA allocates has pages of 4 KiB, from which a product of one row reads a
fifth fewer bytes a second (`huge_pages`), and PyTorch rounds it up to a power of two. So memory is
mapped here, in huge pages, and registered with CUDA once it has its data. CUDA would go on to copy
from a registered address after its memory is freed: it is unregistered before that, always.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import TYPE_CHECKING

import torch

from placewright.runtime.cuda.backend import current_backend
from placewright.runtime.huge_pages import MIN_BYTES, huge_page_bytes, use_huge_pages

if TYPE_CHECKING:
    from placewright.runtime.cuda.backend import Backend

_waiting: list[_PinnedBlock] = []
"""Blocks that could not be unregistered when they were freed, since a graph was being captured."""


class _PinnedBlock(mmap.mmap):
    """Mapped memory that is registered with CUDA; the storage of a tensor holds it.

    Args:
        backend: Where it is registered; None: nowhere.
        address: Of the registered part.
    """

    backend: Backend | None = None
    address = 0

    def register(self, backend: Backend, address: int, size: int) -> bool:
        """Register a part with CUDA; whether that was possible."""
        if backend.register_host(address, size):
            self.backend, self.address = backend, address
        return self.backend is not None

    def unregister(self) -> bool:
        """Unregister it; whether nothing is registered any more."""
        if self.backend is None or self.backend.unregister_host(self.address):
            self.backend = None
        return self.backend is None

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be shutting down
            if not self.unregister():
                _waiting.append(self)


def pinned_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a dense tensor of the host in pinned memory, in huge pages where there are some."""
    _waiting[:] = [block for block in _waiting if not block.unregister()]
    backend, page = current_backend(), huge_page_bytes()
    if not page or tensor.nbytes < MIN_BYTES:
        return backend.pin(tensor)
    block = _PinnedBlock(-1, tensor.nbytes + page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        block.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(block, dtype=torch.uint8)
    offset = -memory.data_ptr() % page
    data = memory[offset : offset + tensor.nbytes].view(tensor.dtype)
    data.copy_(tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset()))
    use_huge_pages(data)
    if not block.register(backend, data.data_ptr(), data.nbytes):
        return backend.pin(tensor)
    return data.as_strided(tensor.shape, tensor.stride(), data.storage_offset())
