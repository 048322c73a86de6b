"""Public workloads: small files in the same formats, and bad ones."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from workload_files import PROFILE, SPLIT, TRAINING, edge, node

from placewright import Cluster, Device, Link
from placewright.errors import FileError, GraphError, PlacewrightError, PlanError
from placewright.frontends import from_workload, is_split, is_workload, read_split
from placewright.simulator import judge, simulate


@pytest.fixture
def write(tmp_path):
    """Writes text, or an object as JSON, to a file of that name."""

    def write(content, name="work.json"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def changed(keys, value, of=TRAINING):
    """A copy with the value at a path of keys replaced, or dropped where it is `...`."""
    data = copy.deepcopy(of)
    spot = data
    for key in keys[:-1]:
        spot = spot[key]
    if value is ...:
        del spot[keys[-1]]
    else:
        spot[keys[-1]] = value
    return data


def v100s(count=2):
    """V100s, and a CPU that is 10 times slower."""
    devices = [Device(f"gpu{at}", model="V100", memory=10**9) for at in range(count)]
    devices.append(
        Device("cpu", "cpu", memory=10**9, rates={"float32": 1.57e12}, memory_bandwidth=1e30)
    )
    names = [device.name for device in devices]
    links = {(one, other): Link(1e9) for one in names for other in names if one != other}
    return Cluster("v100s", tuple(devices), links)


# Dnn-partitioning workloads


def test_nodes_become_ops_in_topological_order_named_by_id(write):
    graph = from_workload(write(TRAINING)).graph
    assert [op.name for op in graph.ops] == ["1", "2", "3", "13", "12", "11"]
    assert [op.phase for op in graph.ops] == ["forward"] * 3 + ["backward"] * 3
    assert graph.ops[0].module == "layer1"
    assert graph.ops[0].colocate == graph.ops[5].colocate == "colour 1"
    assert graph.ops[4].inputs == ((3, 0),)
    assert {(op.outputs, op.resident) for op in graph.ops} == {((0,), 100)}


def test_milliseconds_become_seconds_and_a_tensor_takes_its_edge_cost(write):
    a = from_workload(write(TRAINING)).arrays
    np.testing.assert_allclose(a.compute[:, 0], [0.001, 0.002, 0.003, 0.006, 0.004, 0.0015])
    np.testing.assert_allclose(a.compute[:, 2], 10 * a.compute[:, 0])
    np.testing.assert_allclose(a.transfer, [[0.25e-3, 0.5e-3, 0.125e-3, 0.5e-3, 0.25e-3, 0]])


def test_a_workload_brings_its_own_cluster(write):
    cluster = from_workload(write(TRAINING)).cluster
    assert [device.name for device in cluster.devices] == ["gpu0", "gpu1", "cpu"]
    assert [device.capacity for device in cluster.devices] == [1000, 1000, 2**62]
    several = from_workload(write(changed(["maxCPUs"], 2))).cluster
    assert [device.name for device in several.devices] == ["gpu0", "gpu1", "cpu0", "cpu1"]


def test_the_period_without_overlap_is_the_max_load(write):
    problem = from_workload(write(TRAINING))
    plan = read_split(problem, write(SPLIT, "split.json"))
    # gpu0: 1 + 2 + 4 + 1.5, sends 2 (0.5), receives 13 (0.5); gpu1: 3 + 6, the same two transfers.
    assert simulate(problem, plan).period == pytest.approx(10.0e-3)
    assert judge(problem, [plan.placement]).period == pytest.approx(10.0e-3)
    # With the second pair on the CPU, which pays for nothing but its ops: 10 * (3 + 6).
    on_cpu = read_split(
        problem, write(changed(["fpgas", 1, "nodes"], [], SPLIT) | {"cpus": [{"nodes": [3]}]})
    )
    assert simulate(problem, on_cpu).period == pytest.approx(90.0e-3)


def test_sizes_are_all_that_takes_memory(write):
    problem = from_workload(write(TRAINING))
    plan = read_split(problem, write(SPLIT, "split.json"))
    assert simulate(problem, plan).peak.tolist() == [400, 200, 0]


def test_ops_that_the_split_leaves_out_follow_their_colour_class(write):
    problem = from_workload(write(TRAINING))
    plan = read_split(problem, write(SPLIT, "split.json"))
    assert dict(zip(plan.ops, plan.placement.tolist(), strict=True)) == {
        "1": 0, "2": 0, "3": 1, "13": 1, "12": 0, "11": 0,
    }  # fmt: skip


def test_without_training_backward_nodes_are_left_out(write):
    problem = from_workload(write(TRAINING), training=False)
    assert [op.name for op in problem.graph.ops] == ["1", "2", "3"]
    assert problem.arrays.transfer[0, 2] == 0  # only a backward node reads node 3


def test_another_cluster_takes_the_columns_by_kind(write):
    problem = from_workload(write(TRAINING), cluster=v100s(count=1))
    assert problem.arrays.compute[0].tolist() == [0.001, 0.01]


def test_a_node_that_accelerators_do_not_support_runs_on_the_cpu(write):
    data = changed(["nodes", 0], node(3, 3.0, supportedOnFpga=0, fpgaLatency=None))
    assert from_workload(write(data)).arrays.allowed[2].tolist() == [False, False, True]


def test_a_tensor_whose_edges_disagree_takes_the_largest_cost(write):
    data = changed(["edges", 4, "cost"], 0.75)
    data["edges"].append(edge(1, 3, 2.0))
    assert from_workload(write(data)).arrays.transfer[0, 0] == 0.002


def test_files_are_told_apart_by_content(write, tmp_path):
    workload, split, profile = write(TRAINING, "a.txt"), write(SPLIT, "b"), write(PROFILE, "c.json")
    assert [is_workload(path) for path in (workload, split, profile)] == [True, False, True]
    assert [is_split(path) for path in (workload, split, profile)] == [False, True, False]
    assert not is_workload(tmp_path)
    assert not is_workload(tmp_path / "absent")
    assert not is_workload(write('{"placewright": "graph"}'))
    assert is_workload(write(json.dumps(TRAINING)[:80]))


BAD = {
    "is not JSON at line 1, column 57: is it truncated": json.dumps(TRAINING)[:60],
    "is not a workload: expected dnn-partitioning JSON": '"x"',
    r"holds \[1\]: expected an object": [1],
    "nested too deeply or holds too long a number": '{"maxFPGAs": ' + "9" * 5000 + "}",
    "has no nodes: expected a list of objects": changed(["nodes"], ...),
    r"edges\[1\] is 7: expected an object": changed(["edges", 1], 7),
    r"nodes\[2\] has no cpuLatency: expected a number from 0": changed(
        ["nodes", 2, "cpuLatency"], ...
    ),
    r"nodes\[0\] has fpgaLatency -1: expected": changed(["nodes", 0, "fpgaLatency"], -1),
    r"nodes\[0\] has fpgaLatency nan: expected": changed(["nodes", 0, "fpgaLatency"], float("nan")),
    r"nodes\[0\] has cpuLatency inf: expected": changed(["nodes", 0, "cpuLatency"], float("inf")),
    r"nodes\[0\] has size 'big': expected": changed(["nodes", 0, "size"], "big"),
    r"nodes\[0\] has id '3': expected a whole number": changed(["nodes", 0, "id"], "3"),
    r"nodes\[1\] has id 3, as an earlier node: ids must be unique": changed(["nodes", 1, "id"], 3),
    r"nodes\[0\] has colorClass True: expected a whole": changed(["nodes", 0, "colorClass"], True),
    r"has isBackwardNode 2: expected true or false": changed(["nodes", 0, "isBackwardNode"], 2),
    r"edges\[0\] has destId 99: no node has that id": changed(["edges", 0, "destId"], 99),
    r"edges\[0\] has no sourceId: expected a whole": changed(["edges", 0, "sourceId"], ...),
    r"edges\[0\] has cost -0.5: expected a number": changed(["edges", 0, "cost"], -0.5),
    r"graph 'work' has a cycle: '1' -> '2' -> '1'": changed(["edges", 3], edge(2, 1, 1.0)),
    r"graph 'work' has no ops: expected": changed(["edges"], []) | {"nodes": []},
    "has maxFPGAs 2.5: expected a whole number from 0 to 256": changed(["maxFPGAs"], 2.5),
    "has no maxCPUs: expected a whole": changed(["maxCPUs"], ...),
    "has maxFPGAs 0 and maxCPUs 0: expected at least one": TRAINING | {"maxFPGAs": 0, "maxCPUs": 0},
    "has maxSizePerFPGA -1: expected a number": changed(["maxSizePerFPGA"], -1),
    "node 3 runs on CPUs only, but maxCPUs is 0: expected at least 1": changed(
        ["nodes", 0, "supportedOnFpga"], False
    )
    | {"maxCPUs": 0},
    "is not a workload: expected dnn-partitioning JSON or a PipeDream profile": "hello",
    "line 2 is 'nonsense': expected a layer or an edge": PROFILE.replace("\n", "\nnonsense\n", 1),
    "line 1 has forward_compute_time '3.0.0': expected": PROFILE.replace("3.000", "3.0.0", 1),
    "line 1 has backward_compute_time -5.0: expected": PROFILE.replace("5.000", "-5.000", 1),
    "line 1 has parameter_size nan: expected": PROFILE.replace("300.000", "nan"),
    "line 3 has activation_size ' x': expected": PROFILE.replace("8.0;", "x;"),
    "line 2 is node4 again: expected one line per layer": PROFILE.replace(
        "node1 --", "node4 --", 1
    ),
    "line 5 names node9: no layer has that name": PROFILE.replace("\tnode3 --", "\tnode9 --"),
    "graph 'work' has a cycle: 'node2' -> 'node3' -> 'node2'": PROFILE + "\tnode3 -- node2\n",
    "line 8 is .*: expected a layer or an edge": PROFILE[:-9],
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_workload_gets_one_line_that_names_file_and_spot(write, message):
    path = write(BAD[message])
    with pytest.raises((GraphError, FileError), match=message) as caught:
        from_workload(path, cluster=v100s() if path.read_text().startswith("node") else None)
    assert str(caught.value).startswith(f"file {str(path)!r}")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_missing_or_not_text_is_named(tmp_path):
    with pytest.raises(FileError, match=r"absent' cannot be read: no such file"):
        from_workload(tmp_path / "absent")
    with pytest.raises(FileError, match="cannot be read: embedded null"):
        from_workload("a\0b")
    (tmp_path / "binary").write_bytes(b"{\xff")
    with pytest.raises(FileError, match="is not text: byte 1 is not UTF-8"):
        from_workload(tmp_path / "binary")


BAD_SPLITS = {
    "has no fpgas: expected a list": {"cpus": []},
    r"fpgas\[0\] has no nodes: expected a list of ids": changed(["fpgas", 0], {}, SPLIT),
    r"fpgas\[0\] lists node 'x': expected a whole": changed(["fpgas", 0, "nodes", 0], "x", SPLIT),
    r"fpgas\[0\] lists node 7: graph 'work' has no such node": changed(
        ["fpgas", 0, "nodes", 0], 7, SPLIT
    ),
    r"fpgas\[1\] lists node 1, as an earlier entry": changed(["fpgas", 1, "nodes"], [3, 1], SPLIT),
    r"cpus\[1\] lists nodes: cluster 'work' has only 1": SPLIT
    | {"cpus": [{"nodes": []}, {"nodes": [1]}]},
    "lists neither node 3 nor another of its": changed(["fpgas", 1, "nodes"], [], SPLIT),
    "ops '2' and '12' must share a device": changed(["fpgas", 1, "nodes"], [3, 12], SPLIT),
}


@pytest.mark.parametrize("message", BAD_SPLITS)
def test_a_bad_split_gets_one_line_that_names_file_and_spot(write, message):
    problem = from_workload(write(TRAINING))
    path = write(BAD_SPLITS[message], "split.json")
    with pytest.raises((PlanError, FileError), match=message) as caught:
        read_split(problem, path)
    assert str(caught.value).startswith(f"file {str(path)!r}")


# PipeDream profiles


def test_a_profile_becomes_a_forward_and_a_backward_op_a_layer(write):
    problem = from_workload(write(PROFILE, "small.graph.txt"), cluster=v100s())
    graph = problem.graph
    assert graph.name == "small"
    reads = {op.name: [graph.ops[source].name for source, _ in op.inputs] for op in graph.ops}
    assert reads == {
        "node1": [],
        "node2.weight": [],
        "node2": ["node1", "node2.weight"],
        "node3": ["node2"],
        "node4.weight": [],
        "node4": ["node3", "node2", "node4.weight"],
        "node4.backward": ["node4", "node3", "node2", "node4.weight"],
        "node3.backward": ["node4.backward", "node2"],
        "node2.backward": ["node3.backward", "node4.backward", "node1", "node2.weight"],
    }
    kinds = {op.name: op.kind for op in graph.ops}
    assert kinds["node1"] == "input"
    assert kinds["node2.weight"] == "weight"
    assert kinds["node2"] == kinds["node2.backward"] == "lstm"
    assert kinds["node3"] == "layer"  # a measured View is not the view that costs nothing


def test_gradients_are_as_large_as_what_they_are_gradients_of(write):
    graph = from_workload(write(PROFILE), cluster=v100s()).graph
    sizes = {op.name: op.outputs for op in graph.ops}
    assert sizes["node2"] == (32,)  # 20 + 8 + 4: edges do not say which of the three they carry
    assert sizes["node4.backward"] == (24, 32, 300)  # node3, node2, the weight
    assert sizes["node3.backward"] == (32,)
    assert sizes["node2.backward"] == (100,)  # none for the data


def test_weights_are_colocated_with_their_layer_in_training_only(write):
    graph = from_workload(write(PROFILE), cluster=v100s()).graph
    labels = {op.name: op.colocate for op in graph.ops}
    assert labels["node2"] == labels["node2.weight"] == labels["node2.backward"] == "node2"
    assert labels["node3"] is labels["node3.backward"] is None
    forward = from_workload(write(PROFILE), training=False, cluster=v100s()).graph
    assert [op.name for op in forward.ops if op.phase == "backward"] == []
    assert {op.colocate for op in forward.ops} == {None}


def test_measured_times_scale_by_the_rates_of_other_devices(write):
    problem = from_workload(write(PROFILE), cluster=v100s(count=1))
    rows = dict(zip([op.name for op in problem.graph.ops], problem.arrays.compute, strict=True))
    np.testing.assert_allclose(rows["node4"], [0.003, 0.03])
    np.testing.assert_allclose(rows["node4.backward"], [0.005, 0.05])
    np.testing.assert_allclose(rows["node1"], 0)  # data loading is no part of the step


def test_one_device_takes_the_sum_of_a_profile(write):
    problem = from_workload(write(PROFILE), cluster=v100s())
    # 1 + 0.5 + 3 forward, 5 + 0.25 + 2 backward, and 16 bytes of data at 1e9 bytes a second.
    time = judge(problem, problem.legalize(np.zeros((1, len(problem.graph))))).step_time
    assert time == pytest.approx(11.75e-3 + 16e-9)


def test_a_profile_runs_on_four_v100s_unless_told_otherwise(write):
    problem = from_workload(write(PROFILE))
    assert [device.model for device in problem.cluster.devices[:4]] == ["V100"] * 4
    assert problem.arrays.compute[2, 0] == 0.001


# Anything else is refused, never by accident

SEEDS = [json.dumps(TRAINING), json.dumps(SPLIT), PROFILE]
JUNK = st.sampled_from(
    [None, True, -1, 0.5, 10**400, float("nan"), float("inf"), "", "3", "\ud800", [], {}, [[1]]]
)


@st.composite
def damaged(draw):
    """A file's text with some of it cut, doubled or replaced; or JSON with a value replaced."""
    text = draw(st.sampled_from(SEEDS))
    if draw(st.booleans()) and text is not PROFILE:
        data = json.loads(text)
        spot, keys = data, draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
        for depth, number in enumerate(keys):
            names = list(spot) if isinstance(spot, dict) else list(range(len(spot)))
            if not names:
                break
            key = names[number % len(names)]
            if depth == len(keys) - 1 or not isinstance(spot[key], dict | list):
                spot[key] = draw(JUNK)
                break
            spot = spot[key]
        return json.dumps(data)
    start, end = sorted(draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    return (
        text[:start]
        + draw(st.one_of(st.text(max_size=20), st.just(text[start:end] * 2)))
        + text[end:]
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.one_of(damaged(), st.text()), training=st.booleans())
def test_a_damaged_file_is_read_or_refused_in_one_line(tmp_path, text, training):
    path = tmp_path / "damaged"
    path.write_text(text, encoding="utf-8", errors="replace")
    whole = tmp_path / "whole"
    whole.write_text(json.dumps(TRAINING))
    is_workload(path)
    is_split(path)
    for read, refusals in (
        (lambda: from_workload(path, training).arrays, (GraphError, FileError)),
        (lambda: read_split(from_workload(whole), path), (PlanError, FileError)),
    ):
        try:
            read()
        except PlacewrightError as error:
            assert isinstance(error, refusals)  # noqa: PT017
            assert str(error).startswith(f"file {str(path)!r}")  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
