"""Explanation: what a plan's time goes into, why that is so, and what would help.

Every number is computed: shares from the critical path of the step or the loads of the period,
gains by evaluating plans again under a changed cluster (`what_if.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.explanations import text as words
from placewright.explanations.breakdown import Breakdown, TimeShare
from placewright.explanations.what_if import (
    Improvement,
    Replan,
    WhatIf,
)
from placewright.html_tables import html_card, html_table
from placewright.logs import log_duration
from placewright.result import Result
from placewright.solvers import METHODS, Auto, RuntimeSolver, Search, Stop, refine
from placewright.solvers.bounds import Bound
from placewright.solvers.results import evaluate, timeline_of
from placewright.units import format_percent, format_seconds

if TYPE_CHECKING:
    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.simulator import CriticalPath
    from placewright.solvers import Solver

_SLOW_HOST = 1.6  # times as long, as in `solvers.cautious_choice`
_MAX_REPLACEMENTS = 3  # of a result by a better plan that explaining finds
_SHARE_NAMES = {
    "compute": "computing",
    "send": "transfers",
    "stream": "streamed weights",
    "issue": "launching",
}
MAX_REFINED_OPS = 5_000
"""Ops up to which plans for a changed cluster are made by a short search each."""


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

        Another plan comes first, since the other gains are relative to it.
        """
        best: dict[str, Improvement] = {}
        for improvement in sorted(
            self.improvements, key=lambda improvement: improvement.kind != "plan"
        ):
            best.setdefault(improvement.kind, improvement)
        return list(best.values())

    @property
    def better_plan(self) -> Plan | None:
        """A plan that is clearly better on the same cluster, if explaining has found one."""
        return next((each.plan for each in self.improvements if each.plan is not None), None)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        shares = [
            (
                _SHARE_NAMES[share.kind],
                share.location,
                format_seconds(share.seconds),
                format_percent(share.fraction),
            )
            for share in self.shares
        ]
        improvements = [(str(improvement),) for improvement in self.best_improvements]
        tables = [html_table(("time in", "on", "seconds", "of all"), shares, 2)] if shares else []
        tables += [html_table(("what would help",), improvements)] if improvements else []
        return html_card(self.sentence, (), *tables)

    def __str__(self) -> str:
        return "\n".join(
            [self.sentence, *(str(improvement) for improvement in self.best_improvements)]
        )


def explain(
    problem: Problem,
    plan: Plan | Result,
    replan: Replan | None = None,
    *,
    improvements: bool = True,
) -> Explanation:
    """What binds a plan, and what would help.

    Args:
        plan: A plan of the problem, or a result. A result's bound and timeline are used, and a
            result of a method that stands for another runtime is explained as that runtime runs it.
        replan: Makes a plan for a problem whose arrays may have changed, to see what a better
            cluster would be worth to a new plan. By default a method that stands for another
            runtime plans again, a plan of `auto` is refined, and quick plans are made otherwise.
        improvements: Whether to look for what would help; it takes a dozen short searches.
    """
    known_bound, timeline = None, None
    if isinstance(plan, Result):
        result = plan
        known_bound, plan = Bound(result.bound, result.bound_name), result.plan
        solver = METHODS[result.solver]() if result.solver in METHODS else None
        if isinstance(solver, RuntimeSolver):
            replan = replan or partial(_run_solver, solver)
            problem = result.problem or solver.as_executed(problem)
        elif result.solver == Auto.name and _is_refinable(problem, plan):
            replan = replan or partial(refine, plan=plan)
        timeline = timeline_of(problem, result)
    breakdown = Breakdown(
        problem,
        plan,
        simulator.simulate(problem, plan) if timeline is None else timeline,
        known_bound,
    )
    helpful: tuple[Improvement, ...] = ()
    if improvements:
        what_if = WhatIf.of(problem, plan, replan)
        with log_duration("searching what would help"):
            helpful = what_if.improvements(breakdown.timeline, *breakdown.busy_seconds)
    critical_path = breakdown.critical_path if problem.objective == "step" else None
    return Explanation(words.sentence(breakdown), breakdown.shares, critical_path, helpful)


def explain_best(problem: Problem, result: Result) -> tuple[Result, Explanation]:
    """Explain a result; a better plan that is found on the way takes the place of its plan.

    It is taken only if it is also better with a slower host: what a host computes next to other
    devices is the least certain of all predictions.
    """
    explanation = explain(problem, result)
    for _ in range(_MAX_REPLACEMENTS):
        plan = explanation.better_plan
        if plan is None or not _is_better_with_slow_host(problem, plan, result.plan):
            break
        better = evaluate(problem, plan, result.solver)
        if better.fits and result.fits and result.bound > better.bound:
            better = replace(better, bound=result.bound, bound_name=result.bound_name)
        milestone = result.evaluations, result.seconds, better.objective_value
        result = replace(
            better,
            evaluations=result.evaluations,
            seconds=result.seconds,
            seed=result.seed,
            found_by="refined",
            history=(*result.history, milestone),
            options=result.options,
            notes=result.notes,
        )
        explanation = explain(problem, result)
    return result, explanation


def _is_better_with_slow_host(problem: Problem, plan: Plan, reference: Plan) -> bool:
    """Whether a plan is better than another also where hosts compute more slowly."""
    a = problem.arrays
    if a.is_host.all() or not a.is_host.any():
        return True
    if plan.fusion is not None or reference.fusion is not None:  # whose times are not in the arrays
        on_host = a.scheduled & a.is_host[plan.placement]
        return not (on_host & ~a.is_host[reference.placement]).any()
    slow = problem.with_arrays(compute=np.where(a.is_host, a.compute * _SLOW_HOST, a.compute))
    keys = []
    for each in (plan, reference):
        verdict = simulator.judge(slow, each.placement, each.priority, each.staging)
        keys.append((int(verdict.overflow[0]), float(verdict.value[0])))
    return keys[0] < keys[1]


def _is_refinable(problem: Problem, plan: Plan) -> bool:
    return len(problem.graph) <= MAX_REFINED_OPS and plan.fusion is None


def _run_solver(solver: Solver, problem: Problem) -> Plan:
    search = Search(problem, Stop(), seed=0)
    solver.run(search)
    assert search.best is not None
    return search.best
