"""One plan a thread: the GPU's lanes, run on the host by the source that a GPU compiles."""

from __future__ import annotations

import re
import shutil
import subprocess
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import plans, problems

from placewright import Cluster, Constraints, Device, Link, Problem, judge, zoo
from placewright.errors import ConfigError, PlanError, ProblemError
from placewright.simulator import reference
from placewright.simulator.evaluation import kernel
from placewright.simulator.lane_launch import block_size, kernel_source, launch_size
from placewright.solvers.searches.search_space import bounded_grouping

torch = pytest.importorskip("torch")

from placewright.simulator.gpu_lanes import GpuLanes  # noqa: E402

SOME = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def rounding(problem: Problem) -> float:
    """The share by which a float32 time may be wrong: 2^-24 for each rounding on a path.

    Every op and every tensor is added at most once on a path, and each of their durations has been
    rounded once itself.
    """
    return 2 * (problem.arrays.ops + len(problem.arrays.sizes)) * 2.0**-24


def columns(placements: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(placements.T.astype(np.uint8)))


def random_placements(problem: Problem, count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    a = problem.arrays
    return problem.legalize(rng.integers(a.devices, size=(count, a.ops)))


@SOME
@given(st.data())
def test_a_thread_is_the_reference_but_for_rounding(data):
    problem = data.draw(problems())
    device, priority, _ = data.draw(plans(problem))
    if not kernel(problem.arrays).has_lanes or problem.discipline != "in order":
        return
    if problem.objective != "step":
        return
    device = np.asarray(device, dtype=np.int32)[None]
    trace = reference.run(problem.arrays, True, device[0], priority)
    found = GpuLanes(problem, priority=priority, device="cpu").evaluate(columns(device))
    exact = kernel(problem.arrays).judge_lanes(device, priority, None, True, 1)
    np.testing.assert_array_equal(found.low.T.numpy(), exact[2])
    np.testing.assert_array_equal(found.high.T.numpy(), exact[3])
    assert (found.low[:, 0].numpy() <= trace.peak).all()
    assert (found.high[:, 0].numpy() >= trace.peak).all()
    assert bool(found.is_tied[0]) or exact[4] == 0  # what float64 finds tied, float32 does too
    if not found.is_tied[0]:
        assert float(found.step_time[0]) == pytest.approx(trace.step_time, rel=rounding(problem))


@pytest.mark.parametrize("priorities", [False, True])
@pytest.mark.parametrize(
    ("network", "cluster"),
    [
        ("layered:ops=300,weights=true", "4xP100+cpu"),
        ("transformer:blocks=2,tokens=64", "2xV100+cpu"),
        ("cifar10:graph=3", "8xP100"),
        ("layered:ops=300,weights=true", "8xA100-nvlink"),
    ],
)
def test_threads_equal_the_cpus_lanes_on_networks(network, cluster, priorities):
    """101 plans on 48 threads: threads have one, two or three plans, and the last block is part."""
    problem = Problem(zoo.load(network), Cluster.parse(cluster))
    order = np.random.default_rng(1).random(problem.arrays.ops) if priorities else None
    placements = random_placements(problem, 101)
    found = GpuLanes(problem, priority=order, device="cpu").evaluate(columns(placements))
    exact = kernel(problem.arrays).judge_lanes(placements, order, None, True, 1)
    np.testing.assert_array_equal(found.low.T.numpy(), exact[2])
    np.testing.assert_array_equal(found.high.T.numpy(), exact[3])
    free = ~found.is_tied.numpy()
    assert free.all() or priorities
    assert free.sum() <= 101 - exact[4]
    share = found.step_time.numpy()[free] / exact[0][free]
    assert np.abs(share - 1).max(initial=0.0) < rounding(problem)
    times = GpuLanes(problem, priority=order, device="cpu").evaluate(columns(placements), False)
    torch.testing.assert_close(times.step_time, found.step_time, rtol=0, atol=0)


@pytest.mark.parametrize("cluster", ["4xP100+cpu", "8xA100-nvlink"])
def test_bytes_are_exact_where_32_bits_do_not_count_them(cluster):
    problem = Problem(zoo.load("layered:ops=100,weights=true"), Cluster.parse(cluster))
    a = problem.arrays
    large = problem.with_arrays(sizes=a.sizes * 2**20 + 1, workspace=a.workspace * 2**20)
    placements = random_placements(large, 40)
    found = GpuLanes(large, device="cpu").evaluate(columns(placements))
    exact = kernel(large.arrays).judge_lanes(placements, None, None, True, 1)
    assert int(found.high.max()) > 2**32
    np.testing.assert_array_equal(found.low.T.numpy(), exact[2])
    np.testing.assert_array_equal(found.high.T.numpy(), exact[3])


@pytest.mark.parametrize("pinned", [False, True])
def test_groups_are_placed_as_legalize_does(pinned):
    graph, cluster = zoo.load("layered:ops=200,weights=true"), Cluster.parse("4xP100+cpu")
    scheduled = [op.name for op in graph.ops if op.inputs]
    pins = dict.fromkeys(scheduled[20:24], cluster.devices[1].name) if pinned else {}
    problem = Problem(graph, cluster, constraints=Constraints(pins=pins))
    grouping = bounded_grouping(problem, 20)
    lanes = GpuLanes(problem, grouping.group, device="cpu")
    places = lanes.draw(40, torch.Generator().manual_seed(3))
    assert places.shape == (len(grouping), 40)
    placements = problem.legalize(grouping.expand(places.T.numpy().astype(np.int32)))
    by_op = GpuLanes(problem, device="cpu").evaluate(columns(placements))
    by_group = lanes.evaluate(places)
    torch.testing.assert_close(by_group.step_time, by_op.step_time, rtol=0, atol=0)
    torch.testing.assert_close(by_group.high, by_op.high, rtol=0, atol=0)
    assert len(by_group.step_time.unique()) > 1
    batch = lanes.make_batch(40)
    for other in (lanes.draw(40, torch.Generator().manual_seed(4)), places):
        batch.places.copy_(other)
        again, fresh = batch.evaluate(), lanes.evaluate(other)
        for name in ("step_time", "is_tied", "low", "high"):
            torch.testing.assert_close(getattr(again, name), getattr(fresh, name), rtol=0, atol=0)


def test_excess_is_bounded_by_that_of_the_exact_peaks():
    problem = Problem(zoo.load("layered:ops=200,weights=true"), Cluster.parse("4xP100"))
    placements = random_placements(problem, 64)
    peak = judge(problem, placements).peak
    high = GpuLanes(problem, device="cpu").evaluate(columns(placements)).high
    tight = problem.with_arrays(capacity=np.full(4, int(np.quantile(high.max(dim=0)[0], 0.1))))
    found = GpuLanes(tight, device="cpu").evaluate(columns(placements))
    excess = np.maximum(peak - tight.arrays.capacity, 0)
    assert (found.least_excess.T.numpy() <= excess).all()
    assert (excess <= found.most_excess.T.numpy()).all()
    assert not (found.fits.numpy() & (excess.sum(axis=1) > 0)).any()
    assert 0 < int(found.fits.sum()) < 64


def test_problems_out_of_scope_are_refused():
    graph, cluster = zoo.load("chain:ops=4"), Cluster.parse("2xP100")
    with pytest.raises(ProblemError, match="its discipline is 'ready'"):
        GpuLanes(Problem(graph, cluster, discipline="ready"), device="cpu")
    with pytest.raises(ProblemError, match="its objective is 'period'"):
        GpuLanes(Problem(graph, cluster, objective="period"), device="cpu")
    devices = tuple(
        Device(name, memory=99, rates={"float32": 1.0}, memory_bandwidth=1.0) for name in "ab"
    )
    shared = {("a", "b"): Link(1.0, 0.0, "bus"), ("b", "a"): Link(1.0, 0.0, "bus")}
    with pytest.raises(ProblemError, match="a channel has several senders; evaluate its plans"):
        GpuLanes(Problem(graph, Cluster("bus", devices, shared)), device="cpu")


def test_malformed_plans_are_refused():
    problem = Problem(zoo.load("layered:ops=20,weights=true"), Cluster.parse("2xP100"))
    lanes = GpuLanes(problem, device="cpu")
    legal = columns(random_placements(problem, 3))
    with pytest.raises(PlanError, match="names device number 2: expected 0 to 1"):
        lanes.evaluate(torch.full_like(legal, 2))
    with pytest.raises(PlanError, match=r"plans of shape .* expected .* × plans, torch.uint8"):
        lanes.evaluate(legal.int())
    with pytest.raises(PlanError, match="expected"):
        lanes.evaluate(legal[1:].contiguous())
    pinned = Problem(problem.graph, problem.cluster).with_arrays(
        allowed=np.tile([True, False], (problem.arrays.ops, 1))
    )
    with pytest.raises(PlanError, match="breaks a constraint of op"):
        GpuLanes(pinned, device="cpu").evaluate(torch.ones_like(legal))
    with pytest.raises(ConfigError, match="expected one number for each of"):
        GpuLanes(problem, priority=np.zeros((2, problem.arrays.ops)), device="cpu")
    assert lanes.evaluate(legal[:, :0]).step_time.shape == (0,)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_lanes_say_so():
    problem = Problem(zoo.load("chain:ops=4"), Cluster.parse("2xP100"))
    with pytest.raises(ConfigError, match="no CUDA device was found"):
        GpuLanes(problem)


def test_blocks_fit_the_shared_memory():
    # 224 bytes × 256 threads + 1,024 = 58,368 bytes: 4 blocks in 233,472
    assert block_size(224, 232_448, 233_472) == (256, 4)
    # 352 bytes × 128 threads + 1,024 = 46,080 bytes: 5 blocks; of 256 threads there would be 2
    assert block_size(352, 232_448, 233_472) == (128, 5)
    # 3,172 bytes of 64 threads: 203,008; twice 32 threads: 205,056
    assert block_size(3_172, 232_448, 233_472) == (64, 1)
    with pytest.raises(ProblemError, match="do not fit"):
        block_size(10_000, 232_448, 233_472)


def test_threads_share_the_plans_evenly():
    # 132 × 4 × 256 = 135,168 threads are resident
    assert launch_size(131_072, 256, 4, 300, 132, 10**11) == (256, 131_072)
    # 140,000 plans take two rounds: 70,000 threads, in 274 blocks
    assert launch_size(140_000, 256, 4, 300, 132, 10**11) == (256, 70_144)
    # 10,000 plans: 76 on each of 132 multiprocessors, in blocks of 96
    assert launch_size(10_000, 256, 4, 300, 132, 10**11) == (96, 10_080)
    assert launch_size(5, 256, 4, 300, 132, 10**11) == (32, 32)
    # a quarter of 12,000,000 bytes has room for 1,200 bytes of 2,500 threads
    block, threads = launch_size(10**6, 256, 4, 300, 132, 12_000_000)
    assert 2_000 < threads <= 2_500 + block


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no CUDA compiler")
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(("peaks", "one_channel"), [(True, True), (False, False)])
def test_nvcc_compiles_the_source_that_ships(tmp_path, peaks, one_channel, wide):
    source = tmp_path / "lanes.cu"
    block, blocks = (128, 5) if wide else (256, 4)
    source.write_text(kernel_source(peaks, one_channel, wide, block, blocks))
    options = ("-std=c++17", "-arch=sm_90", "-cubin", "-Xptxas", "-v", "-o", "lanes.cubin")
    done = subprocess.run(
        ["nvcc", *options, source.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "'lanes'" in done.stderr
    registers = [int(count) for count in re.findall(r"Used (\d+) registers", done.stderr)]
    # all resident threads share the 65,536 registers of a multiprocessor
    assert 0 < max(registers) * blocks * block <= 65_536
    assert re.findall(r"(\d+) bytes spill stores", done.stderr) == ["0"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("network", ["layered:ops=500,seed=1,weights=yes", "nmt-2"])
def test_a_gpu_equals_the_host(network):
    problem = Problem(zoo.load(network), Cluster.parse("4xP100+cpu"))
    places = columns(random_placements(problem, 3_000))
    host = GpuLanes(problem, device="cpu").evaluate(places)
    found = GpuLanes(problem).evaluate(places.cuda())
    for name in ("step_time", "is_tied", "low", "high"):
        torch.testing.assert_close(getattr(found, name).cpu(), getattr(host, name), rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_evaluates_faster_than_the_host():
    problem = Problem(
        zoo.load("layered:ops=5000,seed=1,weights=no"), Cluster.parse("8xA100-nvlink")
    )
    lanes = GpuLanes(problem, np.arange(problem.arrays.ops))
    places = lanes.draw(131_072, torch.Generator("cuda").manual_seed(0))
    rates = []
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        lanes.evaluate(places)
        torch.cuda.synchronize()
        rates.append(places.shape[1] / (time.perf_counter() - start))
    print(f"{max(rates):,.0f} plans per second at 5,000 ops × 8 devices, with bounds of the peaks")
    start = time.perf_counter()
    judge(problem, places[:, :64].T.cpu().numpy())
    assert max(rates) > 64 / (time.perf_counter() - start)
