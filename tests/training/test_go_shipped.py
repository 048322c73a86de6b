"""GO as it ships: it places networks that it never saw, and says who made it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from placewright import Cluster, Problem, judge, solve, solvers, zoo

torch = pytest.importorskip("torch")
from placewright.policies.shipped import FOLDS, WEIGHTS_FOLDER, shipped_policy  # noqa: E402
from placewright.training.go.proposer import GoProposer  # noqa: E402
from placewright.training.policy_solver import POLICY_SOLVERS, GoPolicySolver  # noqa: E402

UNSEEN = {"a": "transformer-xl-2:layers=3,steps=32", "b": "nmt-2:steps=4"}
"""For each fold a network of the other."""


@pytest.fixture(scope="module")
def branches():
    return Problem(zoo.load("branches"), Cluster.parse("2xP100+cpu"))


def test_all_that_ships_is_small_and_says_who_made_it():
    assert sum(path.stat().st_size for path in WEIGHTS_FOLDER.iterdir()) < 20e6
    for name in ("go", *FOLDS.values()):
        data = json.loads((WEIGHTS_FOLDER / f"{name}.json").read_text())
        fold = name.removeprefix("go-") if name != "go" else "all"
        assert data["made_by"].startswith("python benchmarks/train_go.py")
        assert f"--fold {fold} " in data["made_by"]
        report = json.loads((WEIGHTS_FOLDER / f"{name}-report.json").read_text())
        assert report["fold"] == fold
        likeliest = [row["likeliest"] for row in report["rows"]]
        assert report["plans"] > len(likeliest) > 50


@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize("discipline", ["ready", "in order"])
def test_a_network_of_the_other_fold_is_placed_better_than_by_list_schedulers(fold, discipline):
    graph = zoo.load(UNSEEN[fold])
    problem = Problem(graph, Cluster.parse("3xP100+cpu"), discipline=discipline)
    proposer = GoProposer.read(WEIGHTS_FOLDER / f"{FOLDS[fold]}.json")
    plans = proposer.propose(problem, 16, seed=0)
    devices = np.stack([plan.placement for plan in plans])
    search = solvers.Search(problem, solvers.Stop(), 0)
    verdict = search.judge(devices, np.stack([plan.priority for plan in plans]))
    lists = min(solve(problem, each()).objective_value for each in (solvers.HEFT, solvers.METF))
    assert verdict.value[verdict.best()] < lists


def test_as_a_method_it_keeps_the_best_of_sixteen_that_fits(branches):
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


def test_what_it_thinks_of_a_plan_is_a_chance_for_each_device(branches):
    policy = GoProposer.shipped()
    plan = solve(branches, solvers.METF()).plan
    likely = policy.move_probabilities(branches, plan)
    assert likely.sum(axis=1) == pytest.approx(np.ones(len(plan)))
    assert shipped_policy("go").name == "go"
