"""The plain bounds: a chain of ops, all the work, the largest unit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright import (
    Cluster,
    Constraints,
    Device,
    Graph,
    Link,
    Op,
    Problem,
    Roofline,
    Table,
    judge,
)
from placewright.solvers import bound
from placewright.solvers.bounds import Aggregates, critical_path_bound
from placewright.solvers.bounds import largest_unit_bound as largest_unit_of
from placewright.solvers.bounds import work_bound as work_of
from placewright.solvers.bounds.relaxation import _distinct_rows


def work(problem: Problem) -> float:
    return work_of(Aggregates.of(problem))[0]


def largest_unit(problem: Problem) -> float:
    return largest_unit_of(Aggregates.of(problem))


def unequal(*rates: float) -> Cluster:
    """GPUs of these speeds, in FLOPs a second, with links of 1 byte a second."""
    devices = [
        Device(f"gpu{at}", rates={"float32": rate}, memory_bandwidth=1e30)
        for at, rate in enumerate(rates)
    ]
    names = [device.name for device in devices]
    links = {(one, two): Link(1) for one in names for two in names if one != two}
    return Cluster("unequal", tuple(devices), links)


def independent(*flops: float) -> Graph:
    return Graph("independent", tuple(Op(f"op{at}", flops=f) for at, f in enumerate(flops)))


def test_the_critical_path_takes_each_op_where_it_is_fastest(exact: Roofline, chain: Graph) -> None:
    # 1 + 2 + 3 FLOPs at 2 a second
    problem = Problem(chain, unequal(1, 2), exact)
    assert critical_path_bound(problem) == 3.0
    assert bound(problem).name == "critical path"


def test_the_critical_path_counts_launches_but_not_what_takes_no_turn(layers: Graph) -> None:
    gpu = Device("gpu0", rates={"float32": 1.0}, memory_bandwidth=1e30, launch_overhead=0.5)
    problem = Problem(layers, Cluster("one", (gpu,), {}), Roofline(compute=1, memory=1))
    assert critical_path_bound(problem) == 2 * (4 + 0.5)


def test_a_weight_takes_no_time_whatever_a_table_says() -> None:
    ops = (Op("w", kind="weight", outputs=(1,)), Op("a", inputs=((0, 0),)))
    costs = Table(("w", "a"), ("gpu0",), np.array([[5.0], [2.0]]))
    problem = Problem(Graph("table", ops), unequal(1), costs)
    assert critical_path_bound(problem) == judge(problem, [[0, 0]]).step_time[0] == 2.0
    assert work(problem) == pytest.approx(2)


def test_equal_devices_share_the_work_equally(exact: Roofline) -> None:
    # (3 + 3 + 3 + 3) / 2
    problem = Problem(independent(3, 3, 3, 3), unequal(1, 1), exact)
    assert work(problem) == pytest.approx(6, rel=1e-9)
    assert bound(problem).name == "work"


def test_unequal_devices_share_the_work_by_speed(exact: Roofline) -> None:
    # 8 ops of 3 FLOPs at 1 + 3 FLOPs a second; an equal share of the fastest times would say 4
    problem = Problem(independent(*[3] * 8), unequal(1, 3), exact)
    assert work(problem) == pytest.approx(24 / 4, rel=1e-9)


def test_a_pinned_op_keeps_its_own_device_busy(exact: Roofline) -> None:
    # The slow device must take op0 for 8 s; no sharing out changes that.
    graph = independent(8, 1)
    pinned = Constraints(pins={"op0": "gpu0"})
    assert bound(Problem(graph, unequal(1, 8), exact, pinned)).seconds == pytest.approx(8)
    assert bound(Problem(graph, unequal(1, 8), exact)).seconds == pytest.approx(1)


def test_ops_that_share_a_device_take_turns_there(exact: Roofline) -> None:
    # Three ops of 2 FLOPs in one unit: 6 s on one device, though 6 FLOPs / 2 devices is 3 s
    graph = independent(2, 2, 2)
    together = Constraints(colocate=(("op*",),))
    problem = Problem(graph, unequal(1, 1), exact, together)
    assert largest_unit(problem) == pytest.approx(6, rel=1e-9)
    assert bound(problem).name == "largest unit"


def test_the_period_is_not_bound_by_the_critical_path(chain: Graph, exact: Roofline) -> None:
    # 6 s along the chain; pipelined over two devices one may do (1 + 2) and the other 3, but the 4
    # bytes between them take the wire 4 s. 1 and (2 + 3) is 5 s.
    problem = Problem(chain, unequal(1, 1), exact, objective="period")
    assert work(problem) == pytest.approx(3)
    assert bound(problem).seconds == pytest.approx(4)
    assert bound(replace(problem, objective="step")).seconds == 6.0


def test_a_graph_that_takes_no_time_has_a_bound_of_nothing(exact: Roofline) -> None:
    assert bound(Problem(independent(0, 0), unequal(1, 1), exact)).seconds == 0.0


def test_equal_rows_are_found_as_numpy_finds_them():
    rng = np.random.default_rng(0)
    for _ in range(100):
        rows = rng.integers(-1, 2, size=(rng.integers(1, 40), rng.integers(1, 6)))
        rows = rows * rng.choice([1.0, 0.1, -0.0])
        _, first, kind = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        found_first, found_kind = _distinct_rows(rows)
        np.testing.assert_array_equal(found_first, first)
        np.testing.assert_array_equal(found_kind, kind.ravel())


def test_a_graph_without_tensors_has_a_bound():
    graph = Graph("none", (Op("a", flops=2e9), Op("b", flops=3e9)))
    devices = tuple(
        Device(name, rates={"float32": 1e9}, memory_bandwidth=1e9) for name in ("one", "two")
    )
    links = {pair: Link(1e9) for pair in (("one", "two"), ("two", "one"))}
    problem = Problem(graph, Cluster("two", devices, links))
    assert bound(problem).seconds == pytest.approx(3 / 0.6)  # b, at 60 % of either device's rate
