"""Shipped policies as solvers: they stop, repeat, fit memory and beat list schedulers."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from yardstick import lengths

from placewright import Cluster, MaxEvaluations, Problem, judge, solve, solvers, zoo
from placewright.policies.shipped import shipped_policy
from placewright.zoo import families

torch = pytest.importorskip("torch")
from placewright.training.policy_solver import POLICY_SOLVERS, GoPolicySolver, PolicySolver  # noqa: E402


@pytest.fixture(scope="module")
def branches() -> Problem:
    return Problem(zoo.load("branches:modules=1"), Cluster.parse("2xP100+cpu"))


def mean_ratio(policy: PolicySolver, cluster: str) -> float:
    """Its step time over that of the better list scheduler, geometric mean of the test graphs."""
    logs = []
    for at in families.TEST_GRAPHS:
        problem = Problem(zoo.load(f"cifar10:graph={at}"), Cluster.parse(cluster))
        found = solve(problem, policy, seed=0)
        assert found.fits
        assert found.evaluations == 2 * (policy.samples + 1)  # each plan in two orders
        lists = (solve(problem, each).objective_value for each in (solvers.METF(), solvers.HEFT()))
        logs.append(np.log(found.objective_value / min(lists)))
    return float(np.exp(np.mean(logs)))


@pytest.mark.parametrize(("cluster", "most"), [("2xK80", 1.0), ("3xP100+cpu", 0.85)])
def test_pair_beats_the_list_schedulers_on_unseen_graphs(cluster, most):
    assert mean_ratio(PolicySolver("pair", samples=7), cluster) < most


def test_where_memory_is_tight_it_is_shown_less_until_plans_fit():
    """Each device has 55 % of what the whole network needs."""
    graph = zoo.load(f"cifar10:graph={families.TEST_GRAPHS[0]}")
    problem = Problem(graph, Cluster.parse("2xK80"))
    a = problem.arrays
    single = judge(problem, np.zeros(a.ops, dtype=np.int32)).peak.max()
    tight = problem.with_arrays(capacity=np.full(2, int(single * 0.55)))
    policy = shipped_policy("pair")
    assert (judge(tight, policy.act(tight, 4, 0).placements).overflow > 0).any()
    found = solve(tight, PolicySolver("pair", samples=3), seed=0)
    assert found.fits
    assert found.evaluations > 8  # it was tried again


def test_it_stops_when_told_and_repeats_itself(branches):
    one, same = (
        solve(branches, PolicySolver("pair"), MaxEvaluations(30), seed=4) for _ in range(2)
    )
    assert one.evaluations == 30
    assert (one.plan.placement == same.plan.placement).all()


def without_torch(method):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from placewright import Cluster, Problem, solve, zoo\n"
        "from placewright.errors import MissingDependency\n"
        "from placewright.training.policy_solver import POLICY_SOLVERS\n"
        "problem = Problem(zoo.load('branches:modules=1'), Cluster.parse('2xP100'))\n"
        "try:\n"
        f"    print('fits', solve(problem, POLICY_SOLVERS['{method}']()).fits)\n"
        "except MissingDependency as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_placing_needs_no_torch_and_a_method_that_does_says_so():
    assert without_torch("pair") == "fits True"
    assert "placewright[torch]" in without_torch("placeto")


def test_go_keeps_the_best_of_sixteen_that_fits():
    branches = Problem(zoo.load("branches"), Cluster.parse("2xP100+cpu"))
    found = solve(branches, POLICY_SOLVERS["go"](), seed=0)
    assert found.fits
    assert found.evaluations == 16
    again = solve(branches, GoPolicySolver(), seed=0)
    assert (found.plan.placement == again.plan.placement).all()


def test_where_memory_is_tight_its_best_plan_is_repaired():
    """Each device has 60 % of what the whole network needs."""
    problem = Problem(zoo.load("nmt-2:steps=4"), Cluster.parse("2xP100"))
    peak = judge(problem, np.zeros(problem.arrays.ops, dtype=np.int32)).peak.max()
    tight = problem.with_arrays(capacity=np.full(2, int(peak * 0.6)))
    found = solve(tight, GoPolicySolver(), seed=0)
    assert found.fits
    assert found.evaluations > 16


@pytest.mark.parametrize(("cluster", "most"), [("2xK80", 1.0), ("5xK80", 0.95)])
def test_placeto_beats_the_list_schedulers_on_unseen_graphs(cluster, most):
    assert mean_ratio(PolicySolver("placeto", samples=3), cluster) < most


@pytest.mark.parametrize("name", ["pair", "placeto"])
def test_a_method_that_ships_places_250_groups_in_little_time(name):
    problem = Problem(
        zoo.load(f"cifar10:graph={families.TEST_GRAPHS[1]}"), Cluster.parse("3xP100+cpu")
    )
    assert lengths(lambda: solve(problem, PolicySolver(name), seed=0), limit=24) < 24  # 6: 0.6 s
    assert solve(problem, PolicySolver(name), seed=0).fits
    assert len(shipped_policy(name).grouping(problem)) > 250
