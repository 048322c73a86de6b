"""Memory of a GPU that this process takes beside PyTorch's allocator and its bare CUDA context.

Libraries load their kernels and make their handles when they are first used, so that a process
takes more of a GPU than its tensors. A limit counts that, too. CUDA does not say which process has
how much: what is used now is compared with what was used when the context was opened. Where the
program had opened it before, what libraries took until then cannot be told from the context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from placewright.runtime.cuda.backend import current_backend

if TYPE_CHECKING:
    from placewright.runtime.cuda.backend import Backend

MAX_LIBRARY_BYTES = 768 << 20
"""More than libraries take: beyond that it is memory of other processes."""


@dataclass
class _Context:
    """What is known of the context of a GPU.

    Args:
        backend: It is held, since its id is a key.
        first_bytes: What was used with a bare context.
        has_libraries: Whether the program had used the GPU before.
        library_bytes: What libraries took when that was last measured.
    """

    backend: Backend
    first_bytes: int
    has_libraries: bool
    library_bytes: int = 0


_contexts: dict[tuple[int, int], _Context] = {}
"""By the id of a backend and the number of its GPU."""


def note_context(index: int) -> None:
    """Note what is used of a GPU with a bare context, the first time."""
    _context(index)


def has_uncounted_libraries(index: int) -> bool:
    """Whether the program had used a GPU before its context was noted, so that libraries count
    from then on alone."""
    return _context(index).has_libraries


def library_bytes(index: int, measure: bool = True) -> int:
    """Bytes of a GPU that libraries of this process take, since its context was noted.

    Args:
        measure: Whether to ask CUDA, which takes a tenth of a millisecond; else the last answer.
    """
    context = _context(index)
    if measure:
        grown = _used_bytes(index) - context.first_bytes
        context.library_bytes = min(max(0, grown), MAX_LIBRARY_BYTES)
    return context.library_bytes


def _context(index: int) -> _Context:
    backend = current_backend()
    key = id(backend), index
    if key not in _contexts:
        has_libraries = backend.has_context(index)
        backend.open_context(torch.device(backend.device_name(index)))
        _contexts[key] = _Context(backend, _used_bytes(index), has_libraries)
    return _contexts[key]


def _used_bytes(index: int) -> int:
    """Bytes that are used of a GPU, by anyone, and are not PyTorch's allocator's."""
    backend = current_backend()
    total = int(backend.properties(index).total_memory)
    return total - backend.free_bytes(index) - backend.reserved_bytes(index)
