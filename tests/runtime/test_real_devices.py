"""Real devices: by name or as written, and their cores."""

from __future__ import annotations

import os

import pytest

from placewright.errors import ConfigError
from placewright.runtime import real_devices
from placewright.runtime.machine import Gpu, Machine
from placewright.runtime.real_devices import (
    RealDevice,
    cpu_affinity,
    find_real_devices,
    issuing_cores,
    machine_devices,
    spare_cores,
)


@pytest.mark.parametrize(
    ("cores", "gpus", "workers", "shares"),
    [
        (16, 1, 4, (4, 4, 3, 3)),
        (16, 0, 3, (6, 5, 5)),
        (6, 0, 4, (2, 2, 1, 1)),
        (16, 2, 1, (14,)),
        (2, 1, 1, (2,)),
        (2, 0, 2, (1, 1)),
        (8, 0, 1, (8,)),
    ],
)
def test_workers_are_measured_on_the_cores_they_run_on(cores, gpus, workers, shares, monkeypatch):
    machine = Machine("EPYC", tuple(range(cores)), 1 << 30, (Gpu("H200", 1 << 30),) * gpus)
    measured = machine_devices(machine, workers)
    monkeypatch.setattr(real_devices, "available_cores", lambda: machine.cores)
    run = find_real_devices([device.name for device in measured])
    where = [(device.torch_name, device.threads, device.cores) for device in measured]
    assert where == [(device.torch_name, device.threads, device.cores) for device in run]
    hosts = [device for device in measured if not device.is_gpu]
    assert tuple(device.threads for device in hosts) == shares
    assert [device.model for device in hosts] == [f"EPYC x{share}" for share in shares]
    used = [core for device in hosts for core in device.cores]
    idle = cores - (issuing_cores(cores) if gpus else 0) - len(used)
    assert len(used) == len(set(used))
    assert idle == 0 or (idle == cores and len(hosts) == 1)  # alone, it may use any


def test_a_worker_gets_the_cores_it_asks_for_and_the_others_share_the_rest(monkeypatch):
    monkeypatch.setattr(real_devices, "available_cores", lambda: tuple(range(9)))
    devices = find_real_devices(("cpu0", "cpu1", "cpu2"), {"cpu1": "cpu:2"})
    assert [device.cores for device in devices] == [(0, 1, 2, 3), (4, 5), (6, 7, 8)]
    many = find_real_devices([f"cpu{index}" for index in range(10)])
    assert [device.threads for device in many] == [1] * 10
    assert [len(device.cores) for device in many] == [1] * 9 + [0]  # none is left for the last
    free = find_real_devices(("cpu0", "cpu1"), pin_cores=False)
    assert [(device.threads, device.cores) for device in free] == [(5, ()), (4, ())]


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
    with pytest.raises(ConfigError, match="'tpu7' is no device of this machine"):
        find_real_devices(("tpu7",))
    with pytest.raises(ConfigError, match="is mapped to 'cuda-0'"):
        find_real_devices(("gpu0",), {"gpu0": "cuda-0"})
    with pytest.raises(ConfigError, match="devices are gpu0"):
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
