"""This machine as a cluster: measured once, kept while nothing changes, limits obeyed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from placewright import Cluster, Device, Link, Problem, Table, files  # noqa: E402
from placewright.errors import ClusterError  # noqa: E402
from placewright.profiling import machine_profile as home  # noqa: E402
from placewright.profiling.as_executed import executed_problem  # noqa: E402
from placewright.profiling.device_rates import DeviceRates, measure_device  # noqa: E402
from placewright.profiling.links import MeasuredLink, measure_links  # noqa: E402
from placewright.profiling.machine_profile import (  # noqa: E402
    build_cluster,
    parse_workers,
    profile_machine,
    profile_path,
)
from placewright.profiling.overhead import measure_handoff  # noqa: E402
from placewright.runtime.machine import (  # noqa: E402
    Gpu,
    Machine,
    _versions,
    this_machine,
)
from placewright.runtime.real_devices import issuing_cores, machine_devices  # noqa: E402
from placewright.store import open_store  # noqa: E402

MACHINE = Machine("EPYC", tuple(range(8)), 64 << 30, versions={"torch": "2.13"})
WITH_GPU = replace(MACHINE, gpus=(Gpu("H200", 140 << 30),))
ABLE = DeviceRates({"float32": 1e11}, 2e10, 2e-6, 1e-6, {"launch": 0.1})


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine of 8 cores whose devices are measured in no time; counts how often."""
    measured: list[str] = []

    def measure(device):
        measured.append(device.name)
        return ABLE

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(home, "this_machine", lambda: MACHINE)
    monkeypatch.setattr(home, "measure_device", measure)
    monkeypatch.setattr(
        home, "measure_links", lambda *_: [_wire("cpu0", "cpu1"), _wire("cpu1", "cpu0")]
    )
    return measured


def _wire(source, target):
    return MeasuredLink(source, target, math.inf, 1e-5)


def test_a_machine_is_measured_once_and_equal_workers_once_among_them(machine):
    notes: list[str] = []
    first, second = profile_machine(notify=notes.append), profile_machine(notify=notes.append)
    assert machine == ["cpu0"]
    assert first.fresh
    assert not second.fresh
    assert len(notes) == 1
    assert "8 cores" in notes[0]
    assert second.cluster.fingerprint == first.cluster.fingerprint
    assert files.load(first.path, "cluster").fingerprint == first.cluster.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"versions": {"torch": "2.14"}},
        {"cores": tuple(range(4))},
        {"processor": "Xeon"},
        {"memory": 32 << 30},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_machine_that_has_changed_is_measured_again(machine, monkeypatch, change):
    profile_machine()
    monkeypatch.setattr(home, "this_machine", lambda: replace(MACHINE, **change))
    assert profile_machine().fresh
    assert machine == ["cpu0", "cpu0"]


def test_a_damaged_profile_is_measured_again(machine):
    kept = profile_machine().path
    kept.write_text(kept.read_text()[:40])
    assert profile_machine().fresh
    assert not profile_machine().fresh


def test_a_machine_of_the_same_kind_takes_the_profile_from_the_store(
    machine, monkeypatch, tmp_path
):
    monkeypatch.setenv("PLACEWRIGHT_STORE", str(tmp_path / "store.sqlite"))
    first = profile_machine()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of another user"))
    second = profile_machine()
    assert machine == ["cpu0"]
    assert not second.fresh
    assert second.path != first.path
    assert second.cluster.fingerprint == first.cluster.fingerprint
    assert second.facts == first.facts
    monkeypatch.setenv("PLACEWRIGHT_STORE", "none")
    assert not profile_machine().fresh  # it has a file now
    monkeypatch.setattr(home, "this_machine", lambda: replace(MACHINE, processor="Xeon"))
    monkeypatch.setenv("PLACEWRIGHT_STORE", str(tmp_path / "store.sqlite"))
    assert profile_machine().fresh


def test_a_damaged_profile_in_the_store_is_measured_again(machine, monkeypatch, tmp_path):
    monkeypatch.setenv("PLACEWRIGHT_STORE", str(tmp_path / "store.sqlite"))
    profile_machine()
    store = open_store()
    key = profile_path(MACHINE, machine_devices(MACHINE, None)).stem
    facts = store.get_profile(key)["facts"]
    for at, data in enumerate(({}, {"facts": facts}, {"facts": facts, "cluster": {"name": 1}})):
        store.put_profile(key, data)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / str(at)))
        assert profile_machine().fresh


def test_a_cached_profile_is_measured_again_on_refresh(machine):
    profile_machine()
    assert profile_machine(refresh=True).fresh


def test_profiles_for_several_numbers_of_workers_coexist():
    names = {profile_path(MACHINE, machine_devices(MACHINE, count)).name for count in (1, 2, 4)}
    assert len(names) == 3


def test_workers_share_the_cores_and_the_memory():
    chosen = machine_devices(MACHINE, 3)
    assert [device.cores for device in chosen] == [(0, 1, 2), (3, 4, 5), (6, 7)]
    cluster = build_cluster(
        MACHINE,
        chosen,
        {device.name: ABLE for device in chosen},
        [_wire(a.name, b.name) for a in chosen for b in chosen if a is not b],
    )
    assert sum(device.memory for device in cluster.devices) <= MACHINE.memory
    assert [device.capacity for device in cluster.devices] == [
        (64 << 30) // 3 - (64 << 30) // 30
    ] * 3


def test_next_to_a_gpu_all_cores_but_the_issuing_ones_are_one_device():
    chosen = machine_devices(WITH_GPU)
    assert [device.name for device in chosen] == ["gpu0", "cpu"]
    able = {device.name: ABLE for device in chosen}
    wires = [_wire("cpu", "gpu0"), _wire("gpu0", "cpu")]
    gpu, host = build_cluster(WITH_GPU, chosen, able, wires).devices
    assert (gpu.kind, gpu.issuer, gpu.launch_overhead) == ("gpu", "here", 2e-6)
    assert (host.kind, host.issuer) == ("cpu", None)
    assert host.model == "EPYC x6"
    assert [issuing_cores(count) for count in (1, 2, 3, 7, 8, 64)] == [0, 0, 1, 1, 2, 2]


def test_more_workers_than_cores_are_refused():
    with pytest.raises(ClusterError, match="9 CPU workers on a machine of 8 cores"):
        machine_devices(MACHINE, 9)


@pytest.mark.parametrize("text", ["here:4", "here:workers=x", "here:workers=", "here:cores=2"])
def test_what_else_stands_behind_here_is_refused(text):
    with pytest.raises(ClusterError, match="expected here, or such as here:workers=2"):
        parse_workers(text)


def test_here_says_how_many_workers():
    assert parse_workers("here") is None
    assert parse_workers(" here:workers=4") == 4


def test_settings_that_change_the_speed_of_ops_make_another_machine():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    assert not torch.are_deterministic_algorithms_enabled()
    keys, settings = [this_machine().key], [_versions(torch, True)]
    try:
        torch.set_float32_matmul_precision("medium" if before[0] != "medium" else "highest")
        keys.append(this_machine().key)
        torch.use_deterministic_algorithms(True)
        keys.append(this_machine().key)
        torch.backends.cudnn.benchmark = not before[1]
        settings.append(_versions(torch, True))
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark = before[1]
    assert len(set(keys)) == 3
    assert this_machine().key == keys[0]
    changed = {name for name in settings[0] if settings[0][name] != settings[1][name]}
    assert changed >= {"float32", "deterministic", "benchmark"}


def test_the_real_machine_multiplies_copies_and_hands_over():
    machine = this_machine()
    assert machine.key == this_machine().key
    assert machine.memory > 1 << 28
    device = next(device for device in machine_devices(machine, 1) if not device.is_gpu)
    able = measure_device(device, seconds=0.02)
    assert 1e8 < able.rates["float32"] < 1e16
    assert 1e8 < able.bandwidth < 1e13
    assert 1e-7 < able.launch < 1e-3
    if len(machine.cores) > 1:
        workers = [device for device in machine_devices(machine, 2) if not device.is_gpu]
        there, back = measure_links(workers)
        assert (there.source, there.target) == (back.target, back.source) == ("cpu0", "cpu1")
        assert there.bandwidth == math.inf
        assert 1e-7 < there.latency < 0.05


def test_work_on_a_worker_has_its_cores_and_leaves_the_others_alone():
    import os

    machine = this_machine()
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    devices = machine_devices(replace(machine, gpus=()), len(machine.cores))
    device = devices[-1]
    inside = device.run(lambda: (os.sched_getaffinity(0), torch.get_num_threads()))
    assert inside == (set(device.cores) or before, 1)
    assert (os.sched_getaffinity(0), torch.get_num_threads()) == (before, threads)
    with pytest.raises(ZeroDivisionError):
        device.run(lambda: 1 / 0)


def test_what_is_replayed_needs_no_host_to_start_its_ops(chain):
    chosen = machine_devices(WITH_GPU)
    able = {device.name: ABLE for device in chosen}
    cluster = build_cluster(WITH_GPU, chosen, able, [_wire("cpu", "gpu0"), _wire("gpu0", "cpu")])
    facts = {"devices": {"gpu0": {"own": 1e-6}, "cpu": {"own": 2e-6}}}
    profile = home.MachineProfile(WITH_GPU, cluster, facts, False, None)
    table = Table(("a", "b", "c"), ("H200", "cpu"), np.ones((3, 2)), issue=np.full((3, 2), 5.0))
    problem = executed_problem(Problem(chain, cluster, table), profile)
    gpu = problem.cluster.devices[0]
    assert (gpu.issuer, gpu.launch_overhead) == (None, 1e-6)
    assert (problem.arrays.compute == 1).all()
    assert (Problem(chain, cluster, table).arrays.compute[:, 0] == 5).all()


def test_handing_a_tensor_over_takes_a_moment():
    names = "cpu0", "cpu1"
    figures = {"rates": {"float32": 1e11}, "memory_bandwidth": 1e10}
    devices = tuple(Device(name, "cpu", memory=2**30, **figures) for name in names)
    links = {(one, other): Link(1e9) for one in names for other in names if one != other}
    took = measure_handoff(Cluster("two", devices, links), *names)
    assert 1e-7 < took < 0.1
