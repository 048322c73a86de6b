"""Host allocator: lets glibc retain freed memory for the next tensors.

glibc returns large blocks to the system when they are freed, and gets them again, page by page,
for the next tensor: the outputs of ops on the CPU then cost more in page faults than in arithmetic.
On a virtual machine a ReLU of 42 MiB took 40 to 50 ms this way, and 5 to 8 ms with retained memory.
PyTorch's allocator for GPUs retains memory, too.
"""

from __future__ import annotations

import ctypes
import queue
import threading
from functools import cache
from typing import TYPE_CHECKING

from placewright.malloc_options import ARENA_MAX, MMAP_MAX, TRIM_THRESHOLD, set_malloc_options

if TYPE_CHECKING:
    from collections.abc import Callable

_INT_MAX = 2**31 - 1
_LARGE_BLOCK = 65 << 20  # bytes that only the main arena can retain: heaps of others have 64 MiB
_MAX_ARENAS = 256  # more than a process has


@cache
def retain_freed_memory() -> bool:
    """Let this process retain freed memory for its next tensors; whether that could be set.

    It holds for the whole process from now on. The process retains its peak use, and a few blocks
    that were slightly too small to be reused. New threads share the existing arenas. Arenas other
    than the main one return memory whatever the settings, so threads that make large tensors use
    `run_in_main_arena`.
    """
    return set_malloc_options({TRIM_THRESHOLD: _INT_MAX, MMAP_MAX: 0, ARENA_MAX: 1})


def run_in_main_arena(work: Callable[[], None]) -> None:
    """Run some work in a thread of the main arena: this one, or a new one.

    A thread gets its arena when it starts. If other threads have made arenas, new threads get these
    in turn; one of them is the main arena, the only one that retains memory.
    """
    finished = threading.Event()
    replies: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def attempt() -> None:
        in_main_arena = _uses_main_arena()
        replies.put(in_main_arena)
        if in_main_arena:
            work()
        else:
            finished.wait()  # or the next thread would get the same arena

    name, succeeded = threading.current_thread().name, False
    threads: list[threading.Thread] = []
    max_threads = _MAX_ARENAS if retain_freed_memory() and not _uses_main_arena() else 0
    while not succeeded and len(threads) < max_threads:
        threads.append(threading.Thread(target=attempt, name=name, daemon=True))
        threads[-1].start()
        succeeded = replies.get()
    finished.set()
    for thread in threads:
        thread.join()
    if not succeeded:
        work()


def _uses_main_arena() -> bool:
    """Whether this thread's large blocks come from the main arena, below the program's break."""
    libc = _libc()
    block = libc.malloc(_LARGE_BLOCK)
    in_main_arena = block is not None and block < libc.sbrk(0)
    libc.free(block)
    return in_main_arena


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes, libc.free.restype = [ctypes.c_void_p], None
    libc.sbrk.argtypes, libc.sbrk.restype = [ctypes.c_ssize_t], ctypes.c_void_p
    return libc
