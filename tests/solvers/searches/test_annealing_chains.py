"""Annealing chains: values are the simulator's, constraints are kept, seeds repeat."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_problems import random_problem
from strategies import problems

from placewright import Cluster, Device, Graph, Link, MaxEvaluations, Op, Plan, Problem, simulator
from placewright.plan_batch import PlanBatch
from placewright.simulator._kernel import AnnealingSettings
from placewright.simulator.evaluation import kernel
from placewright.solvers import Search, Stop
from placewright.solvers.searches.annealing import grouping_levels, refine
from placewright.solvers.searches.annealing_chains import (
    AnnealingChains,
    Cooling,
    MoveShares,
    _block_arrays,
)


def walked(problem, evaluations, seed, order=True, stream=True, hot=0.5):
    """Compiled annealing from everything on the first device."""
    a = problem.arrays
    config = AnnealingSettings()
    config.evaluations, config.hot, config.cold = evaluations, hot, 1e-3
    config.penalty, config.doublings = 1.0, 4
    config.in_order = problem.discipline == "in order"
    config.period, config.overlap = problem.objective == "period", problem.overlap
    config.move_share = [1.0] * 8
    grouped = grouping_levels(problem)
    config.level_share = [1.0] * len(grouped)
    config.capacity, config.memory_margin = a.capacity.tolist(), [0] * a.devices
    start = problem.legalize(np.zeros((1, a.ops), dtype=np.int32))
    blocks = kernel(a).move_blocks(*_block_arrays(a, [grouping.group for grouping in grouped]))
    return kernel(a).anneal(
        blocks,
        config,
        start,
        np.arange(a.ops, dtype=np.float64)[None] if order else None,
        np.full((1, a.devices), -1, dtype=np.int64) if stream else None,
        [seed],
    )


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(0, 2**32), st.booleans(), st.booleans())
def test_the_best_of_a_walk_is_worth_what_the_simulator_says(problem, seed, order, stream):
    (device, priority, staging), _, overflow, value = walked(problem, 60, seed, order, stream)
    plan = Plan.of(problem, device[0])  # raises if a constraint is broken
    verdict = simulator.judge(problem, plan.placement, priority, staging)
    assert value[0] == pytest.approx(verdict.value[0], rel=1e-9, abs=1e-12)
    if problem.objective == "step":
        assert value[0] == verdict.value[0]
        assert overflow[0] == verdict.overflow[0]


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_loads_kept_up_to_date_are_the_period(seed, overlap):
    problem = replace(random_problem(seed, objective="period", ops=12), overlap=overlap)
    # So hot that nearly every change is kept: errors of the bookkeeping would add up.
    (device, _, _), last, _, value = walked(problem, 3_000, seed, hot=50.0, stream=False)
    assert value[0] == pytest.approx(simulator.judge(problem, device).value[0], rel=1e-9)
    assert Plan.of(problem, last[0][0]) is not None


@pytest.mark.parametrize("seed", range(6))
def test_a_walk_repeats_and_never_gets_worse(seed):
    problem = random_problem(seed, ops=12)
    first, again = (walked(problem, 500, seed) for _ in range(2))
    assert all(np.array_equal(x, y) for x, y in zip(first[0], again[0], strict=True))
    start = walked(problem, 1, seed)
    assert (first[2][0], first[3][0]) <= (start[2][0], start[3][0])


def test_priorities_stay_in_the_order_of_the_graph():
    problem = random_problem(3, ops=14)
    a = problem.arrays
    _, (_, priority, _), _, _ = walked(problem, 2_000, 1, hot=50.0)
    for op in range(a.ops):
        for tensor in a.inputs[a.first_input[op] : a.first_input[op + 1]]:
            source = a.producer[tensor]
            if a.scheduled[source] and a.scheduled[op]:
                assert priority[0][source] <= priority[0][op]


def test_a_search_counts_what_was_walked_and_sees_the_best():
    problem = random_problem(5, ops=12)
    search = Search(problem, MaxEvaluations(400), seed=0)
    search.judge(problem.legalize(np.zeros(problem.arrays.ops, dtype=np.int32)))
    annealer = AnnealingChains(search, grouping_levels(problem))
    rows = PlanBatch.of(
        problem, [search.best, search.best], with_priorities=True, with_staging=True
    )
    best = annealer.run(
        rows, 10_000, Cooling(), MoveShares.for_search(with_priorities=True, with_staging=True)
    )
    assert 398 <= search.evaluations <= 400
    verdict = simulator.judge(problem, best.placement, best.priority, best.staging)
    assert min(zip(verdict.overflow, verdict.value, strict=True)) == search.key


def test_the_period_keeps_back_memory_for_activations():
    for seed in range(30):
        problem = random_problem(seed, objective="period", ops=12)
        search = Search(problem, Stop(), seed=0)
        search.judge(problem.legalize(np.zeros(problem.arrays.ops, dtype=np.int32)))
        annealer = AnnealingChains(search, grouping_levels(problem))
        rows = PlanBatch.of(problem, [search.best], with_priorities=False, with_staging=False)
        annealer.run(rows, 500, Cooling(), MoveShares())
        if annealer._memory_margin.any():
            return
    pytest.fail("no seed gave a plan whose activations did not fit")


def test_a_period_with_staging_buffers_is_annealed_by_simulation():
    """Loads know no staging buffers: moves keep every buffer as large as its device needs."""
    ops = tuple(
        op
        for at in range(4)
        for op in (
            Op(f"weight{at}", "weight", outputs=(4 + at,)),
            Op(f"op{at}", flops=1, inputs=((2 * at, 0),), outputs=(1,)),
        )
    )
    rates = {"float32": 1e30}
    gpu = Device("gpu0", memory=30, rates=rates, memory_bandwidth=1e30)
    devices = (gpu, Device("cpu", "cpu", memory=100, rates=rates, memory_bandwidth=1e30))
    links = {pair: Link(1.0) for pair in (("gpu0", "cpu"), ("cpu", "gpu0"))}
    problem = Problem(Graph("four", ops), Cluster("pair", devices, links), objective="period")
    plan = Plan.of(problem, [1, 0] * 4, staging={"gpu0": 7})
    refined = refine(problem, plan)
    assert simulator.judge(problem, refined.placement, staging=refined.staging).overflow[0] == 0
