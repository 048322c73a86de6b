"""Background copies from the host to GPUs while the host's ops are timed.

A host that computes while weights are copied to a GPU shares its memory bandwidth with the copies:
its ops take 10 % longer, or 50 % where other processes use that memory, too. Plans of models that
exceed the GPUs do both at once, so the host's ops are measured with copies in the background.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from placewright.device import HOST
from placewright.graph import STATE, WEIGHT
from placewright.runtime.machine import available_cores, load_torch
from placewright.runtime.real_devices import cpu_affinity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from placewright.cluster import Cluster
    from placewright.graph import Graph
    from placewright.runtime.real_devices import RealDevice

COPY_BYTES = 64 << 20
"""Bytes of one copy, which takes about a millisecond."""
MAX_BUFFER_BYTES = 1 << 30
"""The most bytes that copies cycle through; fewer if that exceeds the cache anyway."""
QUEUED_COPIES = 4
"""Copies that are queued in a stream, so that it is never idle."""


def needs_streaming(graph: Graph, cluster: Cluster, limits: Mapping[str, int]) -> bool:
    """Whether a graph's weights and states exceed the GPUs' memory, so that some will stream.

    Args:
        limits: Bytes that may be used, by device.
    """
    stored_bytes = sum(sum(op.outputs) for op in graph.ops if op.kind in (WEIGHT, STATE))
    capacity = sum(
        min(device.capacity, limits.get(device.name, device.capacity))
        for device in cluster.devices
        if device.kind != HOST
    )
    return stored_bytes > capacity


def copy_load_for(
    graph: Graph, cluster: Cluster, devices: Sequence[RealDevice], limits: Mapping[str, int]
) -> CopyLoad:
    """The copies that run in plans of a graph while the host computes: none if nothing streams."""
    return (
        CopyLoad.from_devices(devices) if needs_streaming(graph, cluster, limits) else CopyLoad(())
    )


class CopyLoad:
    """Copies from pinned memory to GPUs, one after the other, while something else is timed.

    Args:
        gpus: PyTorch's numbers of the GPUs; without any nothing is copied.
        cores: Cores for the copying threads; empty: any.
        cache: Bytes of the host's last cache: copies must not be read from it.
    """

    def __init__(
        self, gpus: Sequence[int], cores: Sequence[int] = (), cache: int = MAX_BUFFER_BYTES // 3
    ) -> None:
        self.gpus, self.cores = tuple(gpus), tuple(cores)
        self.slots = max(1, -(-min(MAX_BUFFER_BYTES, 3 * cache) // COPY_BYTES))
        self._buffer_pairs: list[tuple[Any, Any]] = []

    @classmethod
    def from_devices(cls, devices: Sequence[RealDevice]) -> CopyLoad:
        """Copies to all GPUs, issued from the cores that no worker has."""
        used_cores = {core for device in devices for core in device.cores}
        spare_cores = [core for core in available_cores() if core not in used_cores]
        cache = max((device.cache for device in devices if not device.is_gpu), default=0)
        return cls([device.index for device in devices if device.is_gpu], spare_cores, cache)

    @property
    def name(self) -> str:
        """Marks timings with copies in the timing cache; empty without copies."""
        return "beside copies" if self.gpus else ""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Copy until the block ends."""
        if not self.gpus:
            yield
            return
        stop_event = threading.Event()
        threads = [
            threading.Thread(target=self._run_copies, args=(*pair, stop_event), daemon=True)
            for pair in self._buffers()
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop_event.set()
            for thread in threads:
                thread.join()

    def release(self) -> None:
        """Free the buffers; the next block allocates them again."""
        self._buffer_pairs.clear()

    def _run_copies(self, source: Any, target: Any, stop_event: threading.Event) -> None:
        with cpu_affinity(self.cores):
            _copy_loop(source, target, stop_event)

    def _buffers(self) -> list[tuple[Any, Any]]:
        torch = load_torch()
        if not self._buffer_pairs:
            self._buffer_pairs = [
                (
                    torch.empty(self.slots, COPY_BYTES, dtype=torch.uint8, pin_memory=True),
                    torch.empty(COPY_BYTES, dtype=torch.uint8, device=f"cuda:{gpu}"),
                )
                for gpu in self.gpus
            ]
        return self._buffer_pairs


def _copy_loop(source: Any, target: Any, stop_event: threading.Event) -> None:
    torch = load_torch()
    # Blocking events wait without spinning.
    events = [torch.cuda.Event(blocking=True) for _ in range(QUEUED_COPIES)]
    stream = torch.cuda.Stream(target.device)
    count = 0
    with torch.cuda.stream(stream):
        while not stop_event.is_set():
            event = events[count % QUEUED_COPIES]
            if count >= QUEUED_COPIES:
                event.synchronize()
            target.copy_(source[count % len(source)], non_blocking=True)
            event.record(stream)
            count += 1
    stream.synchronize()
