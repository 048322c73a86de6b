"""Huge pages: moves weights of the host to pages of 2 MiB, which are read faster.

A product of one row reads its weight once, in order. With pages of 4 KiB the processor stops at
every page to look up the next one: on one core, our kernel then read 31 to 38 GB/s, and 38 to 46
with huge pages. Linux moves memory in place, so that addresses stay; where it cannot (another
system, an old kernel, no free huge page, a mapped file), nothing happens.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1
_SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
MIN_BYTES = 4 << 20
"""Smaller weights stay where they are."""


def use_huge_pages(tensor: torch.Tensor) -> bool:
    """Move a tensor's memory to huge pages, if that is possible; whether it was."""
    size = huge_page_bytes()
    if not size or tensor.device.type != "cpu" or tensor.nbytes < MIN_BYTES:
        return False
    storage = tensor.untyped_storage()
    first = -(-storage.data_ptr() // size) * size
    last = (storage.data_ptr() + storage.nbytes()) // size * size
    return last > first and _libc().madvise(first, last - first, _COLLAPSE) == 0


@cache
def huge_page_bytes() -> int:
    """Bytes of a huge page; 0 where there are none, or where the system's owner forbids them."""
    if not sys.platform.startswith("linux"):
        return 0
    try:
        enabled = (_SETTINGS / "enabled").read_text()
        size = int((_SETTINGS / "hpage_pmd_size").read_text())
    except (OSError, ValueError):
        return 0
    return 0 if "[never]" in enabled else size


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.madvise.restype = ctypes.c_int
    return libc
