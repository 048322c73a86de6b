"""Lets Python's garbage collector run less often while a model is traced."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

GARBAGE_OBJECTS = 50_000
"""New objects after which Python looks for garbage while it traces; 700 by default."""


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Let the collector run less often: a trace makes millions of objects that stay.

    It takes a seventh of the time of a trace otherwise. All threads share the setting; one that
    finds it changed leaves it alone.
    """
    thresholds = gc.get_threshold()
    is_changed = 0 < thresholds[0] < GARBAGE_OBJECTS  # 0: it is off
    if is_changed:
        gc.set_threshold(GARBAGE_OBJECTS, *thresholds[1:])
    try:
        yield
    finally:
        if is_changed:
            gc.set_threshold(*thresholds)
