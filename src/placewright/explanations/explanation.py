"""Explanation: what a plan's time goes into, why that is so, and what would help.

Every number is computed: shares from the critical path of the step or the loads of the period,
gains by judging plans again under a changed cluster (`what_if.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from placewright import simulator
from placewright.explanations import text as words
from placewright.explanations.breakdown import Breakdown, TimeShare
from placewright.explanations.what_if import (
    Improvement,
    Replan,
    WhatIf,
)
from placewright.result import Result
from placewright.solvers.bounds import Bound

if TYPE_CHECKING:
    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.simulator import CriticalPath


@dataclass(frozen=True)
class Explanation:
    """Why a plan takes as long as it does.

    Args:
        sentence: What binds, in one plain sentence.
        shares: What the time goes into, the largest part first.
        critical_path: The critical path; None if the objective is the period.
        improvements: What would help, the largest gain first.
    """

    sentence: str
    shares: tuple[TimeShare, ...]
    critical_path: CriticalPath | None
    improvements: tuple[Improvement, ...]

    @property
    def best_improvements(self) -> list[Improvement]:
        """The best of each kind, the largest gain first: equal devices gain the same.

        Another plan goes before all: the others begin where it ends.
        """
        best: dict[str, Improvement] = {}
        for improvement in sorted(
            self.improvements, key=lambda improvement: improvement.kind != "plan"
        ):
            best.setdefault(improvement.kind, improvement)
        return list(best.values())

    def __str__(self) -> str:
        return "\n".join(
            [self.sentence, *(str(improvement) for improvement in self.best_improvements)]
        )


def explain(problem: Problem, plan: Plan | Result, replan: Replan | None = None) -> Explanation:
    """What binds a plan, and what would help.

    Args:
        plan: A plan of the problem, or a result, whose bound is then taken.
        replan: Makes a plan for a problem whose arrays may have changed, to see what a better
            cluster would be worth to a new plan; without it quick ones are tried.
    """
    known_bound = None
    if isinstance(plan, Result):
        known_bound, plan = Bound(plan.bound, plan.bound_name), plan.plan
    breakdown = Breakdown(problem, plan, simulator.simulate(problem, plan), known_bound)
    improvements = WhatIf.of(problem, plan, replan).improvements(
        breakdown.timeline, *breakdown.busy_seconds
    )
    critical_path = breakdown.critical_path if problem.objective == "step" else None
    return Explanation(words.sentence(breakdown), breakdown.shares, critical_path, improvements)
