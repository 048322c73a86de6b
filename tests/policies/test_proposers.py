"""The linear policy as a proposer: its plans and its moves."""

from __future__ import annotations

import numpy as np
import pytest

from placewright import Cluster, Plan, Problem, judge
from placewright.policies.proposers import LinearProposer
from placewright.zoo import load


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(load("layered:ops=60,weights=true"), Cluster.parse("3xP100+cpu"))


def test_the_pair_policy_proposes_its_likeliest_plan_and_others(problem: Problem):
    plans = list(LinearProposer().propose(problem, 4, seed=0))
    again = list(LinearProposer().propose(problem, 4, seed=0))
    assert plans == again
    assert len(plans) == 4
    likeliest = LinearProposer()._linear.act(problem, 1, 0, greedy=True).placements[0]
    assert plans[0].placement.tolist() == likeliest.tolist()
    alone = judge(problem, problem.legalize(np.zeros(len(problem.graph), dtype=np.int32))[None])
    best = min(float(judge(problem, plan.placement[None]).value[0]) for plan in plans)
    assert best < 0.9 * float(alone.value[0])


def test_its_moves_are_its_own_probabilities(problem: Problem):
    """Of the plan that it likes best, the likeliest device of every op is the one it is on."""
    proposer = LinearProposer()
    plan = next(iter(proposer.propose(problem, 1, seed=0)))
    likely = proposer.move_probabilities(problem, plan)
    np.testing.assert_allclose(likely.sum(axis=1), 1.0)
    turn = problem.arrays.scheduled
    assert (likely.argmax(axis=1)[turn] == plan.placement[turn]).all()
    moved = plan.placement.copy()
    last = int(np.flatnonzero(turn)[-1])
    moved[last] = (moved[last] + 1) % 3
    other = proposer.move_probabilities(problem, Plan.of(problem, problem.legalize(moved)))
    assert other[last].argmax() == plan.placement[last]
