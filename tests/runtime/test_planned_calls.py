"""Which of several plans a graph of the model takes."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from models import Branches, torch, workers

from placewright import Plan, Problem, from_torch
from placewright.errors import PlanError
from placewright.runtime.planned_calls import PlannedCall, choose_plan, plan_calls, with_all_weights


@cache
def graph_of(rows):
    return from_torch(Branches().eval(), torch.ones(rows, 8))


def plan_on(graph, device):
    problem = Problem(graph, workers())
    return Plan.of(problem, problem.legalize(np.full(len(graph), device, dtype=np.int32)))


def device_of(plan):
    return int(plan.placement[plan.ops.index("left.linear")])


def flops(graph):
    return sum(op.flops for op in graph.ops)


@pytest.mark.parametrize(("rows", "device"), [(1, 0), (2, 0), (50, 1), (400, 1)])
def test_of_plans_with_the_same_names_the_nearest_in_flops_is_taken(rows, device):
    short, long = graph_of(1), graph_of(64)
    planned = [
        PlannedCall(plan_on(short, 0), flops(short)),
        PlannedCall(plan_on(long, 1), flops(long)),
    ]
    assert device_of(choose_plan(planned, graph_of(rows))) == device


def test_names_count_before_flops():
    graph = graph_of(4)
    other = Plan(("other.weight", "left.weight"), ("cpu0", "cpu1"), np.array([1, 1], np.int32))
    planned = [PlannedCall(other, flops(graph)), PlannedCall(plan_on(graph, 0), 1.0)]
    assert device_of(choose_plan(planned, graph)) == 0


def test_a_plan_gets_the_weights_that_other_calls_read():
    graph = graph_of(4)
    plan = with_all_weights(plan_on(graph, 0), {"encoder.weight": "cpu1", "left.weight": "cpu0"})
    assert plan.ops[-1] == "encoder.weight"
    assert plan.device_names[plan.placement[-1]] == "cpu1"
    assert len(plan) == len(graph) + 1
    assert choose_plan(plan_calls(plan), graph).ops == tuple(op.name for op in graph.ops)


def test_a_plan_of_another_model_is_refused():
    other = Plan(("other.weight",), ("cpu0", "cpu1"), np.zeros(1, np.int32))
    with pytest.raises(PlanError, match="made for another model"):
        choose_plan([PlannedCall(other)], graph_of(4))
