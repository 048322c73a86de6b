"""Why a plan takes as long as it does: an explanation in, two lines or JSON out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placewright.explanations import Why
    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.result import Result
    from placewright.simulator import Path
    from placewright.solvers import Solver

MOST_REFINED = 5_000  # ops up to which plans for what-ifs are made by a short search each
LONGEST = 10  # pieces of the critical path that JSON tells; all of them would be a trace


def explained(problem: Problem, result: Result, solver: Solver) -> Why:
    """Why a method's plan takes so long.

    A method that stands for another runtime plans again itself; from a plan of `auto` it goes on.
    """
    from placewright import explanations, solvers

    replan = None
    if hasattr(solver, "as_run"):
        replan = partial(_plan_again, solver)
    elif (
        solver.name == "auto" and len(problem.graph) <= MOST_REFINED and result.plan.fusion is None
    ):
        replan = partial(solvers.refined, plan=result.plan)
    return explanations.explain(problem, result, replan)


def why_lines(why: Why) -> list[str]:
    """What binds, and what would help."""
    lines = [f"why: {why.sentence}"]
    helps = "; ".join(str(each) for each in why.best_helps)
    return [*lines, f"what would help: {helps}"] if helps else lines


def why_data(problem: Problem, why: Why) -> dict[str, Any]:
    """An explanation in seconds and bytes."""
    return {
        "sentence": why.sentence,
        "shares": [
            {"kind": each.kind, "where": each.where, "seconds": each.seconds, "share": each.share}
            for each in why.shares
        ],
        "waits": {} if why.path is None else dict(why.path.waits()),
        "longest": [] if why.path is None else _longest(problem, why.path),
        "helps": [
            {
                "change": each.change,
                "kind": each.kind,
                "where": each.where,
                "before": each.before,
                "after": each.after,
                "gain": each.gain,
                "overflow_before": each.over_before,
                "overflow_after": each.over_after,
                "same_plan": each.same_plan,
            }
            for each in why.helps
        ],
    }


def _longest(problem: Problem, path: Path) -> list[dict[str, Any]]:
    names = [device.name for device in problem.cluster.devices]
    pieces = sorted(path.pieces, key=lambda piece: (-piece.seconds, piece.start))[:LONGEST]
    return [
        {
            "kind": piece.kind,
            "op": path.names[piece.op],
            "from": names[piece.source],
            "to": names[piece.device],
            "start": piece.start,
            "seconds": piece.seconds,
            "held": piece.held,
        }
        for piece in pieces
    ]


def _plan_again(solver: Solver, problem: Problem) -> Plan:
    from placewright.solvers import Search, Stop

    search = Search(problem, Stop(), seed=0)
    solver.run(search)
    assert search.best is not None
    return search.best
