"""Memory of a GPU that this process takes beside PyTorch's allocator and its bare CUDA context.

Libraries load their kernels and make their handles when they are first used, so that a process
takes more of a GPU than its tensors. A limit counts that, too. CUDA does not say which process has
how much: what is used now is compared with what was used when the context was opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from placewright.runtime.cuda.backend import current_backend

if TYPE_CHECKING:
    from placewright.runtime.cuda.backend import Backend

MAX_LIBRARY_BYTES = 768 << 20
"""More than libraries take: beyond that it is memory of other processes."""

_used_at_first: dict[tuple[int, int], tuple[Backend, int]] = {}
"""By the id of a backend, which is held for that, and the number of its GPU."""


def note_context(index: int) -> None:
    """Note what is used of a GPU with a bare context, the first time."""
    backend = current_backend()
    key = id(backend), index
    if key not in _used_at_first:
        backend.open_context(torch.device(backend.device_name(index)))
        _used_at_first[key] = backend, _used_bytes(index)


def library_bytes(index: int) -> int:
    """Bytes of a GPU that libraries of this process take, since its context was noted."""
    note_context(index)
    grown = _used_bytes(index) - _used_at_first[id(current_backend()), index][1]
    return min(max(0, grown), MAX_LIBRARY_BYTES)


def _used_bytes(index: int) -> int:
    """Bytes that are used of a GPU, by anyone, and are not PyTorch's allocator's."""
    backend = current_backend()
    total = int(backend.properties(index).total_memory)
    return total - backend.free_bytes(index) - backend.reserved_bytes(index)
