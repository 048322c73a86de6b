"""Climb: a plain search over whole groups."""

from __future__ import annotations

from placewright import Cluster, MaxEvaluations, Problem, zoo
from placewright.solvers import Climb, EverySingleDevice, solve
from placewright.transforms import by_heavy_edges


def test_it_is_never_worse_than_a_single_device_and_keeps_groups_together() -> None:
    problem = Problem(zoo.load("cifar10"), Cluster.parse("2xP100+cpu"))
    single = solve(problem, EverySingleDevice())
    result = solve(problem, Climb(lambda p: by_heavy_edges(p, 20)), MaxEvaluations(500), seed=1)
    assert result.step_time < single.step_time  # two GPUs help here
    grouping = by_heavy_edges(problem, 20)
    for members in grouping.members():
        turn = members[problem.arrays.turn[members]]
        assert len(set(result.plan.device[turn].tolist())) <= 1
    assert result.evaluations == 500


def test_it_ends_by_itself() -> None:
    problem = Problem(zoo.load("diamond"), Cluster.parse("2xP100"))
    result = solve(problem, Climb(lambda p: by_heavy_edges(p, 4), most=200))
    assert 200 <= result.evaluations < 300
