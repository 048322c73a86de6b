"""The learning curve on a page."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from placewright import Cluster, Problem, solve, solvers, zoo
from placewright.reporting import LearningCurve
from placewright.reporting.learning_curve import MAX_POINTS
from placewright.units import format_seconds


@dataclass(frozen=True)
class Update:
    plans: int
    best: float
    mean: float
    greedy: float
    entropy: float
    infeasible: float


def curve(count: int) -> list[Update]:
    return [
        Update(5 * at + 5, 1 / (at + 1), 2 / (at + 1), math.nan if at == 0 else 1.0, 0.5, 0.25)
        for at in range(count)
    ]


def test_few_updates_are_told_as_they_are():
    data = LearningCurve("colocrl", curve(3)).data()
    assert data["recipe"] == "colocrl"
    assert data["rows"][0] == [5, 1.0, 2.0, None, 0.5, 0.25]
    assert data["rows"][2] == [
        15,
        pytest.approx(1 / 3, rel=1e-5),
        pytest.approx(2 / 3, rel=1e-5),
        1,
        0.5,
        0.25,
    ]


def test_of_many_the_last_best_and_the_mean_of_each_stretch_are_told():
    rows = LearningCurve("colocrl", curve(3 * MAX_POINTS)).data()["rows"]
    assert len(rows) == MAX_POINTS
    assert rows[-1][:2] == [15 * MAX_POINTS, pytest.approx(1 / (3 * MAX_POINTS), rel=1e-5)]
    assert rows[0][2] == pytest.approx((2 + 1 + 2 / 3) / 3, rel=1e-5)
    assert rows[0][3] == 1.0  # the update that has no number is left out of the mean


def test_the_curve_is_drawn_with_the_baselines_as_lines(save_tab, build_content):
    problem = Problem(zoo.load("branches:modules=1"), Cluster.parse("2xP100+cpu"))
    names = ("single", "heft", "balanced")
    results = [solve(problem, solvers.METHODS[name]()) for name in names]
    tab = save_tab(
        build_content(
            "branches", problem, results, learning_curve=LearningCurve("colocrl", curve(40))
        )
    )
    assert tab.page.locator("#learning").is_visible()
    words = tab.text("#learning-chart")
    for result in results[1:]:
        assert f"{result.solver} {format_seconds(result.objective_value)}" in words
    assert f"lower bound {format_seconds(results[0].bound)}" in words
    assert tab.page.locator("#learning-chart path").count() == 5
    tab.page.locator("#theme").click()
    tab.settle()
    assert "greedy plan" in tab.text("#learning-legend")


def test_a_page_without_a_policy_has_no_such_section(open_tab, small):
    tab = open_tab(small)
    assert tab.page.locator("#learning").is_hidden()
    assert tab.page.locator("#learning-link").is_hidden()
