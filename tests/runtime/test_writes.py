"""Who may write in place, and who must have run before, on graphs small enough to see it."""

from __future__ import annotations

import os

import pytest

from placewright import Graph, Op
from placewright.errors import ConfigError
from placewright.runtime import real_devices
from placewright.runtime.in_place import find_writes
from placewright.runtime.instructions import (
    ENV,
    RESIDENT,
    STAGED,
    compile_graph,
)
from placewright.runtime.real_devices import (
    RealDevice,
    cpu_affinity,
    find_real_devices,
    spare_cores,
)


def cached(*more: Op, outputs=None) -> Graph:
    """A cache of 8 bytes, a row, and an op that writes the row into the cache."""
    ops = (
        Op("cache", "state", outputs=(8,)),
        Op("row", "input", outputs=(2,)),
        Op("write", "scatter", ((0, 0), (1, 0)), (8,), aliases=((0, 0),)),
        *more,
    )
    return Graph("cached", ops, outputs)


def test_a_cache_that_is_read_after_the_write_is_written_in_place():
    graph = cached(Op("read", inputs=((2, 0),)))
    writes = find_writes(graph, [0] * 4, {(0, 0): (2, 0)})
    assert writes.in_place == {2}
    assert writes.write_backs == ()


def test_what_reads_the_old_value_runs_before_the_write_whatever_its_priority():
    ops = (
        Op("cache", "state", outputs=(8,)),
        Op("row", "input", outputs=(2,)),
        Op("old", inputs=((0, 0),)),
        Op("write", "scatter", ((0, 0), (1, 0)), (8,), aliases=((0, 0),)),
    )
    graph = Graph("ordered", ops)
    changes = {(0, 0): (3, 0)}
    script = compile_graph(graph, [0] * 4, 1, [0, 0, 9, 1], changes=changes)
    assert script.order == (2, 3)
    apart = compile_graph(graph, [0, 0, 1, 0], 2, [0, 0, 9, 1], changes=changes)
    assert apart.per_device[0].sequence[0].waits_for == [
        2
    ]  # the write waits for a reader elsewhere
    assert apart.per_device[1].sequence[0].notifies == [0]


def test_an_old_value_that_is_still_read_after_the_write_forbids_it():
    late = cached(Op("old", inputs=((0, 0), (2, 0))))
    writes = find_writes(late, [0] * 4, {(0, 0): (2, 0)})
    assert writes.in_place == frozenset()
    assert writes.write_backs == (((0, 0), (2, 0)),)
    kept = cached(outputs=((0, 0), (2, 0)))  # the model returns the old cache, too
    assert find_writes(kept, [0] * 3, {(0, 0): (2, 0)}).in_place == frozenset()


def test_a_write_on_another_device_is_no_write_in_place():
    writes = find_writes(cached(), [0, 0, 1], {(0, 0): (2, 0)})
    assert writes.in_place == frozenset()
    assert writes.write_backs == (((0, 0), (2, 0)),)


def test_an_update_waits_for_all_that_read_its_weight():
    ops = (
        Op("x", "input", outputs=(4,)),
        Op("w", "weight", outputs=(4,)),
        Op("use", inputs=((0, 0), (1, 0))),
        Op("again", inputs=((2, 0), (1, 0))),
        Op("w.update", "optimizer", ((1, 0), (2, 0))),
    )
    graph = Graph("updated", ops)
    script = compile_graph(graph, [0, 0, 0, 1, 0], 2, [0, 0, 0, 5, 1])
    assert script.order == (2, 3, 4)
    assert script.per_device[0].sequence[1].waits_for == [3]


def test_a_script_says_what_is_read_where_and_freed_when():
    ops = (
        Op("x", "input", outputs=(4,)),
        Op("w", "weight", outputs=(4,)),
        Op("a", inputs=((0, 0), (1, 0))),
        Op("b", inputs=((2, 0), (1, 0))),
        Op("c", inputs=((3, 0), (2, 0))),
    )
    graph = Graph("told", ops)
    first, second = compile_graph(graph, [0, 0, 0, 1, 0], 2).per_device
    a, c = first.sequence
    (b,) = second.sequence
    assert a.inputs == [(ENV, (0, 0)), (RESIDENT, (1, 0))]
    assert a.sends == [(0, 1)]
    assert a.frees == [(0, 0)]
    assert b.inputs == [(ENV, (2, 0)), (RESIDENT, (1, 0))]  # threads share their memory
    assert (b.remote_inputs, b.sends, sorted(b.frees)) == ([(2, 0)], [(0, 0)], [(2, 0), (3, 0)])
    assert (c.remote_inputs, sorted(c.frees)) == ([(3, 0)], [(2, 0), (3, 0)])
    assert first.outputs == [(4, 0)]
    assert second.shared == [(1, 0)]
    _, sent = compile_graph(graph, [0, 0, 0, 1, 0], 2, separate_memory=[1]).per_device
    assert sent.sequence[0].inputs == [(ENV, (2, 0)), (ENV, (1, 0))]  # a GPU gets a copy
    _, staged = compile_graph(
        graph, [0, 0, 0, 1, 0], 2, staging=[-1, 4], separate_memory=[1]
    ).per_device
    assert staged.sequence[0].inputs == [(ENV, (2, 0)), (STAGED, 0)]


def test_a_worker_beside_a_gpu_leaves_cores_to_who_issues(monkeypatch):
    monkeypatch.setattr(real_devices, "available_cores", lambda: tuple(range(16)))
    _, worker = find_real_devices(("gpu0", "cpu"))
    assert worker.cores == tuple(range(14))
    assert worker.threads == 14


def test_places_are_found_by_name_or_as_written():
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
def test_who_issues_keeps_to_the_cores_that_workers_leave():
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
