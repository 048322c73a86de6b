"""The comparison that a page shows: the answer, its baselines, and their steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import PlacewrightError, PlanError
from placewright.reporting.step_view import StepView
from placewright.solvers import METHODS, Accelerate, MaxEvaluations, SingleDevices, solve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.reporting.learning_curve import LearningCurve
    from placewright.result import Result
    from placewright.solvers import Search

SINGLE, DEFAULT = SingleDevices.name, Accelerate.name


@dataclass(frozen=True, eq=False)
class Comparison:
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
        improvements: What would make the answer faster, each in a few words.
        learning_curve: How a policy learned, if one did.
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
    improvements: tuple[str, ...] = ()
    learning_curve: LearningCurve | None = None

    @cached_property
    def answer_step(self) -> StepView:
        """The answer's step."""
        return self._simulate_step(self.answer)

    @cached_property
    def single_device(self) -> str:
        """The best single device."""
        plan, scheduled = self.results[self.single].plan, self.problem.arrays.scheduled
        op_counts = np.bincount(plan.placement[scheduled], minlength=len(plan.device_names))
        return plan.device_names[int(op_counts.argmax())]

    def step_view(self, index: int) -> StepView:
        """The step of one result, run as its method is run."""
        return self.answer_step if index == self.answer else self._simulate_step(index)

    def _simulate_step(self, index: int) -> StepView:
        result = self.results[index]
        return StepView.of(as_executed_by(self.problem, result.solver), result.plan)


def build_comparison(
    model: str,
    problem: Problem,
    results: Sequence[Result],
    skipped: Sequence[tuple[str, str]] = (),
    interrupted: bool = False,
    notes: Sequence[str] = (),
    labels: Sequence[str] | None = None,
    improvements: Sequence[str] = (),
    learning_curve: LearningCurve | None = None,
) -> Comparison:
    """The content of a page; the best single device and the default are added where missing.

    Args:
        results: The best of them, by bytes over and then the objective, is the answer.
        labels: What each is called; by default its method.
        problem: As it was given, not as a method that stands for another runtime runs it.
        improvements: What would make the answer faster, as `solvers.explain` says.
        learning_curve: How the policy behind one of the results learned.

    Raises:
        PlanError: A result's plan is not one of this problem's.
    """
    if not results:
        raise PlanError("there is no result to report: expected at least one")
    all_results = list(results)
    names = [result.solver for result in results] if labels is None else list(labels)
    answer = min(range(len(all_results)), key=lambda index: all_results[index].key)
    single = _find_or_add(all_results, problem, SINGLE)
    default = _find_or_add(all_results, problem, DEFAULT)
    assert single is not None
    return Comparison(
        model,
        problem,
        tuple(all_results),
        (*names, *(result.solver for result in all_results[len(names) :])),
        answer,
        single,
        default,
        tuple(skipped),
        interrupted,
        tuple(notes),
        tuple(improvements),
        learning_curve,
    )


def as_executed_by(problem: Problem, method: str) -> Problem:
    """The problem as the method of that name runs it, which may stand for another runtime."""
    solver = METHODS[method]() if method in METHODS else None
    if solver is not None and hasattr(solver, "as_executed"):
        problem = solver.as_executed(problem)
    return problem


def reevaluate(problem: Problem, result: Result) -> Result:
    """A result whose figures are those that its plan has on this problem now."""
    current = solve(problem, _PlanSolver(result.plan, result.solver))
    return replace(
        result,
        plan=current.plan,
        objective=current.objective,
        step_time=current.step_time,
        period=current.period,
        bound=current.bound,
        bound_name=current.bound_name,
        overflow=current.overflow,
        devices=current.devices,
        problem=current.problem,
    )


@dataclass(frozen=True)
class _PlanSolver:
    """A plan that is there already, as a method; and the one that made it."""

    plan: Plan
    solver_name: str
    name = "given"

    def as_executed(self, problem: Problem) -> Problem:
        return as_executed_by(problem, self.solver_name)

    def run(self, search: Search) -> None:
        search.judge_plan(self.plan)


def _find_or_add(results: list[Result], problem: Problem, method: str) -> int | None:
    for index, result in enumerate(results):
        if result.solver == method:
            return index
    budget = MaxEvaluations(max(4, len(problem.cluster)))
    try:
        results.append(solve(problem, METHODS[method](), budget))
    except PlacewrightError:
        return None
    return len(results) - 1
