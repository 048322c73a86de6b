"""Timing: on the host, and on a GPU that is played by a clock."""

from __future__ import annotations

import contextlib
import time
from types import SimpleNamespace

import pytest

from placewright.runtime.timing import time_on_gpu, time_on_host


class Played:
    """A GPU that does one thing after the other, and a host that hands them over.

    Args:
        host: Seconds that the host takes to hand over a call.
        own: Seconds that the GPU takes for it.
        waits: Whether the host waits for the GPU in every call.
    """

    def __init__(self, host: float, own: float, waits: bool = False) -> None:
        self.host, self.own, self.waits = host, own, waits
        self.busy_until = 0.0
        gpu = self

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
                _sleep=lambda cycles: self.do(cycles / 1e9),
            ),
        )

    def do(self, seconds):
        self.busy_until = max(self.busy_until, time.perf_counter()) + seconds

    def __call__(self, at):
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
def test_a_gpus_own_time_and_the_hosts_are_told_apart(host, own):
    gpu = Played(host, own)
    took = time_on_gpu(gpu.torch, 0, gpu, 0.1)
    assert own * 0.9 < took.seconds < own * 3
    assert host * 0.9 < took.issue < host * 3


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
