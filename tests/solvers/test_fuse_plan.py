"""Fusing as a compiler does: never a cycle, never two heavy ops, and the order put right."""

import numpy as np
import pytest
from hypothesis import given, settings
from small_problems import random_problem
from strategies import problems

from placewright import Cluster, Graph, Op, Plan, Problem, simulate
from placewright.solvers import HEFT, solve
from placewright.solvers.fuse_plan import fuse_ops, reorder_fused
from placewright.transforms import HEAVY
from placewright.zoo import load


def test_a_chain_of_cheap_ops_joins_the_heavy_one_before_it():
    kinds = ["linear", "relu", "add", "linear", "gelu"]
    ops = tuple(
        Op(f"op{at}", kind, ((at - 1, 0),) if at else (), (1_000,), flops=1e6)
        for at, kind in enumerate(kinds)
    )
    problem = Problem(Graph("chain", ops), Cluster.parse("2xP100"))
    plan = fuse_ops(problem, Plan.of(problem, [0] * 5))
    assert plan.fusion.tolist() == [0, 0, 0, 3, 3]
    apart = fuse_ops(problem, Plan.of(problem, [0, 1, 1, 0, 1]))
    assert apart.fusion.tolist() == [-1, 1, 1, -1, -1]


def test_without_anything_to_fuse_there_is_no_plan():
    ops = (
        Op("a", "relu", outputs=(8,)),
        Op("b", "matmul", ((0, 0),), (8,)),
        Op("c", "gather", ((1, 0),), (8,)),
    )
    problem = Problem(Graph("chain", ops), Cluster.parse("P100"))
    assert fuse_ops(problem, Plan.of(problem, [0] * 3)) is None


@settings(max_examples=40, deadline=None)
@given(problems())
def test_a_fused_plan_is_always_lawful(problem):
    plan = Plan.of(problem, problem.legalize(np.zeros(len(problem.graph), dtype=np.int32)))
    if (together := fuse_ops(problem, plan)) is not None:
        assert simulate(problem, together).step_time >= 0  # a cycle would raise


@pytest.mark.parametrize("seed", range(10))
def test_groups_hold_one_heavy_op_at_most(seed):
    problem = random_problem(seed, ops=14)
    plan = fuse_ops(problem, Plan.of(problem, problem.legalize(np.zeros(14, dtype=np.int32))))
    if plan is not None:
        for group in set(plan.fusion.tolist()) - {-1}:
            kinds = [problem.graph.ops[at].kind for at in np.flatnonzero(plan.fusion == group)]
            assert sum(kind in HEAVY for kind in kinds) <= 1


def test_a_network_gets_faster_by_launches_and_traffic_alone():
    problem = Problem(load("cifar10"), Cluster.parse("P100"))
    plan = Plan.of(problem, [0] * len(problem.graph))
    assert simulate(problem, fuse_ops(problem, plan)).step_time < simulate(problem, plan).step_time


def test_the_order_is_put_right_after_fusing():
    problem = Problem(load("cifar10"), Cluster.parse("2xP100+cpu"))
    result = solve(problem, HEFT(contended=True))
    together = fuse_ops(problem, result.plan)
    better = reorder_fused(problem, together)
    assert np.array_equal(better.fusion, together.fusion)
    assert simulate(problem, better).step_time < simulate(problem, together).step_time
