"""Fusion search: no worse than a compiler or no fusion, and better where those are not best."""

from __future__ import annotations

import pytest
from small_problems import random_problem

from placewright import Cluster, MaxEvaluations, Plan, Problem, Roofline, judge, simulate, solve
from placewright.errors import ConfigError
from placewright.graph import Graph, Op
from placewright.solvers import FusionSearch
from placewright.transforms import fuse_greedily
from placewright.zoo import load


@pytest.fixture
def hasty(two_devices: Cluster, exact: Roofline) -> Problem:
    """a (1 s) feeds b (6 s) elsewhere and c (5 s) here, which d (1 s) joins: fusing a and c makes
    b wait, fusing c and d does not."""
    ops = (
        Op("a", "relu", flops=1, outputs=(1,)),
        Op("b", "matmul", ((0, 0),), (1,), flops=6),
        Op("c", "relu", ((0, 0),), (1,), flops=5),
        Op("d", "relu", ((2, 0),), (1,), flops=1),
    )
    return Problem(Graph("hasty", ops), two_devices, exact)


def test_groups_that_keep_others_waiting_are_left_alone(hasty: Problem) -> None:
    plan = Plan.of(hasty, [0, 1, 0, 0])
    all_fused = judge(hasty, plan.placement, fusion=[0, -1, 0, 0]).step_time[0]
    assert all_fused == 7 + 1 + 6  # b gets a's tensor when the group has ended
    result = solve(hasty, FusionSearch(plan), MaxEvaluations(60), seed=1)
    assert result.step_time == 1 + 1 + 6
    assert result.plan.placement.tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("seed", range(4))
def test_it_is_no_worse_than_a_compiler_or_nothing(seed: int) -> None:
    problem = random_problem(seed, ops=12)
    plan = solve(problem, FusionSearch(max_plans=20), seed=seed).plan
    bare = Plan.of(problem, plan.placement, plan.priority, staging=plan.staging)
    best = solve(problem, FusionSearch(bare, max_plans=20), seed=seed).key
    for fusion in (None, fuse_greedily(problem, plan.placement)):
        verdict = judge(problem, bare.placement, bare.priority, bare.staging, fusion=fusion)
        assert best <= verdict.key(0)


def test_a_network_gains_more_than_by_a_compilers_default() -> None:
    problem = Problem(load("cifar10"), Cluster.parse("P100"))
    plan = Plan.of(problem, [0] * len(problem.graph))
    default = Plan.of(problem, plan.placement, fusion=fuse_greedily(problem, plan.placement))
    found = solve(problem, FusionSearch(plan), MaxEvaluations(300), seed=0)
    assert (
        found.step_time < simulate(problem, default).step_time < simulate(problem, plan).step_time
    )


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="FusionSearch in batches of 0: expected 1 or more"):
        FusionSearch(batch=0)
    with pytest.raises(ConfigError, match="FusionSearch of 0 plans"):
        FusionSearch(max_plans=0)
