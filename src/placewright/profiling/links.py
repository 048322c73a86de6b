"""Measures the links between devices: latency and bandwidth, pinned and pageable."""

from __future__ import annotations

import math
import queue
import threading
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from placewright.device import Link
from placewright.profiling.timing import summarise
from placewright.runtime.machine import load_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from placewright.runtime.real_devices import RealDevice

SMALL_BYTES, LARGE_BYTES = 4 << 10, 16 << 20
"""Bytes of the two copies that measure a link. The large one is of a layer's size: a link to an
H200 carries 55 GB/s in copies of 256 MiB, and 52 in copies of 16 MiB."""
SMALL_COPIES, LARGE_COPIES, BUSY_CYCLES = 32, 8, 2_000_000
"""Small and large copies that are timed in a row, and cycles for which a GPU is kept busy while
they are issued."""
ROUND_TRIPS = 300
"""Messages that two workers exchange."""


@dataclass(frozen=True)
class MeasuredLink:
    """The measurement of one link.

    Args:
        bandwidth: Bytes per second of a large copy; infinite between workers, which share memory.
        latency: Seconds of an empty copy among many queued ones.
        pageable: Bytes per second of a large copy from or to pageable memory of the host.
        spread: The interquartile range of the large copy, as a share of the median.
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
        return Link(self.bandwidth, self.latency, self.channel, self.pageable_bandwidth)

    @property
    def pageable_bandwidth(self) -> float | None:
        """Bytes per second of tensors that are sent to a GPU from pageable memory.

        Tensors from a GPU arrive in pinned memory.
        """
        return self.pageable if self.channel.startswith("host->") else None


def measure_links(
    devices: Sequence[RealDevice],
    large_bytes: int = LARGE_BYTES,
    progress: Callable[[str], None] = lambda text: None,
) -> list[MeasuredLink]:
    """Measure a link for every ordered pair of devices.

    Workers pass a tensor on without copying it, so the cost of such a link is the time until the
    other thread wakes up. All workers reach a GPU over one channel, its slot.
    """
    workers = [device for device in devices if not device.is_gpu]
    gpus = [device for device in devices if device.is_gpu]
    links: list[MeasuredLink] = []
    if len(workers) > 1:
        progress("link between CPU workers")
        latency, spread = _handoff_latency(workers[0], workers[1])
        for source in workers:
            for target in workers:
                if source is not target:
                    names = source.name, target.name
                    links.append(MeasuredLink(*names, math.inf, latency, None, spread))
    for gpu in gpus:
        progress(f"link to {gpu.name}")
        down = _host_copy_link(gpu, large_bytes, to_gpu=True)
        progress(f"link from {gpu.name}")
        up = _host_copy_link(gpu, large_bytes, to_gpu=False)
        for worker in workers:
            links.append(MeasuredLink(worker.name, gpu.name, *down, f"host->{gpu.name}"))
            links.append(MeasuredLink(gpu.name, worker.name, *up, f"{gpu.name}->host"))
        for other in gpus:
            if other is not gpu:
                progress(f"link from {gpu.name} to {other.name}")
                links.append(
                    MeasuredLink(gpu.name, other.name, *_peer_copy_link(gpu, other, large_bytes))
                )
    return links


def _handoff_latency(sender: RealDevice, receiver: RealDevice) -> tuple[float, float]:
    """Seconds to pass a message from one worker to another, and their spread."""
    requests: queue.SimpleQueue[int] = queue.SimpleQueue()
    replies: queue.SimpleQueue[int] = queue.SimpleQueue()

    def echo() -> None:
        for _ in range(ROUND_TRIPS):
            replies.put(requests.get())

    def round_trips() -> list[float]:
        seconds = []
        for at in range(ROUND_TRIPS):
            start = time.perf_counter()
            requests.put(at)
            replies.get()
            seconds.append((time.perf_counter() - start) / 2)
        return seconds

    echo_thread = threading.Thread(target=lambda: receiver.run(echo), daemon=True)
    echo_thread.start()
    timing = summarise(sender.run(round_trips)[ROUND_TRIPS // 10 :])
    echo_thread.join()
    return timing.seconds, timing.spread


def _host_copy_link(
    gpu: RealDevice, large_bytes: int, to_gpu: bool
) -> tuple[float, float, float, float]:
    """Bandwidth and latency of pinned copies, bandwidth of pageable ones, and the spread."""
    torch = load_torch()

    def time_copies(size: int, pinned: bool) -> list[float]:
        host_buffer = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
        gpu_buffer = torch.zeros(size, dtype=torch.uint8, device=gpu.torch_device)
        ends = (gpu_buffer, host_buffer) if to_gpu else (host_buffer, gpu_buffer)
        repeats = (SMALL_COPIES if size == SMALL_BYTES else LARGE_COPIES) if pinned else 1
        return _copy_seconds(
            torch, gpu, lambda: ends[0].copy_(ends[1], non_blocking=pinned), repeats
        )

    return gpu.run(lambda: _fit_link(time_copies, large_bytes))


def _fit_link(
    time_copies: Callable[[int, bool], list[float]], large_bytes: int
) -> tuple[float, float, float, float]:
    """A line through a small and a large copy: bandwidth, latency, pageable bandwidth, spread."""
    small_seconds, large_timing = (
        median(time_copies(SMALL_BYTES, True)),
        summarise(time_copies(large_bytes, True)),
    )
    bandwidth = (large_bytes - SMALL_BYTES) / max(large_timing.seconds - small_seconds, 1e-9)
    latency = max(small_seconds - SMALL_BYTES / bandwidth, 0.0)
    return (
        bandwidth,
        latency,
        large_bytes / median(time_copies(large_bytes, False)),
        large_timing.spread,
    )


def _peer_copy_link(gpu: RealDevice, peer: RealDevice, large_bytes: int) -> tuple[float, float]:
    torch = load_torch()

    def time_copies(size: int, _: bool) -> list[float]:
        source = torch.zeros(size, dtype=torch.uint8, device=gpu.torch_device)
        target = torch.zeros(size, dtype=torch.uint8, device=peer.torch_device)
        repeats = SMALL_COPIES if size == SMALL_BYTES else LARGE_COPIES
        return _copy_seconds(torch, gpu, lambda: target.copy_(source, non_blocking=True), repeats)

    return gpu.run(lambda: _fit_link(time_copies, large_bytes))[:2]


def _copy_seconds(
    torch: Any, gpu: RealDevice, copy: Callable[[], object], repeats: int, count: int = 15
) -> list[float]:
    """Seconds per copy, `repeats` in a row, by the GPU's own clock; the first few are dropped.

    Several are issued while the GPU is kept busy, so that none waits for the host.
    """
    seconds = []
    with torch.cuda.device(gpu.torch_device):
        for at in range(count + 3):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize(gpu.torch_device)
            if repeats > 1:
                torch.cuda._sleep(BUSY_CYCLES)
            start.record()
            for _ in range(repeats):
                copy()
            end.record()
            end.synchronize()
            if at >= 3:
                seconds.append(start.elapsed_time(end) * 1e-3 / repeats)
    return seconds
