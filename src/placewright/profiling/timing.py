"""Times a call on the host or on a GPU: a robust median with its spread."""

from __future__ import annotations

import gc
import math
import time
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, NamedTuple

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

from placewright.runtime.machine import load_torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from placewright.runtime.real_devices import RealDevice

Call = Callable[[int], object]
"""The function that is timed; its argument counts the calls, so that inputs can differ."""

MIN_SAMPLE_SECONDS = 3e-4
"""The least seconds of one sample: the clock is read around several calls of short ops."""
MIN_SAMPLES, MAX_SAMPLES = 5, 60
"""Samples of one timing, as its budget allows."""
_MAX_SINGLE_CALLS = 500
"""The most samples of single calls."""
_MAX_QUEUED_CALLS = 400
"""Calls that can be queued on a GPU before the host has to wait for it."""
_GRAPH_CALLS, _SHORT_SECONDS = 128, 5e-5
"""Calls in a CUDA graph, and seconds of the longest op that is timed in one.

In a graph an op takes 1 or 2 µs less, which matters for short ops only.
"""
_FAULT_TOLERANCE = 16
"""Page faults by which samples may differ by chance."""


class _HostSample(NamedTuple):
    """A sample of the host: seconds of a call, and page faults of the process meanwhile."""

    seconds: float
    faults: int


@dataclass(frozen=True)
class Timing:
    """How long one call takes.

    Args:
        seconds: The median of the samples; on a GPU, of its own time.
        spread: The interquartile range, as a share of the median.
        samples: How many there were.
        issue: On a GPU, seconds of the host to launch one call; on a host, seconds that the runtime
            takes before it in a step, where one was run.
        workspace: On a GPU, bytes that a call needs in addition to its outputs.
    """

    seconds: float
    spread: float
    samples: int
    issue: float = 0.0
    workspace: int = 0


def summarise(samples: Sequence[float], issue: float = 0.0) -> Timing:
    """The timing of these samples, in seconds."""
    middle = median(samples)
    low, _, high = quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else [middle] * 3
    spread = (high - low) / middle if middle > 0 else 0.0
    return Timing(middle, spread, len(samples), issue)


def time_call(
    device: RealDevice, call: Call, seconds: float = 0.1, as_in_step: bool = False
) -> Timing:
    """Time a call on a device; to be used within `device.run`.

    Args:
        as_in_step: On a worker, run other ops before each call; a GPU's calls are timed alone.
    """
    if device.is_gpu:
        return time_on_gpu(load_torch(), device.index, call, seconds)
    return time_on_host(call, seconds, _interleaved_ops() if as_in_step else None)


def _interleaved_ops() -> Callable[[], object]:
    """Small ops of several kinds, as they run between two calls of an op in a step.

    They were chosen so that ops of a small decoder, timed one by one after them, take about as long
    as in a run of the decoder: between 1.3 and 2 times as long as in a loop of their own.
    """
    torch = load_torch()
    square, vector = torch.rand(64, 64), torch.rand(1 << 15)

    def run_ops() -> None:
        torch.mm(square, square)
        torch.softmax(square, -1)
        torch.cat((square, square))
        torch.nn.functional.layer_norm(square, (64,))
        torch.add(vector, 1.0)

    return run_ops


def time_on_host(
    call: Call, seconds: float = 0.1, between: Callable[[], object] | None = None
) -> Timing:
    """Time a call that has ended when it returns.

    Args:
        seconds: How long to time it, about.
        between: Run, untimed, before each call of a short one: in a step other ops run in between,
            and leave little of an op's code and data in the nearest caches.
    """
    call(0)  # allocates, chooses kernels, compiles
    with _collector_paused():
        first_samples = [_host_sample(call, at, 1) for at in (1, 2)]
        call_seconds = min(first_samples).seconds
        if call_seconds > seconds:  # more would take too long
            return _steady_timing(first_samples)
        if between is not None and call_seconds < MIN_SAMPLE_SECONDS:
            return _time_interleaved(call, seconds, between)
        calls_per_sample = max(
            1, min(1000, math.ceil(MIN_SAMPLE_SECONDS / max(call_seconds, 1e-9)))
        )
        count = _sample_count(seconds, call_seconds * calls_per_sample)
        return _steady_timing(
            [_host_sample(call, at * calls_per_sample, calls_per_sample) for at in range(count)]
        )


def _time_interleaved(call: Call, seconds: float, between: Callable[[], object]) -> Timing:
    """Time single calls, each after other work."""
    samples: list[_HostSample] = []
    deadline = time.perf_counter() + seconds
    while len(samples) < MIN_SAMPLES or (
        len(samples) < _MAX_SINGLE_CALLS and time.perf_counter() < deadline
    ):
        between()
        samples.append(_host_sample(call, len(samples), 1))
    return _steady_timing(samples[len(samples) // 10 :])


def _steady_timing(samples: Sequence[_HostSample]) -> Timing:
    """The timing of the samples with the fewest page faults.

    A step that is repeated has none: the runtime retains freed memory.
    """
    min_faults = min(sample.faults for sample in samples)
    return summarise(
        [sample.seconds for sample in samples if sample.faults <= min_faults + _FAULT_TOLERANCE]
    )


def time_on_gpu(torch: Any, index: int, call: Call, seconds: float = 0.1) -> Timing:
    """Time a call that a GPU runs asynchronously.

    The GPU is first kept busy for as long as the host takes to issue all calls of a sample, so that
    the GPU's own time is measured however slow the host is, and the host's without waiting. Short
    calls are timed in a CUDA graph, as the runtime replays them: there they follow each other
    faster than the host could issue them.

    Args:
        seconds: How long to time it, about.
    """
    device = torch.device("cuda", index)
    with torch.cuda.device(device), _collector_paused():
        call(0)
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        call(1)
        issue_seconds = time.perf_counter() - start
        torch.cuda.synchronize(device)
        call_seconds = time.perf_counter() - start
        calls_per_sample = max(
            3, min(_MAX_QUEUED_CALLS, math.ceil(MIN_SAMPLE_SECONDS / max(call_seconds, 1e-9)))
        )
        count = _sample_count(seconds / 2, calls_per_sample * (call_seconds + 1.5 * issue_seconds))
        clock = _clock_rate(torch, device)
        samples, issues = [], []
        for at in range(count):
            busy_cycles = int(clock * 1.5 * issue_seconds * calls_per_sample)
            gpu_seconds, issue = _gpu_sample(
                torch, call, at * calls_per_sample, calls_per_sample, busy_cycles
            )
            samples.append(gpu_seconds)
            issues.append(issue)
            issue_seconds = min(issue_seconds, issue)
        # Such a call waits for the GPU: it copies to the host, or counts.
        if median(issues) > 0.8 * call_seconds and call_seconds > 1e-3:
            return summarise([_blocking_sample(torch, device, call, at) for at in range(count)])
        timing = summarise(samples, median(issues))
    if timing.seconds > _SHORT_SECONDS:
        return timing
    graph_timing = time_cuda_graph(torch, index, call, _GRAPH_CALLS, seconds / 4)
    return timing if graph_timing is None else replace(graph_timing, issue=timing.issue)


def time_cuda_graph(
    torch: Any, index: int, call: Call, calls: int, seconds: float = 0.1
) -> Timing | None:
    """Time a call as one of several in a CUDA graph; None if it cannot be captured."""
    device = torch.device("cuda", index)
    with torch.cuda.device(device), _collector_paused(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of modes that may change, and empty graphs
        graph = _capture_graph(torch, device, call, calls)
        if graph is None:
            return None
        busy_cycles = int(MIN_SAMPLE_SECONDS * _clock_rate(torch, device))
        replay_seconds, _ = _gpu_sample(torch, lambda _: graph.replay(), 0, 1, busy_cycles)
        samples = [
            _gpu_sample(torch, lambda _: graph.replay(), 0, 1, busy_cycles)[0] / calls
            for _ in range(_sample_count(seconds, replay_seconds + MIN_SAMPLE_SECONDS))
        ]
    return summarise(samples)


def _capture_graph(torch: Any, device: Any, call: Call, calls: int) -> Any:
    graph, side_stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
    mode = torch.cuda.get_sync_debug_mode()
    side_stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(side_stream):
            torch.cuda.set_sync_debug_mode(
                "error"
            )  # a call that synchronises would break the capture
            call(0)
            torch.cuda.set_sync_debug_mode(mode)
        side_stream.synchronize()
        with torch.cuda.graph(graph, stream=side_stream):
            for at in range(calls):
                call(at)
    except Exception:  # whatever it is, the call can be timed without a graph
        return None
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    return graph


def _sample_count(seconds: float, sample_seconds: float) -> int:
    affordable = int(seconds / max(sample_seconds, 1e-9))
    return max(min(MIN_SAMPLES, affordable + 3), min(MAX_SAMPLES, affordable))


def _host_sample(call: Call, first_call: int, calls: int) -> _HostSample:
    faults, start = _page_faults(), time.perf_counter()
    for at in range(first_call, first_call + calls):
        call(at)
    return _HostSample((time.perf_counter() - start) / calls, _page_faults() - faults)


def _page_faults() -> int:
    """Page faults of this process so far."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _gpu_sample(
    torch: Any, call: Call, first_call: int, calls: int, busy_cycles: int
) -> tuple[float, float]:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if busy_cycles:
        torch.cuda._sleep(busy_cycles)
    start.record()
    issue_start = time.perf_counter()
    for at in range(first_call, first_call + calls):
        call(at)
    issue = (time.perf_counter() - issue_start) / calls
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3 / calls, issue


def _blocking_sample(torch: Any, device: Any, call: Call, at: int) -> float:
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    call(at)
    torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _clock_rate(torch: Any, device: Any) -> float:
    """Cycles per second of the clock that `_sleep` counts, roughly."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(1_000_000)
    end.record()
    end.synchronize()
    return float(1e6 / (start.elapsed_time(end) * 1e-3))


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from running in a sample."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
