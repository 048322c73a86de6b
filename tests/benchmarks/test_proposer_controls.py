"""Controls of proposers: an untrained policy, and one whose proposals are permuted."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.proposers.proposer_controls import ShuffledProposer, untrained_proposer
from placewright import Cluster, Problem, judge
from placewright.policies.proposers import LinearProposer
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
