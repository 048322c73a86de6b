"""GPUs in, the company that a host's ops have in a plan out: weights that stream to those GPUs.

A host that computes while it feeds a GPU shares its memory's bandwidth with the copies: its ops
take a tenth longer, or half as long again where others use that memory, too. Plans of models that
exceed the GPUs do both at once, so that is how a host's ops are measured for those.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from placewright.cluster import HOST
from placewright.graph import STATE, WEIGHT
from placewright.runtime.machine import load_torch, own_cores
from placewright.runtime.real_devices import keeping_to

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from placewright.cluster import Cluster
    from placewright.graph import Graph
    from placewright.profiling.sites import Site

SIZE = 64 << 20
"""Bytes of one copy: about a millisecond's worth."""
MOST = 1 << 30
"""Bytes that copies are made of in turn, at most; fewer where that is more than any cache has."""
AHEAD = 4
"""Copies that wait in a stream, so that it never runs dry."""


def streams(graph: Graph, cluster: Cluster, limits: Mapping[str, int]) -> bool:
    """Whether a graph's weights and states exceed what GPUs may hold, so that some will stream.

    Args:
        limits: Bytes that may be used, by device.
    """
    stored = sum(sum(op.outputs) for op in graph.ops if op.kind in (WEIGHT, STATE))
    room = sum(
        min(device.memory, limits.get(device.name, device.memory)) - device.reserve
        for device in cluster.devices
        if device.kind != HOST
    )
    return stored > room


class Company:
    """Copies from pinned memory to GPUs, one after the other, while something else is timed.

    Args:
        gpus: PyTorch's numbers of them; without any there is no company.
        cores: Those that the threads which copy keep to; empty: any.
        cache: Bytes of the host's last cache: what is copied must not come from there.
    """

    def __init__(
        self, gpus: Sequence[int], cores: Sequence[int] = (), cache: int = MOST // 3
    ) -> None:
        self.gpus, self.cores = tuple(gpus), tuple(cores)
        self.rounds = max(1, -(-min(MOST, 3 * cache) // SIZE))
        self._rooms: list[tuple[Any, Any]] = []

    @classmethod
    def beside(cls, sites: Sequence[Site]) -> Company:
        """The company of workers: of all GPUs, on the cores that no worker has."""
        taken = {core for site in sites for core in site.cores}
        spare = [core for core in own_cores() if core not in taken]
        cache = max((site.cache for site in sites if not site.on_gpu), default=0)
        return cls([site.index for site in sites if site.on_gpu], spare, cache)

    @property
    def name(self) -> str:
        """What tells times that were measured in it from others; of no company nothing."""
        return "beside copies" if self.gpus else ""

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Copy until the block is over."""
        if not self.gpus:
            yield
            return
        over = threading.Event()
        threads = [
            threading.Thread(target=self._keep, args=(*pair, over), daemon=True)
            for pair in self._buffers()
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def leave(self) -> None:
        """Give back the memory that copies are made in; the next block takes it anew."""
        self._rooms.clear()

    def _keep(self, source: Any, target: Any, over: threading.Event) -> None:
        with keeping_to(self.cores):
            _copy(source, target, over)

    def _buffers(self) -> list[tuple[Any, Any]]:
        torch = load_torch()
        if not self._rooms:
            self._rooms = [
                (
                    torch.empty(self.rounds, SIZE, dtype=torch.uint8, pin_memory=True),
                    torch.empty(SIZE, dtype=torch.uint8, device=f"cuda:{gpu}"),
                )
                for gpu in self.gpus
            ]
        return self._rooms


def _copy(source: Any, target: Any, over: threading.Event) -> None:
    torch = load_torch()
    events = [torch.cuda.Event(blocking=True) for _ in range(AHEAD)]  # which wait without spinning
    stream = torch.cuda.Stream(target.device)
    count = 0
    with torch.cuda.stream(stream):
        while not over.is_set():
            event = events[count % AHEAD]
            if count >= AHEAD:
                event.synchronize()
            target.copy_(source[count % len(source)], non_blocking=True)
            event.record(stream)
            count += 1
    stream.synchronize()
