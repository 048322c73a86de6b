"""A call in, its time as a robust median with its spread out, on the host or on a GPU."""

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

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Call = Callable[[int], object]
"""What is timed; it is told which time it is, so that it can take other inputs each time."""

SAMPLE = 3e-4
"""Seconds that one sample lasts at least: the clock is read around several calls of short ops."""
FEWEST, MOST = 5, 60
"""Samples of one timing, where the time given to it allows."""
_SINGLE = 500
"""The most samples of single calls."""
_QUEUE = 400
"""Calls that a GPU can be handed ahead of time without the host having to wait for it."""
_CAPTURED, _SHORT = 128, 5e-5
"""Calls of a CUDA graph, and seconds of the longest whose time in one differs: by 1 or 2 µs."""
_FAULTS = 16
"""Pages that a sample may be given more than others: by chance."""


class _Sample(NamedTuple):
    """One of the host's: seconds of a call, and pages that the process was given meanwhile."""

    seconds: float
    faults: int


@dataclass(frozen=True)
class Timing:
    """How long one call takes.

    Args:
        seconds: The median of the samples; on a GPU, of its own time.
        spread: Between the quartiles, as a share of the median.
        samples: How many there were.
        issue: On a GPU, seconds of the host to start one call; on a host, those that the runtime
            takes before it in a step, where one was run.
        workspace: On a GPU, bytes that a call needs beside what it returns.
    """

    seconds: float
    spread: float
    samples: int
    issue: float = 0.0
    workspace: int = 0


def summed_up(samples: Sequence[float], issue: float = 0.0) -> Timing:
    """The timing that these samples, in seconds, make."""
    middle = median(samples)
    low, _, high = quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else [middle] * 3
    spread = (high - low) / middle if middle > 0 else 0.0
    return Timing(middle, spread, len(samples), issue)


def time_on_host(
    call: Call, seconds: float = 0.1, between: Callable[[], object] | None = None
) -> Timing:
    """Time a call that has ended when it returns, for about so many seconds.

    Args:
        between: Done, untimed, before each call of a short one: in a step other ops run in between,
            and leave little of an op's code and data in the nearest caches.
    """
    call(0)  # allocates, chooses kernels, compiles
    with _no_garbage():
        first = [_host_sample(call, at, 1) for at in (1, 2)]
        once = min(first).seconds
        if once > seconds:  # more would take too long
            return _settled(first)
        if between is not None and once < SAMPLE:
            return _disturbed(call, seconds, between)
        inner = max(1, min(1000, math.ceil(SAMPLE / max(once, 1e-9))))
        count = _samples(seconds, once * inner)
        return _settled([_host_sample(call, at * inner, inner) for at in range(count)])


def _disturbed(call: Call, seconds: float, between: Callable[[], object]) -> Timing:
    """Single calls, each after something else."""
    samples: list[_Sample] = []
    until = time.perf_counter() + seconds
    while len(samples) < FEWEST or (len(samples) < _SINGLE and time.perf_counter() < until):
        between()
        samples.append(_host_sample(call, len(samples), 1))
    return _settled(samples[len(samples) // 10 :])


def _settled(samples: Sequence[_Sample]) -> Timing:
    """The timing of those samples that asked the system for the least memory.

    A step that is run again and again asks for none: our runtime keeps what was freed.
    """
    fewest = min(sample.faults for sample in samples)
    return summed_up([sample.seconds for sample in samples if sample.faults <= fewest + _FAULTS])


def time_on_gpu(torch: Any, index: int, call: Call, seconds: float = 0.1) -> Timing:
    """Time a call that a GPU does after it has returned, for about so many seconds.

    The GPU is first kept busy for as long as the host takes to hand over all calls of a sample, so
    that its own time is measured however slow the host is, and the host's without waiting. Short
    ones are timed in a CUDA graph, as the runtime replays them: there they follow each other closer
    than a GPU can be told.
    """
    device = torch.device("cuda", index)
    with torch.cuda.device(device), _no_garbage():
        call(0)
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        call(1)
        handed = time.perf_counter() - began
        torch.cuda.synchronize(device)
        whole = time.perf_counter() - began
        inner = max(3, min(_QUEUE, math.ceil(SAMPLE / max(whole, 1e-9))))
        count = _samples(seconds / 2, inner * (whole + 1.5 * handed))
        clock = _cycles(torch, device)
        samples, issues = [], []
        for at in range(count):
            busy = int(clock * 1.5 * handed * inner)
            own, issue = _gpu_sample(torch, call, at * inner, inner, busy)
            samples.append(own)
            issues.append(issue)
            handed = min(handed, issue)
        if median(issues) > 0.8 * whole and whole > 1e-3:  # it waits for the GPU: a copy, a count
            return summed_up([_waiting_sample(torch, device, call, at) for at in range(count)])
        found = summed_up(samples, median(issues))
    if found.seconds > _SHORT:
        return found
    replayed = time_replayed(torch, index, call, _CAPTURED, seconds / 4)
    return found if replayed is None else replace(replayed, issue=found.issue)


def time_replayed(
    torch: Any, index: int, call: Call, calls: int, seconds: float = 0.1
) -> Timing | None:
    """Time a call as one of so many in a CUDA graph; none of one that cannot be captured."""
    device = torch.device("cuda", index)
    with torch.cuda.device(device), _no_garbage(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # modes that may change, graphs without a kernel
        graph = _captured(torch, device, call, calls)
        if graph is None:
            return None
        busy = int(SAMPLE * _cycles(torch, device))
        once, _ = _gpu_sample(torch, lambda _: graph.replay(), 0, 1, busy)
        samples = [
            _gpu_sample(torch, lambda _: graph.replay(), 0, 1, busy)[0] / calls
            for _ in range(_samples(seconds, once + SAMPLE))
        ]
    return summed_up(samples)


def _captured(torch: Any, device: Any, call: Call, calls: int) -> Any:
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
    mode = torch.cuda.get_sync_debug_mode()
    side.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(side):
            torch.cuda.set_sync_debug_mode("error")  # a capture that waits would break off
            call(0)
            torch.cuda.set_sync_debug_mode(mode)
        side.synchronize()
        with torch.cuda.graph(graph, stream=side):
            for at in range(calls):
                call(at)
    except Exception:  # whatever it is, it can be timed without
        return None
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    return graph


def _samples(seconds: float, each: float) -> int:
    fitting = int(seconds / max(each, 1e-9))
    return max(min(FEWEST, fitting + 3), min(MOST, fitting))


def _host_sample(call: Call, first: int, inner: int) -> _Sample:
    faults, began = _page_faults(), time.perf_counter()
    for at in range(first, first + inner):
        call(at)
    return _Sample((time.perf_counter() - began) / inner, _page_faults() - faults)


def _page_faults() -> int:
    """Pages that this process has been given so far."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _gpu_sample(torch: Any, call: Call, first: int, inner: int, busy: int) -> tuple[float, float]:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if busy:
        torch.cuda._sleep(busy)
    start.record()
    began = time.perf_counter()
    for at in range(first, first + inner):
        call(at)
    issue = (time.perf_counter() - began) / inner
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3 / inner, issue


def _waiting_sample(torch: Any, device: Any, call: Call, at: int) -> float:
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    call(at)
    torch.cuda.synchronize(device)
    return time.perf_counter() - began


def _cycles(torch: Any, device: Any) -> float:
    """Cycles a second of the clock that `_sleep` counts, roughly."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(1_000_000)
    end.record()
    end.synchronize()
    return float(1e6 / (start.elapsed_time(end) * 1e-3))


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Keep the collector from running in a sample."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
