"""Why: a problem and a plan in, what its time goes into, why that is so and what would help out.

Every number is computed: shares from the critical path of the step or the loads of the period,
gains by judging plans again under a changed cluster (`what_if.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from placewright import simulator
from placewright.explanations import text as words
from placewright.explanations.breakdown import Seen, Share
from placewright.explanations.what_if import (
    Help,
    Replan,
    WhatIf,
)
from placewright.result import Result
from placewright.solvers.bounds import Bound

if TYPE_CHECKING:
    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.simulator import Path


@dataclass(frozen=True)
class Why:
    """Why a plan takes as long as it does.

    Args:
        sentence: What binds, in one plain sentence.
        shares: What the time goes into, the largest part first.
        path: The critical path; None if the objective is the period.
        helps: What would help, the largest gain first.
    """

    sentence: str
    shares: tuple[Share, ...]
    path: Path | None
    helps: tuple[Help, ...]

    @property
    def best_helps(self) -> list[Help]:
        """The best of each kind, the largest gain first: equal devices gain the same.

        Another plan goes before all: the others begin where it ends.
        """
        best: dict[str, Help] = {}
        for each in sorted(self.helps, key=lambda each: each.kind != "plan"):
            best.setdefault(each.kind, each)
        return list(best.values())

    def __str__(self) -> str:
        return "\n".join([self.sentence, *(str(each) for each in self.best_helps)])


def explain(problem: Problem, plan: Plan | Result, replan: Replan | None = None) -> Why:
    """What binds a plan, and what would help.

    Args:
        plan: A plan of the problem, or a result, whose bound is then taken.
        replan: Makes a plan for a problem whose arrays may have changed, to see what a better
            cluster would be worth to a new plan; without it quick ones are tried.
    """
    proven = None
    if isinstance(plan, Result):
        proven, plan = Bound(plan.bound, plan.bound_name), plan.plan
    seen = Seen(problem, plan, simulator.simulate(problem, plan), proven)
    helps = WhatIf.of(problem, plan, replan).helps(seen.timeline, *seen.spent)
    path = seen.path if problem.objective == "step" else None
    return Why(words.sentence(seen), seen.shares, path, helps)
