"""Options of glibc's malloc, for the whole process."""

from __future__ import annotations

import ctypes
import platform
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -3, -4, -8
"""Numbers of options, of malloc.h."""


def set_malloc_options(options: Mapping[int, int]) -> bool:
    """Set options by their numbers; whether all could be set, which only glibc can do."""
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return all(bool(libc.mallopt(option, value)) for option, value in options.items())
