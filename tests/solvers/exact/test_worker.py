"""The exact worker's model, solved in this process, gives the plan that its own process gives."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from small_problems import random_problem

pytest.importorskip("ortools")

from placewright import MaxEvaluations, solve
from placewright.solvers import Exact
from placewright.solvers.exact.process import SolverWorker
from placewright.solvers.exact.worker import solve_request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placewright.problem import Discipline, Objective


def in_this_process(
    worker: SolverWorker, request: dict[str, Any], seconds: float
) -> Iterator[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    done = solve_request(json.loads(json.dumps({**request, "seconds": seconds})), answers.append)
    yield from answers
    yield {"kind": "done", **done}


@pytest.mark.parametrize(
    ("discipline", "objective"), [("in order", "step"), ("ready", "step"), ("in order", "period")]
)
def test_a_model_has_the_same_plan_in_any_process(
    discipline: Discipline, objective: Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = random_problem(3, discipline, objective, ops=7)
    solver, stop = Exact(deterministic=0.05), MaxEvaluations(60)
    other = solve(problem, solver, stop=stop, seed=1)
    monkeypatch.setattr(SolverWorker, "submit", in_this_process)
    own = solve(problem, solver, stop=stop, seed=1)
    assert (own.plan, own.bound, own.objective_value) == (
        other.plan,
        other.bound,
        other.objective_value,
    )
