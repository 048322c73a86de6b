"""A recipe as a solver: trains a fresh policy on the problem it solves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from placewright.plan import Plan
from placewright.solvers import evaluate
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
        max_evaluations: Plans to judge; the stop rule may end it earlier.
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

        environment = self.recipe.environment(search.problem, measure)
        trainer = Trainer([environment], self.recipe, search.seed, self.max_evaluations)
        trainer.run(lambda _: not search.over)


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
    return replace(
        evaluate(environment.problem, plan, trainer.recipe.name),
        seed=trainer.seed,
        evaluations=environment.evaluations,
        seconds=environment.seconds,
        found_by=environment.found_by,
        history=tuple(environment.history),
    )
