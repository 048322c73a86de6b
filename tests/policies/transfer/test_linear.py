"""The linear policy: constraints, its file, and what it says of a plan."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import problems

from placewright import Cluster, Plan, Problem, judge, zoo
from placewright.errors import FileError
from placewright.policies.shipped import shipped_policy
from placewright.policies.transfer.features import FEATURES
from placewright.policies.transfer.linear import LinearConfig, LinearPolicy


def fresh(seed=0, **config) -> LinearPolicy:
    return LinearPolicy(
        LinearConfig(**config), np.random.default_rng(seed).normal(size=len(FEATURES))
    )


@pytest.fixture(scope="module")
def branches() -> Problem:
    return Problem(zoo.load("branches:modules=1"), Cluster.parse("2xP100+cpu"))


@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_every_plan_keeps_the_constraints_of_any_problem(problem):
    policy = fresh(grouping="op")
    episodes = policy.act(problem, 3, seed=0)
    verdict = judge(problem, episodes.placements, episodes.priority)  # raises where one is broken
    assert len(verdict.value) == 3
    assert np.isfinite(episodes.log_prob).all()


def test_a_policy_is_one_readable_file(branches, tmp_path):
    policy, path = fresh(3), tmp_path / "pair.json"
    policy.save(path)
    again = LinearPolicy.load(path)
    assert (again.weights == policy.weights).all()
    assert again.config == policy.config
    path.write_text(path.read_text().replace('"load"', '"lead"'))
    with pytest.raises(FileError, match="is no pair policy of this release"):
        LinearPolicy.load(path)


@pytest.mark.parametrize("weight", ["1" + "0" * 400, '"nan"', "[]", "null", "true"])
def test_a_weight_that_is_no_finite_number_is_refused(tmp_path, weight):
    path = tmp_path / "pair.json"
    fresh(3).save(path)
    data = json.loads(path.read_text())
    data["config"]["weights"]["load"] = "HERE"
    path.write_text(json.dumps(data).replace('"HERE"', weight))
    with pytest.raises(FileError, match="is no pair policy of this release"):
        LinearPolicy.load(path)


def test_what_it_thinks_of_a_plan_is_what_it_would_have_drawn_it_with(diamond_problem):
    policy = shipped_policy("pair")
    episodes = policy.act(diamond_problem, 1, seed=3)
    plan = Plan.of(diamond_problem, episodes.placements[0])
    likely = policy.move_probabilities(diamond_problem, plan)
    assert likely.sum(axis=1) == pytest.approx(np.ones(len(plan)))
    chosen = likely[np.arange(len(plan)), plan.placement]
    assert np.log(chosen).sum() == pytest.approx(float(episodes.log_prob[0].sum()), abs=1e-4)
