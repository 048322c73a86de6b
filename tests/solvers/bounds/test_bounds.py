"""Every bound against every plan of small problems."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_bound_problems import optima, tight_problem
from small_problems import random_problem
from strategies import plans, problems

from placewright import (
    Cluster,
    Constraints,
    Device,
    Graph,
    Link,
    Op,
    Problem,
    Table,
    judge,
    solve,
)
from placewright.errors import ConfigError
from placewright.solvers import SingleDevice, bound
from placewright.solvers.bounds import Bound, every_bound

if TYPE_CHECKING:
    from placewright.problem import Discipline, Objective

every_rule = pytest.mark.parametrize(
    ("discipline", "objective"),
    [(d, o) for d in ("in order", "ready") for o in ("step", "period")],
)


def beaten(problem: Problem, bounds: list[Bound], seed: int) -> list[Bound]:
    """Bounds that some plan beats."""
    any_plan, fitting = optima(problem, seed)
    return [
        found
        for found in bounds
        if found.seconds > (fitting if found.name == "memory" else any_plan)
    ]


@every_rule
@pytest.mark.parametrize("seed", range(6))
def test_no_plan_beats_a_bound(seed: int, discipline: Discipline, objective: Objective) -> None:
    problem = random_problem(seed, discipline, objective)
    assert beaten(problem, every_bound(problem), seed) == []


@every_rule
@pytest.mark.parametrize("seed", range(8))
def test_no_plan_that_fits_beats_the_memory_bound(
    seed: int, discipline: Discipline, objective: Objective
) -> None:
    problem = tight_problem(seed, discipline, objective)
    assert beaten(problem, every_bound(problem), seed) == []


@pytest.mark.parametrize("seed", [5, pytest.param(16, marks=pytest.mark.slow)])
def test_no_plan_beats_a_thorough_bound(seed: int) -> None:
    for problem in (
        random_problem(seed, "in order", "period", ops=5),
        tight_problem(seed, "ready", "step"),
    ):
        assert beaten(problem, every_bound(problem, "thorough"), seed) == []
        for fits in (True, False):
            more, less = (bound(problem, effort, fits).seconds for effort in ("thorough", "quick"))
            assert more >= less * (1 - 1e-6)


@pytest.mark.slow
@every_rule
@pytest.mark.parametrize("seed", range(100, 400))
def test_no_plan_beats_a_bound_of_many_problems(
    seed: int, discipline: Discipline, objective: Objective
) -> None:
    for problem in (
        random_problem(seed, discipline, objective, ops=4 + seed % 4),
        tight_problem(seed, discipline, objective),
    ):
        assert beaten(problem, every_bound(problem), seed) == []


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), objective=st.sampled_from(["step", "period"]))
def test_no_plan_of_any_problem_beats_its_bound(data: st.DataObject, objective: Objective) -> None:
    problem = replace(data.draw(problems(most=8, devices=3)), objective=objective)
    device, priority, staging = data.draw(plans(problem))
    verdict = judge(
        problem,
        device,
        None if priority is None else priority[None],
        None if staging is None else staging[None],
    )
    assert bound(problem, fits_only=False).seconds <= verdict.value[0]
    if verdict.overflow[0] == 0:
        assert bound(problem).seconds <= verdict.value[0]


def test_most_small_problems_are_proved_to_the_end() -> None:
    # If a bound were lost, this share would drop.
    near = []
    for seed in range(8):
        for objective in ("step", "period"):
            problem = random_problem(seed, "in order", objective)
            near.append(bound(problem, fits_only=False).seconds >= 0.999 * optima(problem, seed)[0])
    assert np.mean(near) > 0.6


def test_the_same_problem_has_the_same_bound() -> None:
    one, two = (random_problem(3, "in order", "period") for _ in range(2))
    assert bound(one) == bound(two)
    assert bound(one) is bound(one)


def test_a_plan_that_does_not_fit_is_held_against_bounds_that_need_no_fit() -> None:
    # 10 bytes of weight are 10 s away over the wire, or 50 s on the host; the GPU has 4.
    ops = (Op("w", "weight", outputs=(10,)), Op("a", inputs=((0, 0),)))
    devices = (Device("gpu", memory=4), Device("cpu", "cpu", memory=100))
    links = {("gpu", "cpu"): Link(1), ("cpu", "gpu"): Link(1)}
    costs = Table(("w", "a"), ("gpu", "cpu"), np.array([[0.0, 0.0], [1.0, 50.0]]))
    problem = Problem(Graph("one", ops), Cluster("two", devices, links), costs)
    over, fits = (solve(problem, SingleDevice(name)) for name in ("gpu", "cpu"))
    assert (over.fits, fits.fits) == (False, True)
    assert over.bound <= over.objective_value == 1.0
    assert (fits.bound, fits.bound_name) == (pytest.approx(50, rel=1e-5), "memory")


def test_an_unknown_effort_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"effort 'heroic': expected 'quick' or 'thorough'"):
        bound(random_problem(0), "heroic")  # type: ignore[arg-type]


def test_a_bound_holds_on_one_device_and_with_everything_pinned() -> None:
    ops = (Op("a", outputs=(3,)), Op("b", inputs=((0, 0),)))
    devices = (Device("gpu0"), Device("gpu1"))
    links = {("gpu0", "gpu1"): Link(1), ("gpu1", "gpu0"): Link(1)}
    costs = Table(("a", "b"), ("gpu0", "gpu1"), np.array([[1.0, 9.0], [9.0, 2.0]]))
    pins = Constraints(pins={"a": "gpu0", "b": "gpu1"})
    apart = Problem(Graph("two", ops), Cluster("two", devices, links), costs, pins)
    assert bound(apart).seconds == pytest.approx(1 + 3 + 2)  # the 3 bytes must cross
    alone = Table(("a", "b"), ("gpu0",), np.array([[1.0], [9.0]]))
    single = Problem(Graph("two", ops), Cluster("one", devices[:1], {}), alone)
    for objective in ("step", "period"):
        assert bound(replace(single, objective=objective)).seconds == pytest.approx(10)
