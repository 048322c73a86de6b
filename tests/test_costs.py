"""Costs: seconds of ops and transfers, from data sheets or from tables."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import fusible_problems

from placewright import Cluster, Device, Graph, Link, Op, Roofline, Table
from placewright.errors import ProblemError
from placewright.files import from_data


def single(**fields: object) -> Cluster:
    figures = {"rates": {"float32": 1e30}, "memory_bandwidth": 1e30, **fields}
    return Cluster("single", (Device("gpu0", **figures),), {})  # type: ignore[arg-type]


def test_a_roofline_is_the_larger_of_arithmetic_and_traffic_plus_the_launch() -> None:
    graph = Graph(
        "g", (Op("busy", flops=60, bytes_moved=10), Op("moving", flops=10, bytes_moved=60))
    )
    cluster = single(rates={"float32": 10}, memory_bandwidth=5, launch_overhead=0.5)
    seconds = Roofline(compute=1, memory=1).op_seconds(graph, cluster)
    # busy: max(60 / 10, 10 / 5) + 0.5; moving: max(10 / 10, 60 / 5) + 0.5
    assert seconds.tolist() == [[6.5], [12.5]]


def test_a_roofline_reaches_only_its_shares_of_the_data_sheet() -> None:
    graph = Graph("g", (Op("busy", flops=60), Op("moving", bytes_moved=60)))
    cluster = single(rates={"float32": 10}, memory_bandwidth=10)
    seconds = Roofline(compute=0.5, memory=0.25).op_seconds(graph, cluster)
    assert seconds.tolist() == [[60 / 5], [60 / 2.5]]


@pytest.mark.parametrize("kind", ["weight", "state", "input", "view"])
def test_what_only_exists_takes_no_time_and_no_launch(kind: str) -> None:
    graph = Graph("g", (Op("a", kind=kind, flops=5, bytes_moved=5),))
    assert Roofline().op_seconds(
        graph, single(launch_overhead=1, rates={"float32": 1})
    ).tolist() == [[0.0]]


def test_a_device_runs_each_dtype_at_its_own_rate() -> None:
    ops = tuple(Op(dtype, flops=12, dtype=dtype) for dtype in ("float32", "float16", "int3"))
    cluster = single(rates={"float16": 12, "float32": 4})
    # int3 is not listed, so it runs as float32 does
    assert Roofline(1, 1).op_seconds(Graph("g", ops), cluster).tolist() == [[3.0], [1.0], [3.0]]


def test_without_float32_an_unlisted_dtype_runs_as_the_slowest_listed() -> None:
    cluster = single(rates={"float16": 12, "int8": 6})
    graph = Graph("g", (Op("a", flops=12, dtype="float64"),))
    assert Roofline(1, 1).op_seconds(graph, cluster).tolist() == [[2.0]]


def test_a_device_without_rates_does_arithmetic_in_no_time() -> None:
    graph = Graph("g", (Op("a", flops=12),))
    assert Roofline(1, 1).op_seconds(graph, single(launch_overhead=0.25)).tolist() == [[0.25]]


def test_a_transfer_takes_latency_plus_bytes_over_bandwidth(fork_join: Graph) -> None:
    links = [Link(2, 1), Link(math.inf, 0.5)]
    seconds = Roofline().transfer_seconds(fork_join, links)
    # tensors of 3 and 4 bytes from the fork, 1 from each branch, 8 from the join
    over_first = [1 + size / 2 for size in (3, 4, 1, 1, 1, 1, 8)]
    assert seconds.tolist() == [over_first, [0.5] * 7]


def test_without_links_there_are_no_transfer_rows(chain: Graph) -> None:
    assert Roofline().transfer_seconds(chain, []).shape == (0, 3)
    table = Table(("a",), ("gpu",), np.ones((1, 1)), transfers=np.ones(3))
    assert table.transfer_seconds(chain, []).shape == (0, 3)


def test_a_fused_group_pays_one_launch_and_no_traffic_inside() -> None:
    ops = (
        Op("x", outputs=(10,), bytes_moved=10),
        Op("a", inputs=((0, 0),), outputs=(20,), bytes_moved=30),  # reads 10, writes 20
        Op("b", inputs=((1, 0),), outputs=(40,), bytes_moved=60),  # reads 20, writes 40
    )
    cluster = single(memory_bandwidth=10, launch_overhead=1)
    roofline = Roofline(1, 1)
    apart = roofline.op_seconds(Graph("g", ops), cluster)[1:].sum()
    assert apart == (1 + 3) + (1 + 6)
    fused = roofline.fused_seconds(Graph("g", ops), cluster, [[1, 2], [0]])
    # 30 + 60 bytes, less 20 written and 20 read inside, in one launch
    assert fused.tolist() == [[1 + 50 / 10], [1 + 10 / 10]]


def test_an_inner_tensor_that_leaves_the_group_is_still_written() -> None:
    ops = (
        Op("a", outputs=(20,), bytes_moved=20),
        Op("b", inputs=((0, 0),), outputs=(40,), bytes_moved=60),
        Op("c", inputs=((0, 0),), outputs=(1,)),
    )
    cluster = single(memory_bandwidth=10)
    # c reads a's tensor outside the group, so only b's read of it goes: 20 + 60 - 20
    fused = Roofline(1, 1).fused_seconds(Graph("g", ops), cluster, [[0, 1]])
    assert fused.tolist() == [[6.0]]
    # so does an output of the graph
    kept = Graph("g", ops[:2], outputs=((0, 0), (1, 0)))
    assert Roofline(1, 1).fused_seconds(kept, cluster, [[0, 1]]).tolist() == [[6.0]]


def test_a_fused_group_adds_up_its_arithmetic() -> None:
    ops = (Op("a", flops=6), Op("b", flops=6, dtype="float16", inputs=((0, 0),)))
    cluster = single(rates={"float32": 2, "float16": 3}, launch_overhead=1)
    assert Roofline(1, 1).fused_seconds(Graph("g", ops), cluster, [[0, 1]]).tolist() == [
        [1 + 3 + 2]
    ]


def test_views_inside_a_group_neither_save_nor_cost_traffic() -> None:
    ops = (
        Op("a", "relu", outputs=(20,), bytes_moved=40),  # reads 20 from elsewhere, writes 20
        Op("v", "view", ((0, 0),), (20,), aliases=((0, 0),)),
        Op("b", "relu", ((1, 0),), (20,), bytes_moved=40),
    )
    cluster = single(memory_bandwidth=10, launch_overhead=1)
    graph = Graph("g", ops)
    # a's write and b's read go, once each: 80 - 40
    assert Roofline(1, 1).fused_seconds(graph, cluster, [[0, 1, 2]]).tolist() == [[1 + 4.0]]
    # what b reads through the view is made outside; without b, the view is needed outside
    assert Roofline(1, 1).fused_seconds(graph, cluster, [[1, 2], [0, 1]]).tolist() == [
        [1 + 4.0],
        [1 + 4.0],
    ]


def test_what_is_written_in_place_into_memory_from_outside_is_written() -> None:
    ops = (
        Op("x", "input", outputs=(20,)),
        Op("a", "relu", ((0, 0),), (20,), bytes_moved=40, aliases=((0, 0),)),
        Op("b", "relu", ((1, 0),), (20,), bytes_moved=40),
    )
    # of 80 bytes only b's read of a's tensor goes
    fused = Roofline(1, 1).fused_seconds(Graph("g", ops), single(memory_bandwidth=10), [[1, 2]])
    assert fused.tolist() == [[6.0]]


def test_an_op_saves_no_more_than_it_moved() -> None:
    ops = (
        Op("a", "relu", outputs=(100,), bytes_moved=200),
        Op("b", "copy", ((0, 0),), (1,), bytes_moved=2),  # picks one byte of a hundred
        Op("c", "relu", ((1, 0),), (1,), bytes_moved=2),
    )
    # a: 200 - 100 written; b: 2, less 100 and 1, is none; c: 2 - 1
    fused = Roofline(1, 1).fused_seconds(Graph("g", ops), single(memory_bandwidth=1), [[0, 1, 2]])
    assert fused.tolist() == [[101.0]]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_fused_group_takes_no_longer_than_its_members_and_no_less_than_their_work(data) -> None:
    problem = data.draw(fusible_problems())
    graph, cluster = problem.graph, problem.cluster
    group = data.draw(st.sets(st.integers(0, len(graph) - 1), min_size=1).map(sorted))
    (fused,) = problem.costs.fused_seconds(graph, cluster, [group])
    alone = problem.costs.op_seconds(graph, cluster)
    total = np.zeros(len(cluster))
    for op in group:
        total += alone[op]
    assert (fused <= total).all()
    launch = np.array([device.launch_overhead for device in cluster.devices])
    longest = alone[group].max(axis=0)
    assert (fused >= np.minimum(longest, launch)).all()
    if isinstance(problem.costs, Table):
        assert (fused >= longest * (1 - 1e-15)).all()


def test_a_table_is_found_by_device_name_then_model_then_kind(chain: Graph) -> None:
    devices = (
        Device("gpu0", model="P100"),
        Device("gpu1", model="P100"),
        Device("gpu2", model="K40"),
    )
    link = Link(1)
    names = [device.name for device in devices]
    cluster = Cluster("c", devices, {(a, b): link for a in names for b in names if a != b})
    table = Table(("a", "b", "c"), ("gpu", "P100", "gpu1"), [[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    assert table.op_seconds(chain, cluster).tolist() == [[2, 3, 1], [5, 6, 4], [8, 9, 7]]


def test_a_tables_rows_may_stand_in_any_order_and_be_too_many(chain: Graph) -> None:
    table = Table(("c", "extra", "a", "b"), ("gpu",), [[3], [9], [1], [2]])
    assert table.op_seconds(chain, single()).tolist() == [[1], [2], [3]]


def test_a_single_column_scales_by_the_rates_of_the_device_it_was_measured_on(chain: Graph) -> None:
    measured_on = Device("mine", model="P100", rates={"float32": 6})
    table = Table(("a", "b", "c"), ("P100",), [[1], [2], [3]], measured_on=measured_on)
    # a device of twice the rate takes half the time
    assert table.op_seconds(chain, single(rates={"float32": 12})).tolist() == [[0.5], [1], [1.5]]


@pytest.mark.parametrize(("measured", "here"), [({}, {"float32": 1.0}), ({"float32": 1.0}, {})])
def test_a_table_cannot_be_scaled_without_rates(
    chain: Graph, measured: dict[str, float], here: dict[str, float]
) -> None:
    measured_on = Device("mine", model="P100", rates=measured)
    table = Table(("a", "b", "c"), ("P100",), [[1], [2], [3]], measured_on=measured_on)
    name = "gpu0" if measured else "mine"
    message = f"device '{name}' has no rates, so the cost table cannot be scaled to it: add them"
    with pytest.raises(ProblemError, match=f"^{message}$"):
        table.op_seconds(chain, single(rates=here))


def test_a_tables_transfers_hold_for_every_link(chain: Graph) -> None:
    table = Table(("a", "b", "c"), ("gpu",), np.ones((3, 1)), transfers=[1, 2, 3])
    assert table.transfer_seconds(chain, [Link(1), Link(5)]).tolist() == [[1, 2, 3], [1, 2, 3]]


def test_a_table_without_transfers_uses_the_links(chain: Graph) -> None:
    table = Table(("a", "b", "c"), ("gpu",), np.ones((3, 1)))
    assert table.transfer_seconds(chain, [Link(2, 1)]).tolist() == [[3, 3, 3]]  # 1 + 4 / 2


def test_a_fused_group_of_a_table_saves_only_launches(chain: Graph) -> None:
    table = Table(("a", "b", "c"), ("gpu",), [[1], [2], [3]])
    fused = table.fused_seconds(chain, single(launch_overhead=0.5), [[0, 1, 2]])
    assert fused.tolist() == [[1 + 2 + 3 - 2 * 0.5]]
    # measured below a launch: no less than the longer of the two
    assert table.fused_seconds(chain, single(launch_overhead=100), [[0, 1]]).tolist() == [[2.0]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seconds": [[1.0]]}, "the cost table has shape (1, 1): expected 2 ops x 1 columns"),
        (
            {"seconds": [[1], [-2]]},
            "the cost table holds -2.0 seconds: expected 0 to 1e",
        ),
        ({"seconds": [[1], [math.nan]]}, "the cost table holds nan seconds"),
        ({"seconds": [[math.inf], [1]]}, "the cost table holds inf seconds"),
        ({"transfers": [1, -1]}, "the transfer table holds -1.0 seconds"),
        ({"transfers": [math.nan]}, "the transfer table holds nan seconds"),
    ],
)
def test_a_malformed_table_is_refused(changes: dict[str, object], message: str) -> None:
    fields: dict[str, object] = {"ops": ("a", "b"), "columns": ("gpu",), "seconds": [[1], [2]]}
    with pytest.raises(ProblemError, match=re.escape(message)):
        Table(**(fields | changes))  # type: ignore[arg-type]


def test_an_op_without_a_row_is_named(chain: Graph) -> None:
    message = "the cost table has no row for op 'b' (2 ops miss): measure it"
    with pytest.raises(ProblemError, match=f"^{re.escape(message)}$"):
        Table(("a",), ("gpu",), [[1]]).op_seconds(chain, single())


def test_a_device_without_a_column_is_named(chain: Graph) -> None:
    message = (
        "the cost table has no column for device 'gpu0' (model 'K40', kind 'gpu'); "
        "its columns are P100, cpu"
    )
    table = Table(("a", "b", "c"), ("P100", "cpu"), np.ones((3, 2)))
    with pytest.raises(ProblemError, match=f"^{re.escape(message)}$"):
        table.op_seconds(chain, single(model="K40"))


def test_a_transfer_table_must_have_a_row_per_tensor(fork_join: Graph) -> None:
    table = Table(("a",), ("gpu",), [[1]], transfers=[1, 2])
    message = "the transfer table has 2 rows: the graph has 7 tensors"
    with pytest.raises(ProblemError, match=f"^{message}$"):
        table.transfer_seconds(fork_join, [Link(1)])


@pytest.mark.parametrize("key", ["compute", "memory"])
def test_a_roofline_read_from_data_needs_shares_above_zero(key: str) -> None:
    data = {"placewright": "costs", "version": 1, "model": "roofline", key: 0}
    with pytest.raises(ProblemError, match=f"{key}.* 0.0: expected"):
        from_data(data)


def test_what_is_not_stored_goes_at_the_loose_rate_and_is_handed_over():
    graph = Graph(
        "two",
        (
            Op("w", "weight", outputs=(1000,)),
            Op("x", "input", outputs=(1000,)),
            Op("y", "matmul", ((0, 0), (1, 0)), (500,)),
        ),
    )
    plain, slow = Link(100.0, 1.0), Link(100.0, 1.0, pageable_bandwidth=10.0)
    late = Link(100.0, 1.0, handoff_latency=3.0)
    found = Roofline().transfer_seconds(graph, [plain, slow, late])
    assert found.tolist() == [[11.0, 11.0, 6.0], [11.0, 101.0, 51.0], [11.0, 13.0, 8.0]]


def test_measured_workspaces_count_where_they_are_more():
    graph = Graph("one", (Op("a", "matmul", outputs=(8,), workspace=100), Op("b", "matmul")))
    table = Table(("b", "a"), ("cpu",), [[1.0], [1.0]], workspace=[70, 60])
    assert table.op_workspace(graph).tolist() == [100, 70]
    with pytest.raises(ProblemError, match="workspace"):
        Table(("b", "a"), ("cpu",), [[1.0], [1.0]], workspace=[70])


@pytest.mark.parametrize(
    ("figures", "missing"),
    [
        ({}, "no rates and no memory bandwidth"),
        ({"rates": {"float32": 1.0}}, "no memory bandwidth"),
        ({"memory_bandwidth": 1.0}, "no rates"),
    ],
)
def test_a_roofline_refuses_a_device_on_which_ops_would_take_no_time(
    figures: dict[str, object], missing: str
) -> None:
    cluster = Cluster("one", (Device("host", "cpu", memory=9, **figures),), {})  # type: ignore[arg-type]
    graph = Graph("g", (Op("a", flops=1, bytes_moved=1),))
    with pytest.raises(ProblemError, match=f"device 'host' has {missing}, so its ops would take"):
        Roofline().op_seconds(graph, cluster)
    assert Table(("a",), ("cpu",), [[2.0]]).op_seconds(graph, cluster).tolist() == [[2.0]]
