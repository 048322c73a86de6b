"""Real devices: by name or as written, and their cores."""

from __future__ import annotations

import os

import pytest

from placewright.errors import ConfigError
from placewright.runtime import real_devices
from placewright.runtime.real_devices import (
    RealDevice,
    cpu_affinity,
    find_real_devices,
    spare_cores,
)


def test_a_worker_beside_a_gpu_leaves_cores_to_the_issuing_thread(monkeypatch):
    monkeypatch.setattr(real_devices, "available_cores", lambda: tuple(range(16)))
    _, worker = find_real_devices(("gpu0", "cpu"))
    assert worker.cores == tuple(range(14))
    assert worker.threads == 14


def test_devices_are_found_by_name_or_as_written():
    gpu, one, two = find_real_devices(("gpu1.2", "cpu0", "cpu1"), {"cpu1": "cpu:1"})
    assert (gpu.kind, gpu.index, gpu.stream, gpu.torch_name) == ("cuda", 1, 2, "cuda:1")
    assert (one.kind, two.kind, two.threads, one.torch_name) == ("cpu", "cpu", 1, "cpu")
    assert not set(one.cores) & set(two.cores)
    assert find_real_devices(("cpu",))[0].cores == ()  # alone, it may use any
    (part,) = find_real_devices(("fast",), {"fast": "cuda:0/1@64"})
    assert (part.index, part.stream, part.multiprocessors) == (0, 1, 64)
    with pytest.raises(ConfigError, match="'tpu7' says no place"):
        find_real_devices(("tpu7",))
    with pytest.raises(ConfigError, match="has place 'cuda-0'"):
        find_real_devices(("gpu0",), {"gpu0": "cuda-0"})
    with pytest.raises(ConfigError, match="the devices are gpu0"):
        find_real_devices(("gpu0",), {"gpu1": "cpu"})


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads keep to no cores here")
def test_the_issuing_thread_keeps_to_the_cores_that_workers_leave():
    cores = sorted(os.sched_getaffinity(0))
    assert spare_cores([RealDevice("gpu0", "cuda"), RealDevice("cpu")]) == ()
    taken = RealDevice("cpu", cores=tuple(cores[1:]))
    assert spare_cores([RealDevice("gpu0", "cuda"), taken]) in ((cores[0],), ())
    with cpu_affinity(cores[:1]):
        assert os.sched_getaffinity(0) == {cores[0]}
    assert sorted(os.sched_getaffinity(0)) == cores
    with pytest.raises(ZeroDivisionError), cpu_affinity(cores[:1]):
        _ = 1 / 0
    assert sorted(os.sched_getaffinity(0)) == cores
