"""Rewards and returns, each on numbers that can be checked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.training import (
    FixedPenalty,
    GradedPenalty,
    Outcome,
)
from placewright.training.rewards import CappedPenalty, step_returns

torch = pytest.importorskip("torch")

JUDGED = Outcome(np.array([4.0, 1.0, np.inf]), np.array([0, 50, 0]), np.array([0.0, 0.5, 0.0]))

"""A plan that fits, one over by half a device's memory, one that could not be run."""


def test_the_papers_reward_is_minus_a_root_or_a_constant():
    assert JUDGED.feasible.tolist() == [True, False, False]
    assert FixedPenalty(10.0)(JUDGED, 1.0).tolist() == [-2.0, -10.0, -10.0]
    assert FixedPenalty(10.0)(JUDGED, 4.0)[0] == -1.0  # relative to the reference


def test_the_graded_reward_makes_a_plan_longer_the_more_it_is_over():
    """1 s · (1 + 10 · 0.5) = 6 s, and with a step of 3 it is 9 s."""
    assert GradedPenalty(overflow_weight=10.0)(JUDGED, 1.0) == pytest.approx(
        [-2.0, -np.sqrt(6), -10.0]
    )
    assert GradedPenalty(overflow_weight=10.0, overflow_step=3.0)(JUDGED, 1.0) == pytest.approx(
        [-2.0, -3.0, -10.0]
    )


def test_returns_of_episodes_with_several_plans_are_later_improvements():
    one = step_returns(np.array([-3.0, -1.0]), np.array([0, 1]), 2)
    assert one.tolist() == [[-3.0], [-1.0]]
    several = step_returns(np.array([-3.0, -2.0, -1.0]), np.array([0, 0, 0]), 1)
    assert several.tolist() == [[2.0, 1.0]]  # two steps from the first of three plans
    with pytest.raises(ValueError, match="out of order"):
        step_returns(np.array([-3.0, -1.0]), np.array([1, 0]), 2)


OWNER = np.array([0, 0, 0])


def test_returns_are_later_improvements_each_worth_a_discount_less():
    """Rewards -4, -3, -1 are improvements 1 and 2."""
    reward = np.array([-4.0, -3.0, -1.0])
    assert step_returns(reward, OWNER, 1).tolist() == [[3.0, 2.0]]
    assert step_returns(reward, OWNER, 1, 0.5).tolist() == [[2.0, 2.0]]
    assert step_returns(reward, OWNER, 1, 0.0).tolist() == [[1.0, 2.0]]


def test_a_gib_over_costs_two_and_nothing_costs_more_than_the_cap():
    judged = Outcome(
        np.array([3.0, 3.0, np.inf]), np.array([0, 2**30, 0], dtype=np.int64), np.zeros(3)
    )
    assert CappedPenalty()(judged, 2.0).tolist() == [-1.5, -3.5, -10.0]
