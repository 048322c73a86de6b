"""The logger `placewright`: what takes long says so at INFO when it begins and when it ends."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from placewright.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger("placewright")


@contextmanager
def log_duration(text: str) -> Iterator[None]:
    """Log that something begins, and how long it took; nothing is logged of what fails."""
    logger.info("%s", text)
    started = time.perf_counter()
    yield
    logger.info("%s: done in %s", text, format_seconds(time.perf_counter() - started))
