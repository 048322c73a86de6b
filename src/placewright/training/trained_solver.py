"""Learned: a recipe as a method, so that a policy can be run wherever a solver can."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from placewright.plan import Plan
from placewright.solvers import solve
from placewright.training.environment import Environment, from_verdict
from placewright.training.trainer import Trainer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.result import Result
    from placewright.solvers import Search
    from placewright.training.environment import Judged
    from placewright.training.recipes.base import Recipe


@dataclass(frozen=True)
class Learned:
    """Trains a fresh policy on the problem; the search keeps the best plan that it makes.

    Args:
        plans: Plans to judge; the stop rule may end it before.
    """

    recipe: Recipe
    plans: int = 5000

    @property
    def name(self) -> str:
        return self.recipe.name

    def run(self, search: Search) -> None:
        def measure(
            problem: Problem,
            device: NDArray[np.int32],
            priority: NDArray[np.float64] | None = None,
        ) -> Judged:
            return from_verdict(problem, search.judge(device, priority))

        trainer = Trainer(
            [Environment(search.problem, measure)], self.recipe, search.seed, self.plans
        )
        trainer.run(lambda _: not search.over)


@dataclass(frozen=True, eq=False)
class _Kept:
    """A plan that is there already, as a method."""

    name: str
    plan: Plan

    def run(self, search: Search) -> None:
        search.propose(self.plan)


def result_of(trainer: Trainer, at: int = 0) -> Result:
    """The best plan that training has found for one of its problems, judged by the simulator."""
    environment = trainer.environments[at]
    if environment.best is None:
        raise ValueError("no plan has been judged yet")
    plan = Plan.of(environment.problem, environment.best, environment.order)
    judged = solve(environment.problem, _Kept(trainer.recipe.name, plan), seed=trainer.seed)
    return replace(
        judged,
        evaluations=environment.evaluations,
        seconds=environment.seconds,
        found_by=environment.found_by,
        history=tuple(environment.history),
    )
