"""Places in, the links between them out: latency and bandwidth, each way, pinned or not."""

from __future__ import annotations

import math
import queue
import threading
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from placewright.cluster import Link
from placewright.profiling.timing import summed_up
from placewright.runtime.machine import load_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from placewright.profiling.sites import Site

SMALL, LARGE = 4 << 10, 16 << 20
"""Bytes of the two copies that a link is measured by; the large one is as a layer's weights are: of
256 MiB a link to an H200 carries 55 GB/s, of 16 MiB 52."""
ROW, FEW, BUSY = 32, 8, 2_000_000
"""Small and large copies that are measured in a row, and cycles of a GPU in which they are handed
over."""
ROUNDS = 300
"""Messages that two workers hand to each other and back."""


@dataclass(frozen=True)
class Wire:
    """What was measured of one link.

    Args:
        bandwidth: Bytes a second of a large copy; infinite between workers, which share memory.
        latency: Seconds of an empty one among many that wait in a row.
        pageable: Bytes a second of a large copy from or to memory of the host that is not pinned.
        spread: Of the large copy, between the quartiles, as a share of the median.
    """

    source: str
    target: str
    bandwidth: float
    latency: float
    pageable: float | None = None
    spread: float = 0.0
    channel: str = ""

    @property
    def link(self) -> Link:
        return Link(self.bandwidth, self.latency, self.channel, self.loose)

    @property
    def loose(self) -> float | None:
        """Bytes a second of what is sent to a GPU from memory that the runtime did not pin.

        What a GPU sends arrives in pinned memory.
        """
        return self.pageable if self.channel.startswith("host->") else None


def measure_links(
    sites: Sequence[Site], large: int = LARGE, said: Callable[[str], None] = lambda text: None
) -> list[Wire]:
    """Measure a link for every ordered pair of sites.

    Workers hand a tensor over without copying it, so what such a link costs is the time until the
    other thread has woken up. All workers reach a GPU over one wire, its slot.
    """
    workers = [site for site in sites if not site.on_gpu]
    gpus = [site for site in sites if site.on_gpu]
    wires: list[Wire] = []
    if len(workers) > 1:
        said("link between CPU workers")
        latency, spread = _handing_over(workers[0], workers[1])
        for source in workers:
            for target in workers:
                if source is not target:
                    names = source.name, target.name
                    wires.append(Wire(*names, math.inf, latency, None, spread))
    for gpu in gpus:
        said(f"link to {gpu.name}")
        down = _copying(gpu, large, to_gpu=True)
        said(f"link from {gpu.name}")
        up = _copying(gpu, large, to_gpu=False)
        for worker in workers:
            wires.append(Wire(worker.name, gpu.name, *down, f"host->{gpu.name}"))
            wires.append(Wire(gpu.name, worker.name, *up, f"{gpu.name}->host"))
        for other in gpus:
            if other is not gpu:
                said(f"link from {gpu.name} to {other.name}")
                wires.append(Wire(gpu.name, other.name, *_between(gpu, other, large)))
    return wires


def _handing_over(one: Site, other: Site) -> tuple[float, float]:
    """Seconds from one worker's hand to the other's, and their spread."""
    there: queue.SimpleQueue[int] = queue.SimpleQueue()
    back: queue.SimpleQueue[int] = queue.SimpleQueue()

    def echo() -> None:
        for _ in range(ROUNDS):
            back.put(there.get())

    def call() -> list[float]:
        took = []
        for at in range(ROUNDS):
            began = time.perf_counter()
            there.put(at)
            back.get()
            took.append((time.perf_counter() - began) / 2)
        return took

    answering = threading.Thread(target=lambda: other.run(echo), daemon=True)
    answering.start()
    timing = summed_up(one.run(call)[ROUNDS // 10 :])
    answering.join()
    return timing.seconds, timing.spread


def _copying(gpu: Site, large: int, to_gpu: bool) -> tuple[float, float, float, float]:
    """Bandwidth and latency of pinned copies, bandwidth of others, and the spread."""
    torch = load_torch()

    def copies(size: int, pinned: bool) -> list[float]:
        host = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
        there = torch.zeros(size, dtype=torch.uint8, device=gpu.device)
        ends = (there, host) if to_gpu else (host, there)
        row = (ROW if size == SMALL else FEW) if pinned else 1
        return _samples(torch, gpu, lambda: ends[0].copy_(ends[1], non_blocking=pinned), row)

    return gpu.run(lambda: _fitted(copies, large))


def _fitted(
    copies: Callable[[int, bool], list[float]], large: int
) -> tuple[float, float, float, float]:
    """A line through a small and a large copy: bandwidth, latency, pageable bandwidth, spread."""
    small, whole = median(copies(SMALL, True)), summed_up(copies(large, True))
    bandwidth = (large - SMALL) / max(whole.seconds - small, 1e-9)
    latency = max(small - SMALL / bandwidth, 0.0)
    return bandwidth, latency, large / median(copies(large, False)), whole.spread


def _between(gpu: Site, other: Site, large: int) -> tuple[float, float]:
    torch = load_torch()

    def copies(size: int, _: bool) -> list[float]:
        source = torch.zeros(size, dtype=torch.uint8, device=gpu.device)
        target = torch.zeros(size, dtype=torch.uint8, device=other.device)
        row = ROW if size == SMALL else FEW
        return _samples(torch, gpu, lambda: target.copy_(source, non_blocking=True), row)

    return gpu.run(lambda: _fitted(copies, large))[:2]


def _samples(
    torch: Any, gpu: Site, copy: Callable[[], object], row: int, count: int = 15
) -> list[float]:
    """Seconds of copies, so many in a row, by the GPU's own clock; the first few are left out.

    Several are handed over while the GPU is kept busy, so that none waits for the host.
    """
    found = []
    with torch.cuda.device(gpu.device):
        for at in range(count + 3):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize(gpu.device)
            if row > 1:
                torch.cuda._sleep(BUSY)
            start.record()
            for _ in range(row):
                copy()
            end.record()
            end.synchronize()
            if at >= 3:
                found.append(start.elapsed_time(end) * 1e-3 / row)
    return found
