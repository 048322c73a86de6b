"""Problems: how constraints are read, and how everything is packed into arrays."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from placewright import Cluster, Constraints, Graph, Op, Problem, Roofline
from placewright.errors import ProblemError
from placewright.problem_arrays import Arrays


@pytest.fixture
def everything() -> Graph:
    """Every kind of op: an input, a weight and its view, a state, an op in place, a loss."""
    return Graph(
        "everything",
        (
            Op("x", kind="input", outputs=(8,)),
            Op("w", kind="weight", outputs=(50,)),
            Op("w.t", kind="view", inputs=((1, 0),), outputs=(50,), aliases=((0, 0),)),
            Op("cache", kind="state", outputs=(30,), resident=5),
            Op("split", inputs=((0, 0),), outputs=(4, 4), flops=10, workspace=7),
            Op("mm", inputs=((4, 0), (2, 0)), outputs=(6,), flops=20),
            Op(
                "attend",
                inputs=((5, 0), (3, 0), (5, 0)),
                outputs=(6, 3),
                flops=30,
                resident=2,
                runs_on=("gpu",),
            ),
            Op("join", inputs=((6, 0), (4, 1)), outputs=(9,), flops=40, aliases=((0, 0),)),
            Op("loss", inputs=((7, 0),), outputs=()),
        ),
    )


@pytest.fixture
def packed(everything: Graph, shared_wire: Cluster, exact: Roofline) -> Problem:
    """Everything on two GPUs, which one thread issues to, and a host; pinned and colocated."""
    gpu0, gpu1, cpu = shared_wire.devices
    devices = (
        replace(gpu0, reserve=100, launch_overhead=0.5, issuer="main"),
        replace(gpu1, reserve=50, launch_overhead=0.5, issuer="main"),
        cpu,
    )
    constraints = Constraints(
        pins={"mm": "gpu1"},
        forbid={"jo*": ("gpu0",)},
        colocate=(("split", "join"),),
        limits={"gpu1": 600},
    )
    cluster = Cluster(shared_wire.name, devices, shared_wire.links)
    return Problem(everything, cluster, exact, constraints)


T, F = True, False
SIZES = [8, 50, 50, 30, 4, 4, 6, 6, 3, 9]
PACKED = {
    # Ops: x, w, w.t, cache, split, mm, attend, join, loss, each on gpu0, gpu1, cpu. What exists
    # before the step takes no time; the rest takes its FLOPs, and on a GPU the launch of 0.5 s.
    "compute": [
        [0, 0, 0],
        [0, 0, 0],
        [0, 0, 0],
        [0, 0, 0],
        [10.5, 10.5, 10],
        [20.5, 20.5, 20],
        [30.5, 30.5, 30],
        [40.5, 40.5, 40],
        [0.5, 0.5, 0],
    ],
    "allowed": [
        [F, F, T],  # an input is on the host
        [T, T, T],
        [T, T, T],
        [T, T, F],  # the cache goes where attend may be
        [F, T, T],  # split goes where join may be
        [F, T, F],  # pinned
        [T, T, F],  # runs on GPUs
        [F, T, T],  # not on gpu0
        [T, T, T],
    ],
    "unit": [0, 1, 1, 2, 3, 4, 2, 3, 5],
    "unit_head": [0, 1, 1, 3, 4, 5, 3, 4, 8],
    "leader": [4, 5, 5, 6, 4, 5, 6, 4, 8],  # x follows split, w follows mm through its view
    "scheduled": [F, F, F, F, T, T, T, T, T],
    "is_weight": [F, T, T, F, F, F, F, F, F],
    "is_resident": [F, T, T, T, F, F, F, F, F],
    "resident": [0, 50, 0, 30 + 5, 0, 0, 2, 0, 0],  # a view of a weight is counted once
    "workspace": [0, 0, 0, 0, 7, 0, 0, 0, 0],
    "first_tensor": [0, 1, 2, 3, 4, 6, 7, 9, 10, 10],
    "first_input": [0, 0, 0, 1, 1, 2, 4, 6, 8, 9],
    "inputs": [1, 0, 4, 2, 6, 3, 7, 5, 9],  # attend reads mm's tensor once
    # Tensors
    "sizes": SIZES,
    "producer": [0, 1, 2, 3, 4, 4, 5, 6, 6, 7],
    "alias": [-1, -1, 1, -1, -1, -1, -1, -1, -1, 7],
    "is_output": [F, F, F, F, F, F, F, F, T, F],  # attend's second output, which nothing reads
    "first_reader": [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 9],
    "readers": [4, 2, 5, 6, 5, 7, 6, 7, 8],
    # Between the GPUs 8 bytes a second; to and from the host 1 s and 2 bytes a second
    "transfer": [[size / 8 for size in SIZES], [1 + size / 2 for size in SIZES]],
    # Devices
    "link_class": [[-1, 0, 1], [0, -1, 1], [1, 1, -1]],
    "channel": [[-1, 0, 1], [2, -1, 1], [3, 3, -1]],  # "up" is 1 and "down" is 3
    "capacity": [1000 - 100, 600, 10_000],  # the reserve does not come off a limit
    "is_host": [F, F, T],
    "issuer": [0, 0, -1],
    "launch_overhead": [0.5, 0.5, 0],
}
DTYPES = {
    np.float64: ("compute", "transfer", "launch_overhead"),
    np.int64: ("resident", "workspace", "sizes", "capacity"),
    np.bool_: ("allowed", "scheduled", "is_weight", "is_resident", "is_output", "is_host"),
}


@pytest.mark.parametrize("field", [field.name for field in fields(Arrays)])
def test_every_field_is_packed_as_done_by_hand(packed: Problem, field: str) -> None:
    array = getattr(packed.arrays, field)
    assert array.tolist() == PACKED[field]
    assert array.dtype == next(
        (dtype for dtype, names in DTYPES.items() if field in names), np.int32
    )
    assert array.flags.c_contiguous


def test_arrays_know_their_counts(packed: Problem) -> None:
    a = packed.arrays
    assert (a.ops, a.devices, a.channels) == (9, 3, 4)


def test_arrays_are_packed_once(packed: Problem) -> None:
    assert packed.arrays is packed.arrays


def test_a_single_op_on_a_single_device_is_packed(one_device: Cluster, exact: Roofline) -> None:
    a = Problem(Graph("g", (Op("a", flops=2, outputs=()),)), one_device, exact).arrays
    assert (a.ops, a.devices, a.channels) == (1, 1, 0)
    assert a.compute.tolist() == [[2]]
    assert (a.first_tensor.tolist(), a.first_input.tolist(), a.first_reader.tolist()) == (
        [0, 0],
        [0, 0],
        [0],
    )
    assert a.transfer.shape == (0, 0)
    assert a.channel.tolist() == a.link_class.tolist() == [[-1]]


def test_a_routed_pair_has_a_class_and_its_narrow_links_channel(
    chain: Graph, in_a_row: Cluster
) -> None:
    a = Problem(chain, in_a_row).arrays
    # left -> right goes over the middle: latency 1 + 3, 2 bytes a second, on middle->right's wire
    assert a.transfer[a.link_class[0, 2]].tolist() == [4 + 4 / 2] * 3
    assert a.channel[0, 2] == a.channel[1, 2]
    assert a.channel[2, 0] == a.channel[2, 1]
    assert a.channels == 4


def test_labels_join_ops_across_constraints(two_devices: Cluster) -> None:
    ops = (Op("a", colocate="p"), Op("b"), Op("c", colocate="p"), Op("d"))
    constraints = Constraints(colocate=(("b", "c"),))
    a = Problem(Graph("g", ops), two_devices, constraints=constraints).arrays
    assert a.unit.tolist() == [0, 0, 0, 1]
    assert a.unit_head.tolist() == [0, 0, 0, 3]


def test_a_weight_that_nothing_reads_leads_itself(two_devices: Cluster) -> None:
    a = Problem(Graph("g", (Op("a"), Op("w", kind="weight"))), two_devices).arrays
    assert a.leader.tolist() == [0, 1]


def test_a_unit_that_nothing_reads_is_led_by_its_first(two_devices: Cluster) -> None:
    ops = (Op("a"), *(Op(name, kind="weight", colocate="ws") for name in ("v", "w")))
    problem = Problem(Graph("g", ops), two_devices)
    assert problem.arrays.leader.tolist() == [0, 1, 1]
    assert problem.legalize(np.array([0, 1, 0])).tolist() == [0, 1, 1]


def test_a_weight_of_two_readers_follows_the_first(two_devices: Cluster) -> None:
    ops = (Op("w", kind="weight"), Op("a"), Op("b", inputs=((0, 0),)), Op("c", inputs=((0, 0),)))
    assert Problem(Graph("g", ops), two_devices).arrays.leader.tolist() == [2, 1, 2, 3]


def test_a_view_of_a_tensor_takes_its_turn_and_goes_where_it_likes(two_devices: Cluster) -> None:
    ops = (Op("a"), Op("v", kind="view", inputs=((0, 0),)))
    a = Problem(Graph("g", ops), two_devices).arrays
    assert (a.scheduled.tolist(), a.is_weight.tolist(), a.unit.tolist()) == ([T, T], [F, F], [0, 1])


def test_without_a_host_an_input_may_be_anywhere(layers: Graph, two_devices: Cluster) -> None:
    assert Problem(layers, two_devices).arrays.allowed.all()


def test_a_pinned_input_leaves_the_host(layers: Graph, gpu_and_host: Cluster) -> None:
    constraints = Constraints(pins={"x": "gpu0"})
    a = Problem(layers, gpu_and_host, constraints=constraints).arrays
    assert a.allowed[0].tolist() == [T, F]


def test_settling_puts_what_was_left_open_where_it_belongs(packed: Problem) -> None:
    settled = packed.legalize(np.zeros(9, dtype=np.int64))
    # all on gpu0, but: x is on the host, split and join are forbidden there and take the next
    # device, mm is pinned to gpu1 and takes w and its view along
    assert settled.tolist() == [2, 1, 1, 0, 1, 1, 0, 1, 0]
    assert settled.dtype == np.int32


def test_settling_many_plans_settles_each(packed: Problem) -> None:
    rng = np.random.default_rng(0)
    device = rng.integers(3, size=(4, 9))
    settled = packed.legalize(device)
    assert settled.shape == (4, 9)
    for row, plan in zip(settled, device, strict=True):
        assert row.tolist() == packed.legalize(plan).tolist()
        assert packed.arrays.allowed[np.arange(9), row].all()
        assert (row == row[packed.arrays.unit_head]).all()


def test_a_limit_only_ever_lowers_the_memory(chain: Graph, two_devices: Cluster) -> None:
    constraints = Constraints(limits={"gpu0": 400, "gpu1": 5000})
    a = Problem(chain, two_devices, constraints=constraints).arrays
    assert a.capacity.tolist() == [400, 1000]


@pytest.mark.parametrize(("limit", "usable"), [(0, 0), (200, 200), (300, 300), (500, 300)])
def test_a_limit_is_usable_and_the_reserve_stays_free(
    chain: Graph, one_device: Cluster, limit: int, usable: int
) -> None:
    device = replace(one_device.devices[0], reserve=700)  # of 1,000 bytes
    cluster = Cluster("c", (device,), {})
    a = Problem(chain, cluster, constraints=Constraints(limits={"gpu0": limit})).arrays
    assert a.capacity.tolist() == [usable]


def test_a_reserve_larger_than_the_memory_leaves_nothing(chain: Graph, one_device: Cluster) -> None:
    cluster = Cluster("c", (replace(one_device.devices[0], reserve=1001),), {})
    assert Problem(chain, cluster).arrays.capacity.tolist() == [0]


def test_an_op_runs_on_a_device_by_name_model_or_kind(in_a_row: Cluster) -> None:
    left, middle, right = in_a_row.devices
    devices = (left, replace(middle, model="P100"), replace(right, kind="tpu"))
    cluster = Cluster("c", devices, in_a_row.links)
    words = ("left", "P100", "tpu", "gpu")
    ops = tuple(Op(word, runs_on=(word,)) for word in words)
    a = Problem(Graph("g", ops), cluster).arrays
    assert a.allowed.tolist() == [[T, F, F], [F, T, F], [F, F, T], [T, T, F]]


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        (
            Constraints(pins={"lft": "gpu0"}),
            "a constraint names op 'lft', which the graph does not have: did you mean 'left'?",
        ),
        (
            Constraints(pins={"left": "gpu9"}),
            "a constraint names device 'gpu9', which cluster 'two_devices' does not have: "
            "did you mean 'gpu1'?",
        ),
        (
            Constraints(forbid={"left": ("tpu",)}),
            "a constraint names device 'tpu', which cluster 'two_devices' does not have: "
            "did you mean 'gpu1'?",
        ),
        (
            Constraints(pins={"conv*": "gpu0"}),
            "a constraint names ops 'conv*': none of the graph's ops match",
        ),
        (
            Constraints(colocate=(("left", "?"),)),
            "a constraint names ops '?': none of the graph's ops match",
        ),
        (
            Constraints(limits={"cpu": 5}),
            "a constraint names device 'cpu', which cluster 'two_devices' does not have",
        ),
        (
            Constraints(limits={"gpu0": -5}),
            "the limit of device 'gpu0' is -5 bytes: expected a whole number >= 0",
        ),
        (
            Constraints(pins={"left": "gpu0"}, forbid={"left": ("gpu0",)}),
            "no device is left for 'left': loosen a pin, a forbidden device or a colocation",
        ),
        (
            Constraints(pins={"left": "gpu0", "right": "gpu1"}, colocate=(("*t",),)),
            "no device is left for 'left', 'right': loosen a pin",
        ),
        (
            Constraints(forbid={"*": ("gpu0", "gpu1")}, colocate=(("*",),)),
            "no device is left for 'top', 'left', 'right', 'bottom': loosen a pin",
        ),
    ],
)
def test_constraints_that_do_not_go_with_the_problem_are_refused(
    diamond: Graph, two_devices: Cluster, constraints: Constraints, message: str
) -> None:
    problem = Problem(diamond, two_devices, constraints=constraints)
    with pytest.raises(ProblemError, match=f"^{re.escape(message)}"):
        _ = problem.arrays


def test_a_long_list_of_stuck_ops_is_shortened(fork_join: Graph, two_devices: Cluster) -> None:
    constraints = Constraints(forbid={"join": ("gpu0", "gpu1")}, colocate=(("*",),))
    problem = Problem(fork_join, two_devices, constraints=constraints)
    message = "no device is left for 'fork', 'branch0', 'branch1', 'branch2' and 2 more: loosen"
    with pytest.raises(ProblemError, match=f"^{message}"):
        _ = problem.arrays


def test_an_op_that_no_device_can_run_is_named(two_devices: Cluster) -> None:
    problem = Problem(Graph("g", (Op("a", runs_on=("tpu", "npu")),)), two_devices)
    message = "op 'a' runs only on tpu, npu: cluster 'two_devices' has no such device"
    with pytest.raises(ProblemError, match=f"^{message}$"):
        _ = problem.arrays


def test_a_pin_may_name_an_op_whose_name_looks_like_a_pattern(two_devices: Cluster) -> None:
    graph = Graph("g", (Op("a*"), Op("ab")))
    a = Problem(graph, two_devices, constraints=Constraints(pins={"a*": "gpu1"})).arrays
    assert a.allowed.tolist() == [[F, T], [T, T]]


def test_an_unknown_discipline_or_objective_is_refused(
    diamond: Graph, two_devices: Cluster
) -> None:
    with pytest.raises(ProblemError, match=r"^discipline 'eager': expected 'in order' or 'ready'$"):
        Problem(diamond, two_devices, discipline="eager")  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match=r"^objective 'speed': expected 'step' or 'period'$"):
        Problem(diamond, two_devices, objective="speed")  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [float("nan"), float("inf"), 1.5, -1, None])
def test_a_limit_is_a_whole_number_of_bytes(
    diamond: Graph, two_devices: Cluster, size: Any
) -> None:
    problem = Problem(diamond, two_devices, constraints=Constraints(limits={"gpu0": size}))
    message = f"the limit of device 'gpu0' is {size!r} bytes: expected a whole number >= 0"
    with pytest.raises(ProblemError, match=f"^{re.escape(message)}"):
        _ = problem.arrays


def test_what_is_no_graph_cluster_or_constraints_is_refused(
    diamond: Graph, two_devices: Cluster
) -> None:
    wrong: list[tuple[tuple[Any, Any], str]] = [
        ((two_devices, diamond), "Cluster and Graph"),
        (("chain", two_devices), "str and Cluster"),
        ((diamond, "2xP100"), "Graph and str"),
    ]
    for given, found in wrong:
        with pytest.raises(ProblemError, match=f"^a problem of {found}: expected a Graph and then"):
            Problem(*given)
    with pytest.raises(ProblemError, match=r"^a problem with constraints 4: expected Constr"):
        Problem(diamond, two_devices, constraints=4)  # type: ignore[arg-type]


def test_limits_may_be_text_and_are_short_for_constraints(
    diamond: Graph, two_devices: Cluster
) -> None:
    long = Problem(diamond, two_devices, constraints=Constraints(limits={"gpu0": "1KiB"}))
    short = Problem(diamond, two_devices, limits={"gpu0": "1KiB"})
    assert short.constraints == long.constraints
    assert short.constraints.limits == {"gpu0": 1024}


def test_a_problem_shows_its_parts(diamond_problem: Problem) -> None:
    expected = "Problem(Graph('diamond', 4 ops), Cluster('two_devices', gpu0, gpu1), step)"
    assert repr(diamond_problem) == expected
