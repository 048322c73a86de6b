"""The content of a page: a comparison with its baselines, their steps, and the explanation."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

from placewright.errors import PlanError
from placewright.explanations import explain
from placewright.reporting.step_view import StepView
from placewright.result import Result
from placewright.solvers import METHODS, Comparison
from placewright.solvers.comparison import rank_cautiously
from placewright.solvers.search import simulated_problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.explanations import Explanation
    from placewright.problem import Problem
    from placewright.reporting.learning_curve import LearningCurve


@dataclass(frozen=True, eq=False)
class PageContent:
    """A comparison and what the page shows in addition.

    Args:
        explanation: Why the answer takes as long as it does; without it the sentence is computed,
            and what would help is left out.
        notes: What a reader should know before trusting the page.
        learning_curve: How the policy behind one of the results was trained.
        date: The day on which the page is made, in UTC.
    """

    comparison: Comparison
    explanation: Explanation
    notes: tuple[str, ...] = ()
    learning_curve: LearningCurve | None = None
    date: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())

    @classmethod
    def of(
        cls,
        comparison: Comparison,
        explanation: Explanation | None = None,
        notes: Sequence[str] = (),
        learning_curve: LearningCurve | None = None,
    ) -> PageContent:
        if explanation is None:
            explanation = explain(comparison.problem, comparison.best, improvements=False)
        return cls(comparison, explanation, tuple(notes), learning_curve)

    @property
    def problem(self) -> Problem:
        return self.comparison.problem

    @cached_property
    def results(self) -> tuple[Result, ...]:
        """The results of the comparison, then the baselines that are not among them."""
        results = list(self.comparison.results)
        for baseline in (self.comparison.single_device, self.comparison.default):
            if baseline is not None and not any(result is baseline for result in results):
                results.append(baseline)
        return tuple(results)

    @property
    def labels(self) -> tuple[str, ...]:
        """What each result is called."""
        added = self.results[len(self.comparison.results) :]
        return (*self.comparison.labels, *(result.solver for result in added))

    @property
    def answer(self) -> int:
        """The result that the page is about."""
        return self._index(self.comparison.best)

    @property
    def single(self) -> int:
        """The result with everything on one device."""
        return self._index(self.comparison.single_device)

    @property
    def default(self) -> int | None:
        """The result of the default, Accelerate; None if it cannot solve the problem."""
        default = self.comparison.default
        return None if default is None else self._index(default)

    @property
    def sentence(self) -> str:
        """Why the answer takes as long as it does."""
        return f"{self.explanation.sentence}."

    @property
    def improvements(self) -> list[str]:
        """What would help, in a few words each."""
        return [str(improvement) for improvement in self.explanation.best_improvements]

    def step_view(self, index: int) -> StepView:
        """The step of one result, as its method's runtime runs it."""
        if index == self.answer:
            return self.answer_step
        return self._step_view(self.results[index])

    @cached_property
    def answer_step(self) -> StepView:
        """The answer's step."""
        return self._step_view(self.comparison.best)

    def _step_view(self, result: Result) -> StepView:
        if result.problem is not None and result.timeline is not None:
            return StepView.of(result.problem, result.plan, result.timeline)
        solver = METHODS[result.solver]() if result.solver in METHODS else None
        problem = self.problem if solver is None else simulated_problem(self.problem, solver)
        return StepView.of(problem, result.plan)

    def _index(self, wanted: Result) -> int:
        return next(index for index, result in enumerate(self.results) if result is wanted)


def comparison_of(
    results: Comparison | Result | Sequence[Result], problem: Problem | None = None
) -> Comparison:
    """A comparison of results of one problem.

    Args:
        problem: The problem, if no result knows it, as after loading from a file.

    Raises:
        PlanError: The problem is not known.
    """
    if isinstance(results, Comparison):
        return results
    listed = [results] if isinstance(results, Result) else list(results)
    if problem is None:
        known = [result.problem for result in listed if result.problem is not None]
        if not known:
            raise PlanError("the results do not know their problem: give it as problem=...")
        problem = known[0]
    return rank_cautiously(Comparison(problem, tuple(listed)))
