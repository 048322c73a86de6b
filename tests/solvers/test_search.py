"""Search and solve."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from placewright import MaxEvaluations, Plan, Problem, Search, simulate
from placewright.errors import ConfigError, PlanError
from placewright.solvers import Baselines, RandomSearch, SingleDevices, Stop, search, solve

TOGETHER, SPLIT, OTHER_SPLIT = [0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0]


def test_the_best_plan_is_kept_and_the_first_found_wins_ties(diamond_problem: Problem) -> None:
    found = Search(diamond_problem, Stop(), seed=0)
    verdict = found.judge([TOGETHER, SPLIT, OTHER_SPLIT])
    assert verdict.value.tolist() == [22.0, 16.0, 16.0]
    assert found.best is not None
    assert found.best.placement.tolist() == SPLIT
    found.judge(OTHER_SPLIT)
    assert found.best.placement.tolist() == SPLIT
    assert [(count, value) for count, _, value in found.history] == [(2, 16.0)]
    assert found.evaluations == 4


def test_a_plan_that_fits_beats_a_faster_one_that_does_not(layers_problem: Problem) -> None:
    found = Search(layers_problem, Stop(), seed=0)
    gpu, cpu = [1, 0, 0, 0, 0, 0], [1] * 6
    found.judge([gpu, cpu])
    assert found.best is not None
    assert found.best.placement.tolist() == cpu
    assert found.key == (0, 8.0)  # two layers of 4 FLOPs at 1 FLOP a second


def test_one_priority_and_one_staging_hold_for_all_plans(diamond_problem: Problem) -> None:
    found = Search(diamond_problem, Stop(), seed=0)
    verdict = found.judge([TOGETHER, SPLIT], priority=[0, 2, 1, 3], staging=[-1, 5])
    assert verdict.value.tolist() == [22.0, 16.0]
    assert found.best is not None
    assert found.best.priority is not None
    assert found.best.priority.tolist() == [0, 2, 1, 3]
    assert found.best.staging is not None
    assert found.best.staging.tolist() == [-1, 5]


def test_a_large_batch_is_judged_in_parts_with_the_same_verdict(
    diamond_problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    plans = np.random.default_rng(0).integers(0, 2, (10, 4))
    whole = Search(diamond_problem, Stop(), seed=0).judge(plans)
    monkeypatch.setattr(search, "_BATCH_WORK", 4 * 3)
    found = Search(diamond_problem, Stop(), 0, lambda at: seen.append(at.evaluations))
    parts = found.judge(plans)
    assert seen == [3, 6, 9, 10]
    assert parts.value.tolist() == whole.value.tolist()
    assert parts.peak.tolist() == whole.peak.tolist()
    assert found.best is not None
    assert found.best.placement.tolist() == plans[whole.best()].tolist()


def test_a_plan_that_breaks_a_rule_is_refused(diamond_problem: Problem) -> None:
    found = Search(diamond_problem, Stop(), seed=0)
    with pytest.raises(PlanError, match=r"a plan has 3 ops: the graph has 4"):
        found.judge([0, 0, 0])
    with pytest.raises(PlanError, match=r"the priority of 2 plans has shape \(3, 4\): expected"):
        found.judge([TOGETHER, SPLIT], priority=np.zeros((3, 4)))
    with pytest.raises(PlanError, match=r"the staging of 1 plans has shape \(1, 3\): expected"):
        found.judge(TOGETHER, staging=[1, 2, 3])


def test_a_proposed_plan_is_judged_whole(diamond_problem: Problem) -> None:
    found = Search(diamond_problem, Stop(), seed=0)
    plan = Plan.of(diamond_problem, SPLIT, priority=[0, 2, 1, 3])
    found.judge_plan(plan)
    assert found.best == plan
    assert found.key == (0, 16.0)


def test_a_proposed_plan_with_a_fusion_is_what_the_simulator_says(
    diamond_problem: Problem,
) -> None:
    found = Search(diamond_problem, MaxEvaluations(1), seed=0)
    plan = Plan.of(diamond_problem, SPLIT, fusion=[-1, -1, -1, -1])
    found.judge_plan(plan)
    assert found.best == plan
    assert found.key == (0, simulate(diamond_problem, plan).step_time)
    found.judge_plan(plan)
    assert found.evaluations == 1


def test_a_plan_of_another_problem_is_refused(
    diamond_problem: Problem, layers_problem: Problem
) -> None:
    found = Search(diamond_problem, Stop(), seed=0)
    stranger = Plan.of(layers_problem, [1] * 6)
    with pytest.raises(PlanError, match=r"the plan has 6 ops: graph 'diamond' has 4"):
        found.judge_plan(stranger)
    moved = Problem(diamond_problem.graph, layers_problem.cluster)
    with pytest.raises(PlanError, match=r"for devices gpu0, gpu1: the problem has gpu0, cpu: fit"):
        Search(moved, Stop(), seed=0).judge_plan(Plan.of(diamond_problem, TOGETHER))


def test_a_result_says_what_the_simulator_says(diamond_problem: Problem) -> None:
    result = solve(diamond_problem, RandomSearch(40), seed=7)
    timeline = simulate(diamond_problem, result.plan)
    # `top` and `left` here, `right` and `bottom` there: 1 + 10 + 2 + 1, all else overlaps
    assert result.step_time == timeline.step_time == 14.0
    assert result.period == timeline.period
    assert [use.peak for use in result.devices] == timeline.peak.tolist()
    assert [use.name for use in result.devices] == ["gpu0", "gpu1"]
    assert sum(use.ops for use in result.devices) == 4
    assert sum(use.busy for use in result.devices) == 22.0
    # `bottom` has `left` and `right` on its device (1 + 10 + 10 + 1), or waits for one (11 + 2 + 1)
    assert (result.bound, result.bound_name) == (pytest.approx(14.0), "longest path")
    assert result.gap == pytest.approx(0, abs=1e-9)
    assert (result.solver, result.evaluations, result.seed) == ("random", 40, 7)
    assert result.history[-1][2] == 14.0


def test_a_solve_is_no_worse_than_the_plan_it_starts_from(diamond_problem: Problem) -> None:
    start = Plan.of(diamond_problem, SPLIT)
    result = solve(diamond_problem, SingleDevices(), warm_start=start)
    assert result.plan == start
    assert result.evaluations == 3
    assert (
        solve(diamond_problem, RandomSearch(50), MaxEvaluations(1), warm_start=start).evaluations
        == 1
    )


def test_progress_is_told_after_each_batch(diamond_problem: Problem) -> None:
    told: list[tuple[int, float]] = []
    solve(
        diamond_problem,
        RandomSearch(130),
        progress=lambda at: told.append((at.evaluations, at.key[1])),
    )
    assert [count for count, _ in told] == [64, 128, 130]
    assert told[-1][1] == 14.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"solver": "auto"}, r"expected a solver such as solvers\.Auto\(\), found 'auto'"),
        ({"solver": RandomSearch}, r"expected a solver such as .*, found the class Random"),
        ({"stop": 5}, r"found 5 as the stop rule: expected one such as MaxTime\(5\)"),
        ({"seed": -1}, r"seed -1: expected a whole number, 0 or more"),
        ({"seed": 0.5}, r"seed 0\.5: expected a whole number, 0 or more"),
    ],
)
def test_what_is_no_solver_rule_or_seed_is_refused(
    diamond_problem: Problem, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        solve(diamond_problem, **{"solver": RandomSearch(5), **given})


class Idle:
    """A solver that judges nothing."""

    name = "idle"

    def run(self, search: Search) -> None:
        pass


def test_a_solver_must_judge_something(diamond_problem: Problem) -> None:
    with pytest.raises(
        PlanError, match=r"solver 'idle' evaluated no plan: a solver must evaluate at lea"
    ):
        solve(diamond_problem, Idle())


def test_a_result_says_which_part_found_the_plan(diamond_problem: Problem) -> None:
    result = solve(diamond_problem, Baselines())
    assert result.solver == "baselines"
    assert result.found_by in {"balanced", "m-etf", "heft"}  # two devices beat one here
    start = Plan.of(diamond_problem, result.plan.placement, result.plan.priority)
    assert solve(diamond_problem, SingleDevices(), warm_start=start).found_by == "start"
