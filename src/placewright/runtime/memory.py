"""Nothing in, a host allocator that keeps what tensors give back out.

glibc returns large blocks to the system when they are freed and asks for them again, page by page,
when the next tensor is made: the outputs of ops on the CPU then cost more in page faults than in
arithmetic. On a virtual machine a ReLU of 42 MiB took 40 to 50 ms so, and 5 to 8 ms with memory
that was kept. The allocator of GPUs keeps memory, too.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # of malloc.h
_MOST = 2**31 - 1


@cache
def keep_memory() -> bool:
    """Let this process keep freed memory for its next tensors; whether that could be set.

    It holds for the whole process from now on. What is kept is what was in use at once, and a few
    blocks that were too small by a hair when they could have been used again. Threads share one
    arena, since those of threads give their memory back whatever they are told: a thread has its
    arena from its beginning, so it must be said before workers begin; and glibc listens only while
    there are few arenas. In a process of many threads `MALLOC_ARENA_MAX=1` says it for sure.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    wanted = {_TRIM_THRESHOLD: _MOST, _MMAP_MAX: 0, _ARENA_MAX: 1}
    return all(bool(libc.mallopt(what, value)) for what, value in wanted.items())
