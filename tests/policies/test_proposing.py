"""Policies as proposers: their plans, their moves, and what is left of both when shuffled."""

from __future__ import annotations

import numpy as np
import pytest

from placewright import Cluster, Plan, Problem, judge
from placewright.policies.proposers import (
    FromPolicy,
    PairProposer,
    Shuffled,
    untrained,
)
from placewright.policies.transfer.linear import Pair
from placewright.zoo import load


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(load("layered:ops=60,weights=true"), Cluster.parse("3xP100+cpu"))


def test_the_pair_policy_proposes_its_likeliest_plan_and_others(problem: Problem):
    plans = list(PairProposer().propose(problem, 4, seed=0))
    again = list(PairProposer().propose(problem, 4, seed=0))
    assert plans == again
    assert len(plans) == 4
    likeliest = PairProposer()._pair.act(problem, 1, 0, greedy=True).device[0]
    assert plans[0].device.tolist() == likeliest.tolist()
    alone = judge(problem, problem.settle(np.zeros(len(problem.graph), dtype=np.int32))[None])
    best = min(float(judge(problem, plan.device[None]).value[0]) for plan in plans)
    assert best < 0.9 * float(alone.value[0])


def test_its_moves_are_its_own_probabilities(problem: Problem):
    """Of the plan that it likes best, the likeliest device of every op is the one it is on."""
    proposer = PairProposer()
    plan = next(iter(proposer.propose(problem, 1, seed=0)))
    likely = proposer.move_probabilities(problem, plan)
    np.testing.assert_allclose(likely.sum(axis=1), 1.0)
    turn = problem.arrays.turn
    assert (likely.argmax(axis=1)[turn] == plan.device[turn]).all()
    moved = plan.device.copy()
    last = int(np.flatnonzero(turn)[-1])
    moved[last] = (moved[last] + 1) % 3
    other = proposer.move_probabilities(problem, Plan.of(problem, problem.settle(moved)))
    assert other[last].argmax() == plan.device[last]


def test_an_untrained_policy_knows_nothing(problem: Problem):
    def best(proposer: PairProposer) -> float:
        return min(
            float(judge(problem, plan.device[None]).value[0])
            for plan in proposer.propose(problem, 4, seed=0)
        )

    assert untrained().name == "untrained"
    assert best(PairProposer()) < best(untrained())


def test_shuffled_it_is_as_sure_of_other_ops(problem: Problem):
    proposer = PairProposer()
    plan = next(iter(proposer.propose(problem, 1, seed=3)))
    likely = proposer.move_probabilities(problem, plan)
    dealt = Shuffled(proposer).move_probabilities(problem, plan)
    assert dealt is not None
    assert Shuffled(proposer).name == "pair shuffled"
    np.testing.assert_allclose(dealt.sum(axis=1), 1.0)
    ops = np.arange(len(plan))
    mine, theirs = likely[ops, plan.device], dealt[ops, plan.device]
    np.testing.assert_allclose(np.sort(mine), np.sort(theirs))  # as many ops are to stay
    assert (mine != theirs).any()
    for shuffled in Shuffled(proposer).propose(problem, 2, seed=0):
        judge(problem, shuffled.device[None])  # raises if it is unlawful


def test_any_policy_proposes_plans(problem: Problem):
    policy = PairProposer()._pair
    proposer = FromPolicy(policy)
    assert proposer.name == "pair"
    assert len(list(proposer.propose(problem, 3, seed=0))) == 3
    plan = next(iter(proposer.propose(problem, 1, seed=0)))
    moves = proposer.move_probabilities(problem, plan)
    np.testing.assert_allclose(moves, policy.move_probabilities(problem, plan))

    class Silent(Pair):
        move_probabilities = None

    silent = FromPolicy(Silent(policy.shape, policy.weights))
    assert silent.move_probabilities(problem, plan) is None
