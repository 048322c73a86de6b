"""Ops measured on devices: each different one once, valid inputs, the budget, what is kept."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from models import Everything, nn, torch

from placewright import Cluster, Device, Link, Plan, Problem, files, simulate
from placewright.costs import NOT_MEASURED, Roofline, Table
from placewright.errors import ConfigError, ProblemError
from placewright.profiling import isolated
from placewright.profiling import op_costs as measuring
from placewright.profiling.op_costs import profile_ops
from placewright.profiling.op_signatures import (
    STORED_KINDS,
    equal_ops,
    writes_in_place,
)
from placewright.profiling.sample_inputs import (
    group_rows,
    index_limits,
    sample_ends,
    sample_like,
)
from placewright.profiling.timing import (
    Timing,
    summarise,
    time_on_host,
)
from placewright.profiling.timing_cache import TimingCache
from placewright.runtime.machine import this_machine
from placewright.runtime.program.program import build_program
from placewright.runtime.program_loading import find_program
from placewright.runtime.real_devices import RealDevice, machine_devices


class Tower(nn.Module):
    """Three equal layers, a fourth that differs, and an activation behind each."""

    def __init__(self, width=96):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.last = nn.Linear(width, 7)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.last(x)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """This one without GPUs, where ops are timed one by one (whole steps: `test_whole_step.py`)."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(measuring, "fits_host", lambda *_: False)
    return replace(this_machine(), gpus=())


@pytest.fixture
def one(machine):
    """One worker of all cores, and a cluster of it with round figures."""
    site = machine_devices(machine, 1)[0]
    device = Device(site.name, "cpu", site.model, 1 << 34, 0, {"float32": 5e10}, 1e10, 3e-6)
    return Cluster("here", (device,), {}), [site]


@pytest.fixture(scope="module")
def tower():
    return build_program(Tower().eval(), (torch.rand(64, 96),))


def counted(monkeypatch, seconds=1e-4, wait=0.0):
    """Let measuring take no time, and list what is measured."""
    seen: list[str] = []

    def measure(program, position, site, *_):
        seen.append(program.graph.ops[position].name)
        time.sleep(wait)
        return Timing(seconds, 0.1, 5)

    monkeypatch.setattr(measuring, "measure_op", measure)
    monkeypatch.setattr(measuring, "measure_overhead", lambda *_: 0.0)
    return seen


def test_ops_of_a_gpu_add_up_to_a_whole_step(tower, machine, one, monkeypatch):
    counted(monkeypatch)
    cluster, (host,) = one
    gpu = Device("gpu0", "gpu", "a GPU", 1 << 34, 0, {"float32": 1e13}, 1e12, 3e-6)
    links = {pair: Link(1e9) for pair in (("gpu0", host.name), (host.name, "gpu0"))}
    cluster = Cluster("here", (gpu, *cluster.devices), links)
    site = HostAsGpu("gpu0", "cuda", model="a GPU")
    asked, took = [], [Timing(2.1e-3, 0.0, 5)]
    monkeypatch.setattr(
        measuring, "time_gpu_step", lambda program, site: asked.append(site.name) or took[0]
    )
    table = profile_ops(tower, machine, cluster, [site, host]).table
    assert table.columns == (host.model, "a GPU")
    assert table.seconds[:, 0].sum() == pytest.approx(7e-4)  # seven ops
    assert table.seconds[:, 1].sum() == pytest.approx(2.1e-3)
    assert (profile_ops(tower, machine, cluster, [site, host]).table.seconds == table.seconds).all()
    assert asked == ["gpu0"]  # what is known is kept
    took[0] = None  # which cannot be run
    again = profile_ops(tower, machine, cluster, [site, host], refresh=True)
    assert again.table.seconds[:, 1].sum() == pytest.approx(7e-4)


def test_a_whole_step_that_did_not_fit_is_tried_again(tower, machine, monkeypatch):
    took = [None]
    monkeypatch.setattr(measuring, "time_gpu_step", lambda *_: took[0])
    kept, site = TimingCache(machine), HostAsGpu("gpu0", "cuda", model="a GPU")
    assert measuring._gpu_step_seconds(kept, tower, site, False) == 0
    assert not kept.rows
    took[0] = Timing(2e-3, 0.0, 5)
    assert measuring._gpu_step_seconds(kept, tower, site, False) == 2e-3
    took[0] = None
    assert measuring._gpu_step_seconds(kept, tower, site, False) == 2e-3
    assert measuring._gpu_step_seconds(kept, tower, site, True) == 0


def test_timings_of_two_processes_are_both_stored(machine, monkeypatch, tmp_path):
    monkeypatch.setenv("PLACEWRIGHT_STORE", str(tmp_path / "store.sqlite"))
    caches = [TimingCache(machine), TimingCache(machine)]
    for at, cache in enumerate(caches):
        cache.put("model", f"op{at}", Timing(1e-3 * (at + 1), 0.0, 5))
        cache.save()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of another user"))
    both = TimingCache(machine)
    assert [both.get("model", f"op{at}").seconds for at in (0, 1)] == [1e-3, 2e-3]
    assert both.get("model", "op2") is None


class HostAsGpu(RealDevice):
    """The host, as if it were a GPU."""

    torch_device = torch.device("cpu")

    def run(self, work):
        return work()


def test_equal_ops_are_measured_once(tower, machine, one, monkeypatch):
    seen = counted(monkeypatch)
    found = profile_ops(tower, machine, *one)
    layers = [op.name for op in tower.graph.ops if op.kind == "matmul"]
    relus = [op.name for op in tower.graph.ops if op.kind == "elementwise"]
    assert (len(layers), len(relus)) == (4, 3)
    assert len(seen) == found.measured == found.distinct == 3
    assert len(set(seen) & set(layers)) == 2
    row = dict(zip(found.table.ops, found.table.seconds[:, 0], strict=True))
    assert all(row[name] == 1e-4 for name in (*layers, *relus))
    assert all(row[op.name] == 0 for op in tower.graph.ops if op.kind in STORED_KINDS)


def test_equal_devices_are_measured_once(tower, machine, one, monkeypatch):
    seen = counted(monkeypatch)
    (device,), (site,) = one[0].devices, one[1]
    twins = [replace(site, name="cpu0"), replace(site, name="cpu1")]
    devices = tuple(replace(device, name=each.name) for each in twins)
    link = Link(1e9)
    cluster = Cluster("here", devices, {("cpu0", "cpu1"): link, ("cpu1", "cpu0"): link})
    table = profile_ops(tower, machine, cluster, twins).table
    assert len(seen) == 3
    assert table.columns == (site.model,)
    assert Problem(tower.graph, cluster, table).arrays.compute.shape == (len(tower.graph), 2)


def test_what_was_measured_before_is_known_until_the_machine_changes(
    tower, machine, one, monkeypatch
):
    seen = counted(monkeypatch)
    first = profile_ops(tower, machine, *one)
    second = profile_ops(tower, machine, *one)
    assert (second.measured, second.cached, len(seen)) == (0, 3, 3)
    assert np.array_equal(second.table.seconds, first.table.seconds)
    assert profile_ops(tower, machine, *one, refresh=True).measured == 3
    newer = replace(machine, versions={**machine.versions, "torch": "9.9"})
    assert profile_ops(tower, newer, *one).measured == 3


def test_a_damaged_cache_is_no_error(tower, machine, one, monkeypatch, tmp_path):
    counted(monkeypatch)
    profile_ops(tower, machine, *one)
    (kept,) = tmp_path.rglob("*.ops.json.gz")
    kept.write_bytes(kept.read_bytes()[:20])
    assert profile_ops(tower, machine, *one).measured == 3


def test_the_budget_is_obeyed_and_the_heaviest_come_first(tower, machine, one, monkeypatch):
    seen = counted(monkeypatch, seconds=2e-3, wait=0.3)
    began = time.monotonic()
    found = profile_ops(tower, machine, *one, budget=0.2)
    assert time.monotonic() - began < 5.0
    assert len(seen) == 1
    assert seen[0] == next(op.name for op in tower.graph.ops if op.kind == "matmul")
    assert (found.measured, found.estimated) == (1, 2)
    rows = found.table
    guessed = rows.spread[:, 0] == NOT_MEASURED
    names = {name for name, guess in zip(rows.ops, guessed, strict=True) if guess}
    assert names == {"last.linear", "relu", "relu_1", "relu_2"}
    # The others are the roofline's, times what the measured one was off by.
    line = Roofline(1.0, 1.0).op_seconds(tower.graph, one[0])[:, 0]
    at, last = (tower.graph.position[name] for name in (seen[0], "last.linear"))
    assert rows.seconds[last, 0] == pytest.approx(line[last] * 2e-3 / line[at])


def test_ops_that_hardly_matter_are_timed_shortly(tower, machine, one, monkeypatch):
    seconds = {}

    def measure(program, position, site, op_seconds, *_):
        seconds.setdefault(program.graph.ops[position].kind, op_seconds)  # of the heaviest
        return Timing(1e-4, 0.1, 5)

    monkeypatch.setattr(measuring, "measure_op", measure)
    monkeypatch.setattr(measuring, "measure_overhead", lambda *_: 0.0)
    monkeypatch.setattr(measuring, "SMALL_SHARE", 0.3)
    profile_ops(tower, machine, *one)
    assert seconds == {"matmul": 0.15, "elementwise": 0.02}


def test_one_of_each_kind_comes_before_a_second_of_any(tower, machine, one, monkeypatch):
    seen = counted(monkeypatch)
    profile_ops(tower, machine, *one)
    kinds = [tower.graph.ops[tower.graph.position[name]].kind for name in seen]
    assert sorted(kinds) == ["elementwise", "matmul", "matmul"]
    assert set(kinds[:2]) == {"elementwise", "matmul"}
    assert "last.linear" in seen[2:]  # the lighter of the two


def test_a_heavy_op_comes_before_the_first_of_a_light_kind(machine, one, monkeypatch):
    """Two products of other shapes take most of the step; the activation's kind takes little."""
    seen = counted(monkeypatch)
    model = nn.Sequential(nn.Linear(256, 255), nn.ReLU(), nn.Linear(255, 254)).eval()
    program = build_program(model, (torch.rand(64, 256),))
    profile_ops(program, machine, *one)
    kinds = [program.graph.ops[program.graph.position[name]].kind for name in seen]
    assert kinds == ["matmul", "matmul", "elementwise"]


@pytest.mark.parametrize("steps", [(1, 3), (8, 2), (0, 1)])
def test_inputs_come_again_elsewhere_with_their_strides(steps):
    size = (3, 4)
    value = torch.arange(64.0).as_strided(size, steps)
    again = isolated._strided_clone(value)
    assert torch.equal(again, value)
    assert again.stride() == steps
    assert again.untyped_storage().data_ptr() != value.untyped_storage().data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_large_samples_repeat_what_was_drawn(dtype):
    length = (1 << 20) + (1 << 19) + 3
    made = sample_like(torch.empty(length, dtype=dtype), torch.device("cpu"))
    assert made.shape == (length,)
    assert torch.equal(made[1 << 20 :], made[: length - (1 << 20)])
    assert len({complex(one) for one in made[:1000].tolist()}) > 50


def test_the_runtimes_own_time_comes_to_every_op_that_is_run(tower, machine, one, monkeypatch):
    counted(monkeypatch)
    asked = []
    monkeypatch.setattr(measuring, "measure_overhead", lambda *_: asked.append(1) or 4e-6)
    for _ in range(2):
        table = profile_ops(tower, machine, *one).table
    run = np.array([op.kind not in STORED_KINDS for op in tower.graph.ops])
    assert table.seconds[run, 0] == pytest.approx(1.04e-4)
    assert (table.seconds[~run] == 0).all()
    assert len(asked) == 1  # it is kept


def test_an_op_that_a_device_cannot_run_is_estimated_and_reported(tower, machine, one, monkeypatch):
    def measure(program, position, site, *_):
        if program.graph.ops[position].kind == "matmul":
            raise RuntimeError("no kernel\nstack")
        return Timing(1e-5, 0.0, 5)

    monkeypatch.setattr(measuring, "measure_op", measure)
    monkeypatch.setattr(measuring, "measure_overhead", lambda *_: 0.0)
    found = profile_ops(tower, machine, *one)
    assert len(found.failed) == 2
    assert set(found.failed.values()) == {"no kernel"}
    assert (found.table.seconds[tower.graph.position["last.linear"]] > 0).all()


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_every_op_runs_on_its_samples(training, machine, one, monkeypatch):
    monkeypatch.setattr(measuring, "MAX_OP_SECONDS", 0.01)
    monkeypatch.setattr(isolated, "MAX_COPIES", 4)
    monkeypatch.setattr(measuring, "measure_overhead", lambda *_: 0.0)
    call = (
        torch.randint(11, (2, 6)),
        torch.rand(2, 3, 8, 8),
        torch.tensor([1, 4]),
        torch.randperm(44),
    )
    program = build_program(
        Everything(), call, training=training, optimizer="adam" if training else None
    )
    cluster, (site,) = one
    lonely = replace(site, threads=1)  # threads that wait for one another take long
    found = profile_ops(program, machine, cluster, [lonely], budget=20)
    assert found.failed == {}
    assert found.measured == found.distinct
    assert np.isfinite(found.table.seconds).all()


def test_a_cache_is_written_in_place_and_its_rows_differ():
    program = find_program("llama-8b:size=test,mode=decode,layers=1")
    written = [
        at
        for at, op in enumerate(program.graph.ops)
        if op.kind != "view" and writes_in_place(program, at)
    ]
    assert len(written) == 2  # keys and values
    node = program.builder.op_nodes[written[0]]
    limits = index_limits(node)
    assert set(limits.values()) == {6}  # steps of the context
    drawn = sample_like(torch.empty(6, dtype=torch.int64), torch.device("cpu"), 6, is_unique=True)
    assert sorted(drawn.tolist()) == [0, 1, 2, 3, 4, 5]


def test_ends_of_groups_are_in_order():
    graph = torch.fx.symbolic_trace(torch.nn.Identity()).graph
    x, weights, ends = (graph.placeholder(name) for name in ("x", "weights", "ends"))
    x.meta["val"], weights.meta["val"] = torch.empty(8, 4), torch.empty(64, 4, 6)
    product = torch.ops.aten._grouped_mm.default
    assert group_rows(graph.call_function(product, (x, weights, ends))) == {ends: 8}
    x.meta["val"], weights.meta["val"] = torch.empty(4, 8), torch.empty(8, 6)
    assert group_rows(graph.call_function(product, (x, weights, ends))) == {ends: 8}
    drawn = sample_ends(torch.empty(64, dtype=torch.int32), torch.device("cpu"), 8)
    assert drawn.dtype == torch.int32
    assert drawn[-1] == 8
    assert (drawn.diff() >= 0).all()


def test_samples_have_the_layout_and_are_positive():
    like = torch.empty(4, 5, dtype=torch.bfloat16).t()
    made = sample_like(like, torch.device("cpu"))
    assert (made.shape, made.stride(), made.dtype) == (like.shape, like.stride(), like.dtype)
    assert 0.4 < float(made.min()) <= float(made.max()) <= 1.6
    wide = torch.empty(3, 1).expand(3, 4)
    assert sample_like(wide, torch.device("cpu")).stride() == wide.stride()
    assert sample_like(torch.empty(0, 3), torch.device("cpu")).numel() == 0


def test_a_measured_table_predicts_a_serial_run(machine):
    """Within a factor of three on a machine that does other things too."""
    site = machine_devices(machine, len(machine.cores))[0]
    device = Device(site.name, "cpu", site.model, 1 << 34, 0, {"float32": 5e10}, 1e10, 3e-6)
    cluster = Cluster("here", (device,), {})
    program = build_program(Tower(512).eval(), (torch.rand(128, 512),))

    def predict():
        found = profile_ops(program, machine, cluster, [site], budget=5, refresh=True)
        problem = Problem(program.graph, cluster, found.table)
        return simulate(problem, Plan.of(problem, [0] * len(program.graph))).step_time

    def step():
        values = {
            at: [sample_like(program.meta_tensors[at, 0], torch.device("cpu"))]
            for at, op in enumerate(program.graph.ops)
            if op.kind in STORED_KINDS
        }
        runs = {
            at: program.runner(at, "cpu")
            for at, op in enumerate(program.graph.ops)
            if op.kind not in STORED_KINDS
        }

        def once(_):
            for at, run in runs.items():
                values[at] = run([values[op][out] for op, out in program.graph.ops[at].inputs])

        return time_on_host(once, 0.3)

    ratios = []
    for _ in range(4):  # once is enough: a busy machine slows one of the two, or the other
        ratios.append(predict() / site.run(step).seconds)
        if 1 / 3 < ratios[-1] < 3:
            break
    assert 1 / 3 < ratios[-1] < 3, ratios


def test_a_table_keeps_what_was_measured_with_it(tmp_path):
    table = Table(
        ("a", "b"),
        ("H200",),
        np.array([[1e-6], [3e-3]]),
        issue=np.array([[2e-5], [1e-5]]),
        spread=np.array([[0.1], [NOT_MEASURED]]),
        machine="abc",
    )
    files.save(table, tmp_path / "costs.json")
    again = files.load(tmp_path / "costs.json", "costs")
    assert (again.machine, again.columns) == ("abc", ("H200",))
    assert np.array_equal(again.issue, table.issue)
    assert np.array_equal(again.spread, table.spread)


def test_an_op_takes_no_less_than_its_start_unless_it_is_replayed(chain):
    table = Table(
        ("a", "b", "c"),
        ("gpu",),
        np.array([[1.0], [5.0], [0.0]]),
        issue=np.array([[2.0], [2.0], [3.0]]),
    )
    cluster = Cluster("one", (Device("gpu0"),), {})
    assert table.op_seconds(chain, cluster)[:, 0].tolist() == [2.0, 5.0, 3.0]
    assert table.for_cuda_graphs().op_seconds(chain, cluster)[:, 0].tolist() == [1.0, 5.0, 0.0]


@pytest.mark.parametrize("name", ["issue", "spread"])
def test_a_table_of_another_shape_beside_it_is_refused(name):
    with pytest.raises(ProblemError, match=rf"the cost table's {name} has shape \(2, 1\)"):
        Table(("a",), ("cpu",), np.ones((1, 1)), **{name: np.ones((2, 1))})


def test_a_network_that_is_only_drawn_cannot_be_measured():
    with pytest.raises(ConfigError, match="branches is synthetic and cannot be run"):
        find_program("branches")


def test_equal_ops_differ_by_shape_dtype_and_attributes():
    class Model(nn.Module):
        def forward(self, x, y):
            return x.sum(0), x.sum(1), y.sum(0), y.double().sum(0), (x + 1), (x + 1) + 2

    program = build_program(Model(), (torch.rand(4, 4), torch.rand(5, 4)))
    groups = [
        sorted(program.graph.ops[at].name for at in several)
        for several in equal_ops(program).values()
    ]
    assert ["add", "add_1"] in groups  # both add one
    assert sum(any("sum" in name for name in names) for names in groups) == 4


def test_a_timing_is_a_median_with_its_spread():
    took = summarise([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (took.seconds, took.samples) == (3.0, 5)
    assert took.spread == pytest.approx((4 - 2) / 3)
    slow = time_on_host(lambda _: time.sleep(0.02), 0.01)
    assert slow.samples == 2
    assert 0.02 <= slow.seconds < 1
