"""Credit for steps: discounts, fading traces and penalties, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.training import Outcome
from placewright.training.gae import StepNormalised
from placewright.training.rewards import CappedPenalty, step_returns

OWNER = np.array([0, 0, 0])


def test_returns_are_later_improvements_each_worth_a_discount_less():
    """Rewards -4, -3, -1 are improvements 1 and 2."""
    reward = np.array([-4.0, -3.0, -1.0])
    assert step_returns(reward, OWNER, 1).tolist() == [[3.0, 2.0]]
    assert step_returns(reward, OWNER, 1, 0.5).tolist() == [[2.0, 2.0]]
    assert step_returns(reward, OWNER, 1, 0.0).tolist() == [[1.0, 2.0]]


def test_a_full_trace_is_the_return_less_the_mean_of_its_step():
    rows = np.array([[3.0, 2.0], [1.0, -2.0]])
    found = StepNormalised(1.0).advantage(rows, np.array([True, True]), "g")
    expected = np.array([[1.0, 2.0], [-1.0, -2.0]])
    np.testing.assert_allclose(found, expected / expected.std())


def test_no_trace_leaves_each_step_its_own_improvement():
    """Improvements are 1 and 2, 3 and -2: off their means of 2 and 0 by 1."""
    rows = np.array([[3.0, 2.0], [1.0, -2.0]])
    found = StepNormalised(0.0).advantage(rows, np.array([True, True]), "g")
    expected = np.array([[-1.0, 2.0], [1.0, -2.0]])
    np.testing.assert_allclose(found, expected / expected.std())


def test_episodes_that_do_not_count_teach_nothing():
    rows = np.array([[3.0], [1.0], [90.0]])
    found = StepNormalised().advantage(rows, np.array([True, True, False]), "g")
    assert found[:, 0].tolist() == pytest.approx([1.0, -1.0, 0.0])
    nothing = StepNormalised().advantage(rows, np.zeros(3, dtype=bool), "g")
    assert not nothing.any()


def test_a_gib_over_costs_two_and_nothing_costs_more_than_the_cap():
    judged = Outcome(
        np.array([3.0, 3.0, np.inf]), np.array([0, 2**30, 0], dtype=np.int64), np.zeros(3)
    )
    assert CappedPenalty()(judged, 2.0).tolist() == [-1.5, -3.5, -10.0]
