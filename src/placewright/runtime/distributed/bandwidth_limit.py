"""A bandwidth limit: delays what a rank sends, so that processes of one machine stand for hosts.

It is for tests and benchmarks, and off unless it is asked for. Bytes leave a rank one frame after
the other, as through one network card: a frame begins when it is ready and the one before it has
left, and arrives when its last byte would have.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from placewright.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable


class BandwidthLimit:
    """Lets bytes pass at a rate.

    Args:
        bandwidth: Bytes per second.
        clock: Seconds, never going back.
        sleep: Waits for some seconds.

    Raises:
        ConfigError: The rate is not above 0.
    """

    def __init__(
        self,
        bandwidth: float,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not bandwidth > 0:
            raise ConfigError(f"a bandwidth limit of {bandwidth!r} bytes a second: expected > 0")
        self.bandwidth = bandwidth
        self._clock, self._sleep = clock, sleep
        self._free_at = 0.0
        self._lock = threading.Lock()

    def wait(self, size: int, ready_at: float | None = None) -> None:
        """Wait until a frame has left.

        Args:
            size: Its bytes.
            ready_at: When it was ready to leave; None: now.
        """
        with self._lock:
            start = max(self._free_at, self._clock() if ready_at is None else ready_at)
            self._free_at = end = start + size / self.bandwidth
        while (remaining := end - self._clock()) > 0:
            self._sleep(remaining)
