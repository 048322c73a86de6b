"""Numbers too large for the kernels are refused in a sentence; those that are not are solved."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from placewright import (
    Cluster,
    Device,
    Graph,
    Link,
    MaxEvaluations,
    Op,
    Plan,
    Problem,
    Roofline,
    Table,
    judge,
    simulate,
    solve,
)
from placewright.errors import ClusterError, PlacewrightError, PlanError, ProblemError
from placewright.reporting.trace import chrome_trace
from placewright.solvers import Auto, Search, Stop

AUTO = Auto(exact=False, first_evaluations=20)


def with_device(problem: Problem, **changes: object) -> Problem:
    """The problem with another first device."""
    first, *others = problem.cluster.devices
    devices = (replace(first, **changes), *others)  # type: ignore[arg-type]
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


def with_link(problem: Problem, **changes: object) -> Problem:
    """The problem with other links."""
    links = {pair: replace(link, **changes) for pair, link in problem.cluster.links.items()}  # type: ignore[arg-type]
    return replace(problem, cluster=replace(problem.cluster, links=links))


@pytest.mark.parametrize("seconds", [1.1e18, 1.7e308, math.inf, math.nan])
def test_seconds_that_a_sum_may_not_hold_are_refused(
    diamond_problem: Problem, seconds: float
) -> None:
    with pytest.raises(ClusterError, match=r"launch overhead .*: expected .* 0 to 1e\+18 s"):
        with_device(diamond_problem, launch_overhead=seconds)
    for field in ("latency", "handoff_latency"):
        with pytest.raises(ClusterError, match=r"a link has latency .*: expected 0 to 1e\+18 s"):
            with_link(diamond_problem, **{field: seconds})
    with pytest.raises(
        ProblemError, match=r"the cost table holds .* seconds: expected 0 to 1e\+18"
    ):
        Table(("a",), ("gpu0",), np.array([[seconds]]))


@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e-19])
def test_an_op_or_a_transfer_that_takes_too_long_is_refused(
    diamond_problem: Problem, rate: float
) -> None:
    slow = with_device(diamond_problem, rates={"float32": rate})
    with pytest.raises(ProblemError, match=r"an op would take .* s: expected 0 to 1e\+18 s"):
        _ = slow.arrays
    slow = with_link(diamond_problem, bandwidth=rate)
    with pytest.raises(ProblemError, match=r"a transfer would take .* s: expected 0 to 1e\+18 s"):
        _ = slow.arrays


@pytest.mark.parametrize("objective", ["step", "period"])
@pytest.mark.parametrize("rate", [1e-15, 1e30, 1e300, 1.7e308, math.inf])
def test_any_rate_that_ends_is_solved_and_drawn(
    diamond_problem: Problem, rate: float, objective: str
) -> None:
    for problem in (
        with_device(diamond_problem, rates={"float32": rate}),
        with_device(diamond_problem, memory_bandwidth=min(rate, 1.7e308)),  # inf: it has none
        with_link(diamond_problem, bandwidth=rate),
    ):
        posed = replace(problem, objective=objective)  # type: ignore[arg-type]
        result = solve(posed, AUTO, MaxEvaluations(400))
        assert result.fits
        assert result.bound <= result.objective_value
        assert chrome_trace(posed, simulate(posed, result.plan))


def test_the_longest_seconds_are_simulated(diamond_problem: Problem) -> None:
    problem = with_device(with_link(diamond_problem, latency=1e18), launch_overhead=1e18)
    result = solve(problem, AUTO, MaxEvaluations(400))
    assert 0 < result.step_time < math.inf


@pytest.mark.parametrize("memory", [2**62, 2**63 - 1, 2**63, 2**70, 1e30])
def test_more_memory_than_64_bits_count_is_no_limit(diamond_problem: Problem, memory: int) -> None:
    problem = with_device(diamond_problem, memory=memory)
    assert problem.arrays.capacity[0] == 2**62
    assert solve(problem, AUTO, MaxEvaluations(100)).fits
    with_reserve = with_device(diamond_problem, memory=memory, reserve=memory)
    assert with_reserve.arrays.capacity[0] == 0


@pytest.mark.parametrize("memory", [math.inf, math.nan, -1])
def test_memory_that_is_no_number_of_bytes_is_refused(memory: float) -> None:
    with pytest.raises(ClusterError, match=r"memory .* expected finite numbers >= 0"):
        Device("a", memory=memory)  # type: ignore[arg-type]


def test_a_graph_whose_bytes_64_bits_may_not_hold_is_refused(two_devices: Cluster) -> None:
    ops = tuple(Op(f"op{at}", outputs=(2**50,), resident=2**50) for at in range(1024))
    with pytest.raises(ProblemError, match=r"has \d+ bytes .* expected less than 2\*\*62"):
        _ = Problem(Graph("huge", ops), two_devices).arrays
    assert Problem(Graph("large", ops[:1000]), two_devices).arrays.ops == 1000


@pytest.mark.parametrize("size", [2**50 + 1, 2**62, 2**63 - 1, -2])
def test_a_staging_buffer_that_64_bits_may_not_add_up_is_refused(
    layers_problem: Problem, size: int
) -> None:
    placement = np.zeros(6, dtype=np.int32)
    placement[0] = 1  # the input is on the host
    message = rf"the plan stages {size} bytes on 'gpu0': expected 0 to 2\*\*50 bytes"
    with pytest.raises(PlanError, match=message):
        Plan.of(layers_problem, placement, staging={"gpu0": size})
    with pytest.raises(PlanError, match=message):
        Plan.of(layers_problem, placement, staging=[size, -1])
    with pytest.raises(PlanError, match=message):
        judge(layers_problem, placement, staging=[[size, -1]])
    unchecked = replace(Plan.of(layers_problem, placement), staging=np.array([size, -1]))
    with pytest.raises(PlanError, match=message):
        simulate(layers_problem, unchecked)


def test_the_largest_staging_buffer_does_not_fit(layers_problem: Problem) -> None:
    placement = np.zeros(6, dtype=np.int32)
    placement[0] = 1
    plan = Plan.of(layers_problem, placement, staging={"gpu0": 2**50, "cpu": 2**50})
    timeline = simulate(layers_problem, plan)
    assert timeline.overflow > 2**50
    assert not timeline.fits


@pytest.mark.parametrize("number", [2**32, 0.7, math.nan, -(2**32), 2**70])
def test_a_device_number_is_never_rounded_to_another(
    diamond_problem: Problem, number: float
) -> None:
    search = Search(diamond_problem, Stop(), seed=0)
    for evaluate in (lambda rows: judge(diamond_problem, rows), search.judge):
        with pytest.raises(PlanError, match="the plan's placement holds"):
            evaluate([[0, 0, 0, number]])
    assert judge(diamond_problem, [[0.0, 1.0, 0.0, 0.0]]).step_time[0] > 0


def test_a_part_of_a_byte_is_refused(layers_problem: Problem) -> None:
    placement = np.zeros(6, dtype=np.int32)
    placement[0] = 1
    with pytest.raises(PlanError, match="the plan's staging holds numbers that are no int64"):
        Plan.of(layers_problem, placement, staging={"gpu0": 0.5})  # type: ignore[dict-item]
    with pytest.raises(PlanError, match="staging buffers holds numbers that are no int64"):
        judge(layers_problem, placement, staging=[[0.5, -1]])


def test_every_extreme_raises_a_sentence_or_is_solved() -> None:
    """Pairs of extreme rates, sizes and times: nothing but our own errors."""
    extremes = (0.0, 5e-324, 1e-300, 1e-30, 1.0, 1e30, 1e300, 1.7e308)
    rng = np.random.default_rng(0)
    solved = 0
    for _ in range(60):
        rate, bandwidth, memory_rate, latency, launch, flops = rng.choice(extremes, size=6)
        try:
            devices = (
                Device(
                    "a",
                    memory=2**40,
                    rates={"float32": rate},
                    memory_bandwidth=1e30,
                    launch_overhead=launch,
                ),
                Device("b", memory=2**40, rates={"float32": 1.0}, memory_bandwidth=memory_rate),
            )
            link = Link(bandwidth, latency)
            cluster = Cluster("pair", devices, {("a", "b"): link, ("b", "a"): link})
            ops = (Op("x", flops=flops, outputs=(8,)), Op("y", flops=1, inputs=((0, 0),)))
            problem = Problem(Graph("pair", ops), cluster, Roofline(compute=1, memory=1))
            result = solve(problem, AUTO, MaxEvaluations(100))
        except PlacewrightError:
            continue
        solved += 1
        assert math.isfinite(result.step_time)
        chrome_trace(problem, simulate(problem, result.plan))
    assert solved >= 2
