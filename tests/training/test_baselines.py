"""Baselines, each on numbers that can be checked by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from placewright.training import (
    BatchNormalised,
    MovingAverage,
    PerGraph,
    PerStep,
)
from placewright.training.baselines import TopShare

torch = pytest.importorskip("torch")

ALL = np.ones(2, dtype=bool)


def test_a_moving_average_compares_with_what_was_before():
    baseline = MovingAverage(decay=0.9, initial=-10.0)
    rows = np.array([[-1.0], [-3.0]])
    assert baseline.advantage(rows, ALL, "g").tolist() == [[9.0], [7.0]]
    assert baseline.average == pytest.approx(-9.2)  # 0.9 · -10 + 0.1 · -2
    only = np.array([True, False])  # what is not counted moves neither policy nor average
    assert baseline.advantage(rows, only, "g")[1] == 0
    assert baseline.average == pytest.approx(0.9 * -9.2 - 0.1)
    none = np.zeros(2, dtype=bool)
    assert not baseline.advantage(rows, none, "g").any()
    assert baseline.average == pytest.approx(0.9 * -9.2 - 0.1)


def test_a_baseline_per_graph_keeps_graphs_apart():
    baseline = PerGraph(lambda: MovingAverage(0.5))
    baseline.advantage(np.array([[-1.0]]), ALL[:1], "a")
    assert baseline.advantage(np.array([[-8.0]]), ALL[:1], "b").tolist() == [[0.0]]
    assert baseline.advantage(np.array([[-3.0]]), ALL[:1], "a").tolist() == [[-2.0]]


def test_a_baseline_per_step_is_the_mean_of_the_last_episodes_at_that_step():
    baseline = PerStep(window=2)
    found = baseline.advantage(np.array([[4.0, 0.0], [2.0, 2.0]]), ALL, "g")
    assert found.tolist() == [[1.0, -1.0], [-1.0, 1.0]]
    found = baseline.advantage(np.array([[6.0, 0.0]]), ALL[:1], "g")
    assert found.tolist() == [[2.0, -1.0]]  # (2 + 6) / 2 and (2 + 0) / 2


def test_a_normalised_batch_has_mean_0_and_deviation_1():
    found = BatchNormalised().advantage(np.array([[-1.0], [-2.0], [-6.0]]), np.ones(3, bool), "g")
    assert found.mean() == pytest.approx(0)
    assert found.std() == pytest.approx(1)
    assert not BatchNormalised().advantage(np.full((2, 1), -3.0), ALL, "g").any()


@pytest.mark.parametrize(
    "make", [MovingAverage, PerGraph, PerStep, BatchNormalised], ids=lambda make: make.__name__
)
def test_a_baseline_goes_on_from_its_state(make):
    one, other = make(), make()
    rows = np.array([[-1.0], [-2.0]])
    one.advantage(rows, ALL, "g")
    other.restore(json.loads(json.dumps(one.state())))
    later = np.array([[-4.0], [-5.0]])
    assert (one.advantage(later, ALL, "g") == other.advantage(later, ALL, "g")).all()


def test_the_top_share_learns_from_the_best_episodes_alone():
    """Of returns 0 to 9 the best fifth exceeds 7.2 by 0.8 and 1.8; one episode is not included."""
    returns = np.arange(11.0)[:, None]
    included = np.arange(11) < 10
    advantage = TopShare(0.2).advantage(returns, included, "graph")[:, 0]
    size = np.sqrt((0.8**2 + 1.8**2) / 10)
    assert advantage[8:10] == pytest.approx(np.array([0.8, 1.8]) / size)
    assert not advantage[:8].any()
    assert advantage[10] == 0.0


def test_the_top_share_of_equal_returns_is_not_noise():
    same = np.full((8, 1), 0.1) + np.arange(8)[:, None] * 1e-12
    assert np.abs(TopShare(0.25).advantage(same, np.ones(8, dtype=bool), "graph")).max() < 1e-4


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_top_share_of_none_or_all_is_refused(share):
    with pytest.raises(ValueError, match="expected more than 0 and less than 1"):
        TopShare(share)
