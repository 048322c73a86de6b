"""Stop rules."""

from __future__ import annotations

import numpy as np
import pytest

from placewright import Cluster, Gap, MaxEvaluations, MaxTime, NoImprovement, Problem, Search
from placewright.errors import ConfigError
from placewright.solvers import RandomSearch, Stop, solve
from placewright.solvers import search as search_module
from placewright.solvers.bounds import Bound, bound
from placewright.zoo import load

TOGETHER, SPLIT = np.array([0, 0, 0, 0]), np.array([0, 0, 1, 0])


def test_without_a_rule_the_solver_runs_to_its_own_end(diamond_problem: Problem) -> None:
    assert solve(diamond_problem, RandomSearch(37)).evaluations == 37


def test_max_evaluations_is_exact(diamond_problem: Problem) -> None:
    search = Search(diamond_problem, MaxEvaluations(3), seed=0)
    verdict = search.judge(np.tile(TOGETHER, (5, 1)))
    assert search.evaluations == 3
    assert len(verdict.value) == 3
    assert search.over


def test_max_time_of_nothing_still_judges_one_batch(diamond_problem: Problem) -> None:
    search = Search(diamond_problem, MaxTime(0), seed=0)
    assert len(search.judge(TOGETHER).value) == 1
    assert search.over
    assert len(search.judge(SPLIT).value) == 0
    assert search.evaluations == 1


def test_no_improvement_counts_plans_since_the_best(diamond_problem: Problem) -> None:
    search = Search(diamond_problem, NoImprovement(2), seed=0)
    search.judge(TOGETHER)
    search.judge(TOGETHER)
    search.judge(SPLIT)  # better: the count starts again
    search.judge(TOGETHER)
    assert not search.over
    search.judge(SPLIT)  # as good is no better
    assert search.over


def test_gap_stops_at_a_share_above_the_bound(diamond_problem: Problem) -> None:
    # The bound is 14 s (`test_search.py`); together 22 s = 14 + 57.1 %, split 16 s = 14 + 14.3 %.
    search = Search(diamond_problem, Gap(0.15), seed=0)
    search.judge(TOGETHER)
    assert not search.over
    search.judge(SPLIT)
    assert search.over


def test_gap_does_not_stop_at_a_plan_that_overflows(layers_problem: Problem) -> None:
    search = Search(layers_problem, Gap(1e9), seed=0)
    gpu, cpu = np.array([1, 0, 0, 0, 0, 0]), np.ones(6)
    search.judge(gpu)  # the GPU holds 100 bytes: two weights of 50 leave nothing for activations
    assert not search.over
    search.judge(cpu)
    assert search.over


def test_joined_rules_stop_when_the_first_does(diamond_problem: Problem) -> None:
    stop = MaxTime(1e6) | MaxEvaluations(4) | NoImprovement(1000)
    assert solve(diamond_problem, RandomSearch(100), stop).evaluations == 4
    assert not Stop()(Search(diamond_problem, stop, seed=0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MaxTime(-1), r"MaxTime of -1 seconds: expected a number >= 0"),
        (lambda: MaxTime(float("nan")), r"MaxTime of nan seconds: expected a number >= 0"),
        (lambda: MaxTime("5s"), r"MaxTime of '5s' seconds: expected .* a number, not text"),
        (lambda: MaxEvaluations(0), r"0 evaluations: expected a whole number, 1 or more"),
        (lambda: MaxEvaluations(1.5), r"1\.5 evaluations: expected a whole number, 1 or more"),
        (lambda: MaxEvaluations("9"), r"'9' evaluations: expected a whole number, 1 or more"),
        (lambda: NoImprovement(0), r"0 evaluations without improvement: expected a whole number"),
        (lambda: NoImprovement(2.5), r"2\.5 evaluations without improvement: expected a whole"),
        (lambda: Gap(-0.1), r"Gap of -0.1: expected a share >= 0, e.g. 0.05"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(make: type, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_reserve_comes_off_the_time_alone():
    assert MaxTime(10).reserve(3) == MaxTime(7)
    assert MaxTime(1).reserve(3) == MaxTime(0.5)
    stop = (MaxTime(10) | MaxEvaluations(4)).reserve(1)
    assert stop == MaxTime(9) | MaxEvaluations(4)
    assert MaxEvaluations(4).reserve(1) == MaxEvaluations(4)


def test_a_short_budget_gets_the_bound_that_it_has_time_for(monkeypatch: pytest.MonkeyPatch):
    """The bound counts too: one that accounts for memory takes seconds on a large graph."""
    made: list[bool] = []

    def recorded_bound(problem: Problem, fits_only: bool = True) -> Bound:
        made.append(fits_only)
        return bound(problem, fits_only=fits_only)

    monkeypatch.setattr(search_module, "bound", recorded_bound)
    problem = Problem(load("layered:ops=80,weights=true"), Cluster.parse("2xP100+cpu"))
    short = solve(problem, RandomSearch(5), budget=1e-4)
    assert made == [False]
    long = solve(problem, RandomSearch(5), budget=1e4)
    assert made == [False, True]
    assert short.bound <= long.bound
