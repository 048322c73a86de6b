"""Background copies: none without GPUs; with one, they run until the block ends."""

from __future__ import annotations

import threading
import time

import pytest

torch = pytest.importorskip("torch")

from placewright.cluster import Cluster  # noqa: E402
from placewright.graph import Graph, Op  # noqa: E402
from placewright.profiling.copy_load import CopyLoad, needs_streaming  # noqa: E402
from placewright.profiling.timing import Timing  # noqa: E402
from placewright.profiling.timing_cache import TimingCache  # noqa: E402
from placewright.runtime.machine import this_machine  # noqa: E402


def test_without_gpus_nothing_runs_beside():
    before = threading.active_count()
    with CopyLoad([]).running():
        assert threading.active_count() == before


def test_weights_stream_if_gpus_may_not_hold_them_all():
    ops = (Op("w", "weight", outputs=(6 << 30,)), Op("a", "matmul", inputs=((0, 0),), outputs=(8,)))
    graph = Graph("one weight", ops)
    cluster = Cluster.parse("2xP100+cpu")  # of 16 GB each
    assert not needs_streaming(graph, cluster, {})
    assert not needs_streaming(graph, cluster, {"gpu0": 2 << 30})
    assert needs_streaming(graph, cluster, {"gpu0": 2 << 30, "gpu1": 3 << 30})


def test_timings_with_copies_are_cached_separately(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert CopyLoad([]).name == ""
    alone, beside = (
        TimingCache(this_machine(), {"host": one.name}) for one in (CopyLoad([]), CopyLoad([0]))
    )
    alone.put("host", "an op", Timing(1.0, 0.0, 5))
    alone.put("gpu", "an op", Timing(2.0, 0.0, 5))
    beside.rows = alone.rows
    assert beside.get("host", "an op") is None
    assert beside.get("gpu", "an op") == alone.get("gpu", "an op") == Timing(2.0, 0.0, 5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_fed_until_the_block_is_over():
    company = CopyLoad([0])
    for _ in range(2):
        before = threading.active_count()
        with company.running():
            assert threading.active_count() == before + 1
            time.sleep(0.05)
        assert threading.active_count() == before
    torch.cuda.synchronize()
