"""Large-neighbourhood search: windows are what they say, plans only get better."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from small_problems import random_problem

from placewright import Cluster, MaxEvaluations, Plan, Problem, Search, simulate, zoo
from placewright.solvers import LNS, Stop, solve
from placewright.solvers.exact.lns import (
    boundary_ops,
    critical_ops,
    graph_neighbourhood,
    time_window,
)
from placewright.solvers.exact.solver import judge_baselines

if TYPE_CHECKING:
    from placewright import Timeline
    from placewright.problem import Objective


def test_the_critical_path_of_the_split_diamond(
    diamond_problem: Problem, split_timeline: Timeline
) -> None:
    """bottom (3) waits for right (2), which waits for top (0), both sent across."""
    assert critical_ops(diamond_problem, split_timeline).tolist() == [3, 2, 0]


def test_a_window_around_an_op_is_connected(
    diamond_problem: Problem, split_timeline: Timeline
) -> None:
    for seed in range(8):
        found = graph_neighbourhood(
            diamond_problem, split_timeline, np.random.default_rng(seed)
        ).tolist()
        assert sorted(found) == [0, 1, 2, 3]
        near = {0: {1, 2}, 1: {0, 3}, 2: {0, 3}, 3: {1, 2}}
        for at in range(1, 4):
            assert near[found[at]] & set(found[:at])


def test_a_stretch_is_around_a_moment_of_the_critical_path(
    diamond_problem: Problem, split_timeline: Timeline
) -> None:
    first = {
        int(time_window(diamond_problem, split_timeline, np.random.default_rng(seed))[0])
        for seed in range(20)
    }
    # At 0 top runs, at 3 both left and right do (left stands first), at 15 bottom does.
    assert first == {0, 1, 3}


def test_a_border_is_what_two_devices_send_each_other(
    diamond_problem: Problem, split_timeline: Timeline
) -> None:
    found = boundary_ops(diamond_problem, split_timeline, np.random.default_rng(0))
    assert sorted(found.tolist()) == [0, 2, 3]  # top → right and right → bottom; left is not in it


def test_without_sends_the_border_is_a_window_around_an_op(diamond_problem: Problem) -> None:
    together = simulate(diamond_problem, Plan.of(diamond_problem, [0] * 4))
    found = boundary_ops(diamond_problem, together, np.random.default_rng(0))
    assert sorted(found.tolist()) == [0, 1, 2, 3]


class TestSearch:
    @pytest.fixture(autouse=True)
    def _ortools(self) -> None:
        pytest.importorskip("ortools")

    @pytest.mark.parametrize("objective", ["step", "period"])
    def test_windows_improve_on_the_start(self, objective: Objective) -> None:
        graph = zoo.load("layered:ops=24,seed=1,weights=no")
        problem = Problem(graph, Cluster.parse("3xV100"), objective=objective)
        start = Search(problem, Stop(), seed=0)
        judge_baselines(start)
        result = solve(problem, LNS(window=8, work=0.02, patience=3))
        assert result.objective_value < start.key[1]

    def test_the_same_seed_gives_the_same_plan(self) -> None:
        problem = random_problem(2, ops=14)
        solver = LNS(window=5, work=0.02, patience=4)
        one, other = (solve(problem, solver, seed=5) for _ in range(2))
        assert one.plan == other.plan
        assert one.evaluations == other.evaluations
        budget = MaxEvaluations(one.evaluations - 1)
        assert (
            solve(problem, solver, budget, seed=5).plan
            == solve(problem, solver, budget, seed=5).plan
        )

    def test_a_start_with_streamed_weights_is_kept(self, layers_problem: Problem) -> None:
        """The model knows no staging rooms, so it goes on from the same devices without."""
        staged = Plan.of(layers_problem, [1, 1, 1, 0, 0, 0], staging={"gpu0": 60})
        tight = replace(layers_problem)
        start = simulate(tight, staged)
        result = solve(tight, LNS(window=3, work=0.02, patience=2), warm_start=staged)
        assert result.key <= (start.overflow, start.step_time)
