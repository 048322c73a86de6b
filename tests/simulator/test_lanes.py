"""Plans side by side: the lane kernel equals the reference, and its bounds of peaks hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import plans, problems

from placewright import Cluster, Device, Link, Problem, judge, zoo
from placewright.errors import PlanError
from placewright.plan_batch import PlanBatch
from placewright.simulator import reference
from placewright.simulator.evaluation import in_lanes, kernel

MANY = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def random_placements(problem: Problem, count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    a = problem.arrays
    return problem.legalize(rng.integers(a.devices, size=(count, a.ops)))


def check(problem: Problem, placements: np.ndarray, priority: np.ndarray | None) -> int:
    """Compare with the event kernel; the number of plans that the lanes could not do."""
    a, compiled = problem.arrays, kernel(problem.arrays)
    rows = None if priority is None else np.tile(priority, (len(placements), 1))
    step_time, _, peak = compiled.judge(placements, rows, None, None, True, True, True, False, 1)
    overflow = np.maximum(peak - a.capacity, 0).sum(axis=1)
    for threads in (1, 3):
        found = compiled.judge_lanes(placements, priority, a.capacity, True, threads)
        lane_times, lane_overflow, low, high, simulated = found
        np.testing.assert_array_equal(lane_times, step_time)
        np.testing.assert_array_equal(lane_overflow, overflow)
        assert (low <= peak).all()
        assert (peak <= high).all()
    np.testing.assert_array_equal(
        compiled.judge_lanes(placements, priority, None, False, 1)[0], step_time
    )
    return simulated


@MANY
@given(st.data())
def test_lanes_equal_the_event_kernel_on_any_problem(data):
    """Times collide on purpose: whatever hand-overs are tied is simulated event by event."""
    problem = data.draw(problems())
    drawn = [data.draw(plans(problem)) for _ in range(data.draw(st.integers(1, 3)))]
    if not kernel(problem.arrays).has_lanes:
        return
    placements = np.stack([device for device, _, _ in drawn]).astype(np.int32)
    check(problem, placements, drawn[0][1])


@MANY
@given(st.data())
def test_a_lane_is_the_reference(data):
    problem = data.draw(problems())
    device, priority, _ = data.draw(plans(problem))
    if not kernel(problem.arrays).has_lanes:
        return
    trace = reference.run(problem.arrays, True, device, priority)
    found = kernel(problem.arrays).judge_lanes(
        np.asarray(device, dtype=np.int32)[None], priority, None, True, 1
    )
    assert found[0][0] == trace.step_time
    assert (found[2][0] <= trace.peak).all()
    assert (found[3][0] >= trace.peak).all()


@pytest.mark.parametrize("priorities", [False, True])
@pytest.mark.parametrize(
    ("network", "cluster"),
    [
        ("layered:ops=300,weights=true", "4xP100+cpu"),
        ("transformer:blocks=4,tokens=64", "2xV100+cpu"),
        ("cifar10:graph=3", "8xP100"),
    ],
)
def test_lanes_equal_the_event_kernel_on_networks(network, cluster, priorities):
    problem = Problem(zoo.load(network), Cluster.parse(cluster))
    ops = problem.arrays.ops
    order = np.random.default_rng(1).random(ops) if priorities else None
    simulated = check(problem, random_placements(problem, 37), order)
    assert simulated == 0 or priorities  # views that take no time tie hand-overs


def test_what_may_not_fit_is_simulated():
    problem = Problem(zoo.load("layered:ops=200,weights=true"), Cluster.parse("4xP100"))
    placements = random_placements(problem, 32)
    peak = judge(problem, placements).peak
    tight = problem.with_arrays(capacity=np.full(4, int(np.median(peak.max(axis=1)))))
    found = kernel(tight.arrays).judge_lanes(placements, None, tight.arrays.capacity, False, 1)
    assert 0 < found[4] <= 32
    verdict = judge(tight, placements)
    assert 0 < (verdict.overflow > 0).sum() < 32
    np.testing.assert_array_equal(verdict.excess, np.maximum(peak - tight.arrays.capacity, 0))
    assert verdict.lane_plans == 32 - found[4]


def test_batches_go_where_they_can_be_evaluated():
    problem = Problem(zoo.load("layered:ops=60,weights=true"), Cluster.parse("3xP100+cpu"))
    rows = random_placements(problem, 16)
    order = np.arange(problem.arrays.ops, dtype=np.float64)
    shared, own = np.tile(order, (16, 1)), np.random.default_rng(0).random((16, len(order)))
    staging = np.full((16, 4), -1, dtype=np.int64)
    assert in_lanes(problem, PlanBatch(rows))
    assert in_lanes(problem, PlanBatch(rows, shared, staging))
    assert not in_lanes(problem, PlanBatch(rows[:4]))
    assert not in_lanes(problem, PlanBatch(rows, own))
    assert not in_lanes(problem, PlanBatch(rows, None, np.full((16, 4), 2**40)))
    assert not in_lanes(problem, PlanBatch(rows, None, None, np.full_like(rows, -1)))
    ready = Problem(problem.graph, problem.cluster, discipline="ready")
    period = Problem(problem.graph, problem.cluster, objective="period")
    assert not in_lanes(ready, PlanBatch(rows))
    assert not in_lanes(period, PlanBatch(rows))


def test_channels_of_several_senders_and_issuers_are_left_to_events():
    devices = (Device("a", memory=99, rates={"float32": 1.0}, memory_bandwidth=1.0),)
    devices += (Device("b", memory=99, rates={"float32": 1.0}, memory_bandwidth=1.0),)
    shared = {("a", "b"): Link(1.0, 0.0, "bus"), ("b", "a"): Link(1.0, 0.0, "bus")}
    graph = zoo.load("chain:ops=4")
    assert not kernel(Problem(graph, Cluster("bus", devices, shared)).arrays).has_lanes
    links = {("a", "b"): Link(1.0, 0.0), ("b", "a"): Link(1.0, 0.0)}
    assert kernel(Problem(graph, Cluster("two", devices, links)).arrays).has_lanes


def test_a_malformed_plan_is_named():
    problem = Problem(zoo.load("chain:ops=4"), Cluster.parse("2xP100"))
    rows = np.zeros((20, problem.arrays.ops), dtype=np.int32)
    rows[11, 2] = 7
    with pytest.raises(PlanError, match="names device number 7"):
        judge(problem, rows)
