"""Timing: on the host, and on a GPU that is played by a clock."""

from __future__ import annotations

import contextlib
import time
from types import SimpleNamespace

import pytest

from placewright.profiling.timing import time_on_gpu, time_on_host


class Played:
    """A GPU that does one thing after the other, and a host that hands them over.

    Args:
        host: Seconds that the host takes to hand over a call.
        own: Seconds that the GPU takes for it.
        waits: Whether the host waits for the GPU in every call.
        less: Seconds that it takes less in a graph.
    """

    def __init__(self, host: float, own: float, waits: bool = False, less: float = 0.0) -> None:
        self.host, self.own, self.waits, self.less = host, own, waits, less
        self.busy_until, self.captured, self.mode = 0.0, None, 0
        gpu = self

        class CUDAGraph:
            calls = 0

            def replay(self):
                gpu.do(self.calls * (gpu.own - gpu.less))

        @contextlib.contextmanager
        def capturing(graph, stream):
            gpu.captured = graph
            try:
                yield
            finally:
                gpu.captured = None

        class Event:
            def __init__(self, enable_timing):
                self.at = 0.0

            def record(self):
                self.at = gpu.busy_until = max(gpu.busy_until, time.perf_counter())

            def synchronize(self):
                until(self.at)

            def elapsed_time(self, other):
                return (other.at - self.at) * 1e3

        self.torch = SimpleNamespace(
            device=lambda kind, index: (kind, index),
            cuda=SimpleNamespace(
                device=lambda device: contextlib.nullcontext(),
                synchronize=lambda device: until(self.busy_until),
                Event=Event,
                CUDAGraph=CUDAGraph,
                Stream=lambda device: SimpleNamespace(
                    wait_stream=lambda other: None, synchronize=lambda: until(self.busy_until)
                ),
                current_stream=lambda device: None,
                stream=lambda stream: contextlib.nullcontext(),
                graph=capturing,
                get_sync_debug_mode=lambda: self.mode,
                set_sync_debug_mode=lambda mode: setattr(self, "mode", mode),
                _sleep=lambda cycles: self.do(cycles / 1e9),
            ),
        )

    def do(self, seconds):
        self.busy_until = max(self.busy_until, time.perf_counter()) + seconds

    def __call__(self, at):
        if self.captured is not None:
            assert not self.waits, "a capture cannot wait"
            self.captured.calls += 1
            return
        if self.waits and self.mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        until(time.perf_counter() + self.host)
        self.do(self.own)
        if self.waits:
            until(self.busy_until)


def until(moment):
    while time.perf_counter() < moment:
        pass


@pytest.mark.parametrize(
    ("host", "own"), [(1e-4, 1e-5), (2e-5, 1e-3)], ids=["bound by the host", "bound by the GPU"]
)
def test_a_gpus_own_time_is_separated_from_the_hosts(host, own):
    gpu = Played(host, own)
    took = time_on_gpu(gpu.torch, 0, gpu, 0.1)
    assert own * 0.9 < took.seconds < own * 3
    assert host * 0.9 < took.issue < host * 3


def test_a_short_call_is_timed_in_a_graph_unless_it_waits():
    gpu = Played(2e-5, 2e-5, less=1.2e-5)
    took = time_on_gpu(gpu.torch, 0, gpu, 0.1)
    assert 7e-6 < took.seconds < 1.2e-5
    assert took.issue > 1.8e-5
    waiting = Played(1e-6, 2e-5, waits=True, less=1.2e-5)
    assert time_on_gpu(waiting.torch, 0, waiting, 0.1).seconds > 1.8e-5
    assert waiting.mode == 0
    long = Played(2e-5, 1e-3, less=9e-4)
    assert time_on_gpu(long.torch, 0, long, 0.1).seconds > 9e-4


def test_a_call_that_waits_for_the_gpu_takes_all_of_it():
    gpu = Played(1e-3, 4e-3, waits=True)
    took = time_on_gpu(gpu.torch, 0, gpu, 0.1)
    assert 4.5e-3 < took.seconds < 15e-3  # host and GPU one after the other, on a busy machine
    assert took.issue == 0


def test_short_calls_are_timed_after_others_and_long_ones_in_a_row():
    between = []
    short = time_on_host(
        lambda at: until(time.perf_counter() + 2e-5), 0.05, lambda: between.append(1)
    )
    assert len(between) >= short.samples > 50
    between.clear()
    time_on_host(lambda at: until(time.perf_counter() + 2e-3), 0.05, lambda: between.append(1))
    assert between == []


def test_inputs_rotate():
    seen = []
    time_on_host(seen.append, 0.001)
    assert len(set(seen)) > 100
