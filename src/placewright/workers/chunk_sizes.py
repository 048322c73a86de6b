"""Chooses how many items a chunk has: enough to be worth an exchange, few enough to balance."""

from __future__ import annotations

import threading
from itertools import pairwise
from math import ceil

_CHUNKS_PER_WORKER = 4  # so that a worker that gets slow items leaves the rest to others
_MIN_EXCHANGES = 20  # a chunk takes this many times an exchange, which then costs 5 %
_MAX_CHUNK_BYTES = 64 * 2**20  # of items on their way to one worker


class ChunkSizes:
    """Cuts batches, and learns from each chunk how long an item of its task takes.

    How a batch is cut changes no result, so this may depend on the clock.

    Args:
        count: The number of workers.
        exchange_seconds: How long an empty request takes.
        max_bytes: The most bytes that a message may have.
    """

    def __init__(self, count: int, exchange_seconds: float, max_bytes: int) -> None:
        self._count, self._min_seconds = count, _MIN_EXCHANGES * exchange_seconds
        self._max_bytes = min(_MAX_CHUNK_BYTES, max_bytes // 2)  # items differ in size
        self._item_seconds: dict[object, float] = {}
        self._lock = threading.Lock()

    def record(self, key: object, items: int, seconds: float) -> None:
        """Count a chunk that took this long; later ones weigh more."""
        if items:
            with self._lock:
                latest = seconds / items
                self._item_seconds[key] = (self._item_seconds.get(key, latest) + latest) / 2

    def cut(self, key: object, items: int, item_bytes: int) -> list[slice]:
        """Cut a batch into chunks whose sizes differ by one at most.

        Args:
            key: The kind of task.
            item_bytes: The size of an item.
        """
        if not items:
            return []
        chunks = ceil(items / self._chunk_size(key, items, item_bytes))
        bounds = [items * at // chunks for at in range(chunks + 1)]
        return [slice(first, last) for first, last in pairwise(bounds)]

    def _chunk_size(self, key: object, items: int, item_bytes: int) -> int:
        share = ceil(items / self._count)
        with self._lock:
            seconds = self._item_seconds.get(key)
        if seconds is None:  # unknown: one chunk for each worker
            size = share
        else:
            worthwhile = ceil(self._min_seconds / max(seconds, 1e-9))
            size = max(ceil(items / (self._count * _CHUNKS_PER_WORKER)), worthwhile)
        return max(1, min(size, self._max_bytes // max(item_bytes, 1)))
