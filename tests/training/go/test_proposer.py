"""GO as a proposer: its plans, and its moves for a given plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placewright import Cluster, Problem, policies, solve, solvers, zoo
from placewright.errors import FileError

torch = pytest.importorskip("torch")
from placewright.policies.go.config import GoConfig  # noqa: E402
from placewright.policies.shipped import shipped_policy  # noqa: E402
from placewright.training.go.proposer import GoProposer  # noqa: E402

FOLD_WEIGHTS = Path(__file__).parents[3] / "benchmarks" / "go" / "weights"
SMALL = GoConfig(hidden=16, heads=2, segment=16, layers=1, tasks=("device", "priority"))


def test_a_proposer_makes_plans_and_says_where_ops_would_rather_be(lessons, tmp_path):
    for lesson in lessons:
        problem = lesson.problem
        policies.save(replace(SMALL, timed=True, starts=2).build(problem), tmp_path / "go.json")
        proposer = GoProposer.read(tmp_path / "go.json")
        plans = proposer.propose(problem, 12, seed=0)
        assert [len(proposer.propose(problem, count, seed=0)) for count in (1, 2, 3)] == [1, 2, 3]
        assert len(plans) == 12
        assert plans == proposer.propose(problem, 12, seed=0)
        again = proposer.propose(problem, 12, seed=1)
        assert plans[:8] == again[:8]  # the likeliest, the first ones, those between
        assert plans[8:] != again[8:]
        seen = proposer.policy.observe(problem)
        for at in range(2):
            first = seen.legalize(seen.initial_plans[at])
            assert (plans[2 + at].placement == first).all()
            kept = [(plans[each + at].placement == first).mean() for each in (0, 4, 6)]
            assert kept[0] <= kept[2]  # the surer a move must be, the fewer there are
        likely = proposer.move_probabilities(problem, plans[0])
        assert likely.shape == (problem.arrays.ops, problem.arrays.devices)
        np.testing.assert_allclose(likely.sum(axis=1), 1.0)
        leaders = np.unique(problem.arrays.leader)
        assert (likely[leaders][~problem.arrays.allowed[leaders]] < 1e-6).all()
    policies.save(policies.find_config("pair")().build(problem), tmp_path / "pair.json")
    with pytest.raises(FileError, match="holds policy 'pair': expected 'go'"):
        GoProposer.read(tmp_path / "pair.json")


UNSEEN = {"a": "transformer-xl-2:layers=3,steps=32", "b": "nmt-2:steps=4"}


"""For each fold a network of the other."""


@pytest.fixture(scope="module")
def branches():
    return Problem(zoo.load("branches"), Cluster.parse("2xP100+cpu"))


@pytest.mark.parametrize("fold", ["a", "b"])
@pytest.mark.parametrize("discipline", ["in order", pytest.param("ready", marks=pytest.mark.slow)])
def test_a_network_of_the_other_fold_is_placed_better_than_by_list_schedulers(fold, discipline):
    graph = zoo.load(UNSEEN[fold])
    problem = Problem(graph, Cluster.parse("3xP100+cpu"), discipline=discipline)
    proposer = GoProposer.read(FOLD_WEIGHTS / f"go-{fold}.json")
    plans = proposer.propose(problem, 16, seed=0)
    devices = np.stack([plan.placement for plan in plans])
    search = solvers.Search(problem, solvers.Stop(), 0)
    verdict = search.judge(devices, np.stack([plan.priority for plan in plans]))
    lists = min(solve(problem, each()).objective_value for each in (solvers.HEFT, solvers.METF))
    assert verdict.value[verdict.best()] < lists


def test_what_it_thinks_of_a_plan_is_a_chance_for_each_device(branches):
    policy = GoProposer.shipped()
    plan = solve(branches, solvers.METF()).plan
    likely = policy.move_probabilities(branches, plan)
    assert likely.sum(axis=1) == pytest.approx(np.ones(len(plan)))
    assert shipped_policy("go").name == "go"
