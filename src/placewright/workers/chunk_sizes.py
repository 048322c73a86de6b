"""Chooses how many items a chunk has: enough to be worth an exchange, few enough to balance."""

from __future__ import annotations

import threading
from itertools import pairwise
from math import ceil

_CHUNKS_PER_WORKER = 4  # so that a worker that gets slow items leaves the rest to others
_MIN_EXCHANGES = 20  # a chunk takes this many times an exchange, which then costs 5 %
_MAX_CHUNK_BYTES = 64 * 2**20  # of items on their way to one worker
_LANES = 16  # plans that the lane kernel evaluates side by side: fewer cost it as much
_MIN_ALIGNED = 8 * _LANES  # items of a chunk from which on its size is a multiple of the lanes


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
        """Cut a batch into chunks of nearly equal size, as many for each worker where that goes.

        Sizes differ by one at most; those of large chunks are multiples of 16, but for the last.

        Args:
            key: The kind of task.
            item_bytes: The size of an item.
        """
        if not items:
            return []
        size = self._chunk_size(key, items, item_bytes)
        chunks = ceil(items / size)
        unit = _LANES if size >= _MIN_ALIGNED else 1
        units = items // unit
        bounds = [*(units * at // chunks * unit for at in range(chunks)), items]
        return [slice(first, last) for first, last in pairwise(bounds)]

    def _chunk_size(self, key: object, items: int, item_bytes: int) -> int:
        with self._lock:
            seconds = self._item_seconds.get(key)
        per_worker = 1  # chunks; of unknown length one
        if seconds is not None:
            worthwhile = ceil(self._min_seconds / max(seconds, 1e-9))
            if worthwhile * self._count > items:  # not enough work for all workers
                return self._within_message(min(items, worthwhile), item_bytes)
            per_worker = min(_CHUNKS_PER_WORKER, items // (self._count * worthwhile))
        return self._within_message(ceil(items / (self._count * per_worker)), item_bytes)

    def _within_message(self, size: int, item_bytes: int) -> int:
        return max(1, min(size, self._max_bytes // max(item_bytes, 1)))
