"""A recipe as a solver: trains a fresh policy on the problem it solves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from placewright.plan import Plan
from placewright.solvers import solve
from placewright.training.environment import from_verdict
from placewright.training.trainer import Trainer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from placewright.outcome import Outcome
    from placewright.problem import Problem
    from placewright.result import Result
    from placewright.solvers import Search
    from placewright.training.recipes.base import Recipe


@dataclass(frozen=True)
class TrainedSolver:
    """Trains a fresh policy on the problem; the search keeps the best plan that it makes.

    Args:
        max_evaluations: Plans to judge; the stop rule may end it before.
    """

    recipe: Recipe
    max_evaluations: int = 5000

    @property
    def name(self) -> str:
        return self.recipe.name

    def run(self, search: Search) -> None:
        def measure(
            problem: Problem,
            placements: NDArray[np.int32],
            priority: NDArray[np.float64] | None = None,
        ) -> Outcome:
            return from_verdict(problem, search.judge(placements, priority))

        trainer = Trainer(
            [self.recipe.environment(search.problem, measure)],
            self.recipe,
            search.seed,
            self.max_evaluations,
        )
        trainer.run(lambda _: not search.over)


@dataclass(frozen=True, eq=False)
class _FixedPlan:
    """A plan that is there already, as a method."""

    name: str
    plan: Plan

    def run(self, search: Search) -> None:
        search.judge_plan(self.plan)


def training_result(trainer: Trainer, index: int = 0) -> Result:
    """The best plan that training has found for one of its problems, judged by the simulator."""
    environment = trainer.environments[index]
    if environment.best_placement is None:
        raise ValueError("no plan has been judged yet")
    plan = Plan.of(
        environment.problem,
        environment.best_placement,
        environment.best_priority,
        fusion=environment.best_fusion,
    )
    result = solve(environment.problem, _FixedPlan(trainer.recipe.name, plan), seed=trainer.seed)
    return replace(
        result,
        evaluations=environment.evaluations,
        seconds=environment.seconds,
        found_by=environment.found_by,
        history=tuple(environment.history),
    )
