"""Calls joined into one problem: its plans are plans of the calls, and cost what these cost."""

from __future__ import annotations

import numpy as np
import pytest
from attack.tiny_workloads import all_residencies, tiny_workload

from placewright import Call, Cluster, MaxEvaluations, Plan, Problem, Workload, judge, solve, zoo
from placewright.solvers import RandomSearch, Streamed
from placewright.solvers.workloads.call_plans import CallPlans, evaluate_call, residency_of
from placewright.transforms import join_calls


def prefill_and_decode(limit: str = "0.6GiB", blocks: int = 2) -> Workload:
    cluster = Cluster.parse("V100+cpu")
    calls = []
    for name, text, count in (("prefill", "tokens=64", 1), ("decode", "context=64", 16)):
        graph = zoo.load(f"transformer:blocks={blocks},{text}")
        calls.append(Call(name, Problem(graph, cluster, limits={"gpu0": limit}), count))
    return Workload(calls)


@pytest.mark.parametrize("devices", [(0, 0, 0), (1, 1, 1), (0, 1, 0), (1, 0, 1), (1, 1, 0)])
def test_a_joint_step_is_the_weighted_sum_of_the_calls(devices: tuple[int, ...]):
    """Whole blocks on one device in both calls: no weight is sent, so no call begins early."""
    workload = prefill_and_decode(blocks=3)
    joint = join_calls(workload)
    graph = joint.problem.graph
    block = [int(op.module.split(".")[1]) if op.module else 0 for op in graph.ops]
    placement = joint.problem.legalize(np.array(devices)[block])
    assert not joint.problem.arrays.streamed_bytes(placement).any()
    verdict = judge(joint.problem, placement)
    plans = joint.split(Plan.of(joint.problem, placement))
    calls = tuple(evaluate_call(workload, at, plan) for at, plan in enumerate(plans))
    overflow, total = CallPlans(workload, calls).key
    assert verdict.value[0] * workload.counts.sum() == pytest.approx(total, rel=1e-9)
    assert verdict.overflow[0] == overflow


@pytest.mark.parametrize("seed", range(60))
def test_a_joint_plan_parts_into_plans_that_agree_on_weights_and_back(seed: int):
    workload = tiny_workload(seed)
    joint = join_calls(workload)
    result = solve(joint.problem, RandomSearch(), MaxEvaluations(20), seed)
    plans = joint.split(result.plan)
    residencies = [residency_of(workload, at, plan) for at, plan in enumerate(plans)]
    assert all(np.array_equal(each, residencies[0]) for each in residencies)
    assert any(np.array_equal(each, residencies[0]) for each in all_residencies(workload))
    again = joint.split(joint.join(plans))
    assert [plan.placement.tolist() for plan in again] == [
        plan.placement.tolist() for plan in plans
    ]
    orders = [
        np.argsort(plan.priority, kind="stable") for plan in again if plan.priority is not None
    ]
    first = [
        np.argsort(plan.priority, kind="stable") for plan in plans if plan.priority is not None
    ]
    assert [order.tolist() for order in orders] == [order.tolist() for order in first]


def test_streaming_may_begin_in_the_call_before_and_nothing_else_may():
    """So the joint step is a little shorter than the sum, by no more than the buffers hold."""
    workload = prefill_and_decode("0.4GiB")
    joint = join_calls(workload)
    result = solve(joint.problem, Streamed())
    assert result.plan.staging is not None
    assert result.plan.staging.max() > 0
    plans = joint.split(result.plan)
    calls = tuple(evaluate_call(workload, at, plan) for at, plan in enumerate(plans))
    total = CallPlans(workload, calls).key[1]
    joint_total = result.objective_value * workload.counts.sum()
    assert joint_total <= total * (1 + 1e-9)
    bandwidth = min(link.bandwidth for link in workload.cluster.links.values())
    ahead = float(result.plan.staging.max()) / bandwidth * float(workload.counts.max())
    assert total <= joint_total + ahead * 1.01
