"""GAE: traces worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.training.gae import StepNormalised


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
