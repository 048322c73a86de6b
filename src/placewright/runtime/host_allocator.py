"""Host allocator: lets glibc retain freed memory for the next tensors.

glibc returns large blocks to the system when they are freed and asks for them again, page by page,
when the next tensor is made: the outputs of ops on the CPU then cost more in page faults than in
arithmetic. On a virtual machine a ReLU of 42 MiB took 40 to 50 ms so, and 5 to 8 ms with memory
that was kept. The allocator of GPUs keeps memory, too.
"""

from __future__ import annotations

import ctypes
import platform
import queue
import threading
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # of malloc.h
_INT_MAX = 2**31 - 1
_LARGE_BLOCK = 65 << 20  # bytes that only the main arena can keep: a heap of another one has 64 MiB
_MAX_ARENAS = 256  # more than a process has


@cache
def retain_freed_memory() -> bool:
    """Let this process keep freed memory for its next tensors; whether that could be set.

    It holds for the whole process from now on. What is kept is what was in use at once, and a few
    blocks that were too small by a hair when they could have been used again. New threads share the
    arenas that there are: those of threads give their memory back whatever they are told, so what
    makes large tensors runs `in_kept_memory`.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    settings = {_TRIM_THRESHOLD: _INT_MAX, _MMAP_MAX: 0, _ARENA_MAX: 1}
    return all(bool(_libc().mallopt(option, value)) for option, value in settings.items())


def run_in_main_arena(work: Callable[[], None]) -> None:
    """Do some work in a thread whose freed memory is kept: this one, or one that is started.

    A thread has its arena from its beginning. In a process where other threads have made arenas,
    new ones are given those in turn, and one of them is the main one, which alone keeps memory.
    """
    finished = threading.Event()
    replies: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def attempt() -> None:
        in_main_arena = _uses_main_arena()
        replies.put(in_main_arena)
        if in_main_arena:
            work()
        else:
            finished.wait()  # or the next thread would be given its arena again

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
