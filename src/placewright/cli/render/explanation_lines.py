"""Explains why a plan takes as long as it does, in two lines or as JSON."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placewright.explanations import Explanation
    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.result import Result
    from placewright.simulator import CriticalPath
    from placewright.solvers import Solver

MAX_REFINED_OPS = 5_000  # ops up to which plans for what-ifs are made by a short search each
MAX_SEGMENTS = 10  # pieces of the critical path that JSON tells; all of them would be a trace


def explain_result(problem: Problem, result: Result, solver: Solver) -> Explanation:
    """Why a method's plan takes so long.

    A method that stands for another runtime plans again itself; from a plan of `auto` it goes on.
    """
    from placewright import explanations, solvers

    replan = None
    if hasattr(solver, "as_executed"):
        replan = partial(_replan, solver)
    elif (
        solver.name == "auto"
        and len(problem.graph) <= MAX_REFINED_OPS
        and result.plan.fusion is None
    ):
        replan = partial(solvers.refine, plan=result.plan)
    return explanations.explain(problem, result, replan)


def reason_lines(explanation: Explanation) -> list[str]:
    """What binds, and what would help."""
    lines = [f"why: {explanation.sentence}"]
    improvements = "; ".join(str(improvement) for improvement in explanation.best_improvements)
    return [*lines, f"what would help: {improvements}"] if improvements else lines


def explanation_data(problem: Problem, explanation: Explanation) -> dict[str, Any]:
    """An explanation in seconds and bytes."""
    return {
        "sentence": explanation.sentence,
        "shares": [
            {
                "kind": each.kind,
                "where": each.location,
                "seconds": each.seconds,
                "share": each.fraction,
            }
            for each in explanation.shares
        ],
        "waits": {}
        if explanation.critical_path is None
        else dict(explanation.critical_path.waits()),
        "longest": []
        if explanation.critical_path is None
        else _longest_segments(problem, explanation.critical_path),
        "helps": [
            {
                "change": each.change,
                "kind": each.kind,
                "where": each.location,
                "before": each.before,
                "after": each.after,
                "gain": each.gain,
                "overflow_before": each.overflow_before,
                "overflow_after": each.overflow_after,
                "same_plan": each.same_plan,
            }
            for each in explanation.improvements
        ],
    }


def _longest_segments(problem: Problem, path: CriticalPath) -> list[dict[str, Any]]:
    names = [device.name for device in problem.cluster.devices]
    segments = sorted(path.segments, key=lambda segment: (-segment.seconds, segment.start))[
        :MAX_SEGMENTS
    ]
    return [
        {
            "kind": segment.kind,
            "op": path.op_names[segment.op],
            "from": names[segment.source],
            "to": names[segment.device],
            "start": segment.start,
            "seconds": segment.seconds,
            "held": segment.wait_reason,
        }
        for segment in segments
    ]


def _replan(solver: Solver, problem: Problem) -> Plan:
    from placewright.solvers import Search, Stop

    search = Search(problem, Stop(), seed=0)
    solver.run(search)
    assert search.best is not None
    return search.best
