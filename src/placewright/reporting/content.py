"""Results in, what a page shows out: the answer, what to hold it against, and the steps drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import PlacewrightError, PlanError
from placewright.reporting.step_view import Shown
from placewright.solvers import METHODS, Accelerate, EverySingleDevice, MaxEvaluations, solve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.reporting.learning_curve import Learning
    from placewright.result import Result
    from placewright.solvers import Search

SINGLE, DEFAULT = EverySingleDevice.name, Accelerate.name


@dataclass(frozen=True, eq=False)
class Content:
    """All that a page shows.

    Args:
        model: What the model was called when it was asked for.
        results: One a method.
        labels: What each is called.
        answer: Which of them the page is about.
        single: Which of them has everything on one device.
        default: Which of them is what people use today; None where that cannot do the problem.
        skipped: Methods that cannot do the problem, each with the reason.
        interrupted: Whether a person stopped the search.
        notes: What a reader should know before trusting the page.
        helps: What would make the answer faster, each in a few words.
        learning: How a policy learned, if one did.
    """

    model: str
    problem: Problem
    results: tuple[Result, ...]
    labels: tuple[str, ...]
    answer: int
    single: int
    default: int | None
    skipped: tuple[tuple[str, str], ...] = ()
    interrupted: bool = False
    notes: tuple[str, ...] = ()
    helps: tuple[str, ...] = ()
    learning: Learning | None = None

    @cached_property
    def shown(self) -> Shown:
        """The answer's step."""
        return self._step(self.answer)

    @cached_property
    def alone(self) -> str:
        """The best single device."""
        plan, turn = self.results[self.single].plan, self.problem.arrays.turn
        used = np.bincount(plan.device[turn], minlength=len(plan.devices))
        return plan.devices[int(used.argmax())]

    def step(self, at: int) -> Shown:
        """The step of one result, run as its method is run."""
        return self.shown if at == self.answer else self._step(at)

    def _step(self, at: int) -> Shown:
        result = self.results[at]
        return Shown.of(as_run(self.problem, result.solver), result.plan)


def gather(
    model: str,
    problem: Problem,
    results: Sequence[Result],
    skipped: Sequence[tuple[str, str]] = (),
    interrupted: bool = False,
    notes: Sequence[str] = (),
    labels: Sequence[str] | None = None,
    helps: Sequence[str] = (),
    learning: Learning | None = None,
) -> Content:
    """The content of a page; the best single device and the default are added where missing.

    Args:
        results: The best of them, by bytes over and then the objective, is the answer.
        labels: What each is called; by default its method.
        problem: As it was given, not as a method that stands for another runtime runs it.
        helps: What would make the answer faster, as `solvers.explain` says.
        learning: How the policy behind one of the results learned.

    Raises:
        PlanError: A result's plan is not one of this problem's.
    """
    if not results:
        raise PlanError("there is no result to report: expected at least one")
    shown = list(results)
    given = [result.solver for result in results] if labels is None else list(labels)
    answer = min(range(len(shown)), key=lambda at: shown[at].key)
    single = _find_or_add(shown, problem, SINGLE)
    default = _find_or_add(shown, problem, DEFAULT)
    assert single is not None
    return Content(
        model,
        problem,
        tuple(shown),
        (*given, *(result.solver for result in shown[len(given) :])),
        answer,
        single,
        default,
        tuple(skipped),
        interrupted,
        tuple(notes),
        tuple(helps),
        learning,
    )


def as_run(problem: Problem, method: str) -> Problem:
    """The problem as the method of that name runs it, which may stand for another runtime."""
    solver = METHODS[method]() if method in METHODS else None
    if solver is not None and hasattr(solver, "as_run"):
        problem = solver.as_run(problem)
    return problem


def rejudged(problem: Problem, result: Result) -> Result:
    """A result whose figures are those that its plan has on this problem now."""
    now = solve(problem, _Given(result.plan, result.solver))
    return replace(
        result,
        plan=now.plan,
        objective=now.objective,
        step_time=now.step_time,
        period=now.period,
        bound=now.bound,
        bound_name=now.bound_name,
        overflow=now.overflow,
        devices=now.devices,
        problem=now.problem,
    )


@dataclass(frozen=True)
class _Given:
    """A plan that is there already, as a method; and the one that made it."""

    plan: Plan
    maker: str
    name = "given"

    def as_run(self, problem: Problem) -> Problem:
        return as_run(problem, self.maker)

    def run(self, search: Search) -> None:
        search.propose(self.plan)


def _find_or_add(results: list[Result], problem: Problem, method: str) -> int | None:
    for at, result in enumerate(results):
        if result.solver == method:
            return at
    many = MaxEvaluations(max(4, len(problem.cluster)))
    try:
        results.append(solve(problem, METHODS[method](), many))
    except PlacewrightError:
        return None
    return len(results) - 1
