"""Controls of proposers: an untrained policy, and one whose proposals are permuted."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.proposers.compare import interval, log_ratio, main
from benchmarks.proposers.proposer_controls import (
    NullProposer,
    ShuffledProposer,
    untrained_proposer,
)
from placewright import Cluster, MaxEvaluations, Problem, judge, solve
from placewright.policies.proposers import LinearProposer
from placewright.solvers import Auto
from placewright.zoo import load


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(load("layered:ops=60,weights=true"), Cluster.parse("3xP100+cpu"))


def test_an_untrained_policy_knows_nothing(problem: Problem):
    def best(proposer: LinearProposer) -> float:
        return min(
            float(judge(problem, plan.placement[None]).value[0])
            for plan in proposer.propose(problem, 4, seed=0)
        )

    assert untrained_proposer().name == "untrained"
    assert best(LinearProposer()) < best(untrained_proposer())


def test_shuffled_it_is_as_sure_of_other_ops(problem: Problem):
    proposer = LinearProposer()
    plan = next(iter(proposer.propose(problem, 1, seed=3)))
    likely = proposer.move_probabilities(problem, plan)
    dealt = ShuffledProposer(proposer).move_probabilities(problem, plan)
    assert dealt is not None
    assert ShuffledProposer(proposer).name == "pair shuffled"
    np.testing.assert_allclose(dealt.sum(axis=1), 1.0)
    ops = np.arange(len(plan))
    mine, theirs = likely[ops, plan.placement], dealt[ops, plan.placement]
    np.testing.assert_allclose(np.sort(mine), np.sort(theirs))  # as many ops are to stay
    assert (mine != theirs).any()
    for shuffled in ShuffledProposer(proposer).propose(problem, 2, seed=0):
        judge(problem, shuffled.placement[None])  # raises if it is unlawful


def test_the_null_arm_is_auto_plan_for_plan(problem: Problem):
    alone, null = (
        solve(problem, Auto(proposers=proposers), MaxEvaluations(2_000), seed=1)
        for proposers in ((), (NullProposer(),))
    )
    assert null.plan == alone.plan
    assert null.evaluations == alone.evaluations


def test_a_plan_that_does_not_fit_counts_as_twice():
    fits, unfit = {"overflow": 0, "value": 3.0}, {"overflow": 7, "value": 1.0}
    assert np.exp(log_ratio(unfit, fits)) == pytest.approx(2.0)
    assert np.exp(log_ratio(fits, unfit)) == pytest.approx(0.5)
    assert log_ratio(unfit, unfit) == 0.0
    assert np.exp(log_ratio(fits, {"overflow": 0, "value": 6.0})) == pytest.approx(0.5)


def test_the_interval_grows_with_the_seeds_own_spread():
    """Two seeds that disagree say less than two that agree, though their means are equal."""
    names = [f"{family}:graph={at}@2xP100" for family in ("a", "b", "c") for at in range(3)]
    agree = interval({name: [-0.01, -0.01] for name in names})
    differ = interval({name: [-0.31, 0.29] for name in names})
    assert agree == pytest.approx([np.exp(-0.01)] * 3)
    assert differ[0] == pytest.approx(np.exp(-0.01))
    assert differ[1] < 0.97 < 1.0 < differ[2]


def test_longer_searches_are_compared_with_the_primary_budget_seed_by_seed(tmp_path, capsys):
    def line(seconds: float, seed: int, value: float) -> str:
        row = {"problem": "a@2xP100", "arm": "null", "seed": seed, "value": value, "overflow": 0}
        return json.dumps({**row, "budget": ["cpu seconds", seconds], "history": [[0.1, value]]})

    # 1 of 4, and 1 of 1: seed 2 has no run of 1 s, so it is no pair.
    values = {(1, 0): 4.0, (1, 1): 1.0, (10, 0): 1.0, (10, 1): 1.0, (10, 2): 0.1}
    path = tmp_path / "runs.jsonl"
    path.write_text("\n".join(line(*key, value) for key, value in values.items()) + "\n")
    main(["report", "--out", str(path)])
    assert "| 10 cpu seconds | 10 | 1 | 2 | 0.5000 |" in capsys.readouterr().out
