"""Uses what was accepted: judges plans, solves with a tiny budget, renders pages and traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from placewright import Cluster, Graph, Plan, Problem, judge, solve, solvers
from placewright.reporting import html_page
from placewright.reporting.content import PageContent
from placewright.reporting.trace import chrome_trace
from placewright.solvers import Comparison
from placewright.solvers.results import timeline_of

if TYPE_CHECKING:
    from placewright.errors import PlacewrightError

SMALL_CLUSTER = Cluster.parse("2xP100+cpu")


def use_graph(graph: Graph, seed: int) -> str:
    """Place a graph on a small cluster."""
    return use_problem(Problem(graph, SMALL_CLUSTER), seed)


def use_problem(problem: Problem, seed: int) -> str:
    """Judge, solve and show a problem; the deeper the rarer. Says what came of it."""
    rows = np.zeros((2, len(problem.graph)), dtype=np.int32)
    rows[1] = np.arange(len(problem.graph)) % len(problem.cluster)
    judge(problem, problem.legalize(rows))
    if seed % 10 == 0:
        result = solve(problem, solvers.METHODS["heft"]())
        if seed % 100 == 0:
            result = solve(problem, solvers.METHODS["auto"](), solvers.MaxEvaluations(60))
        show(problem, result)
    return "accepted"


def show(problem: Problem, result: Any) -> None:
    """Render the page and the trace of a result."""
    comparison = Comparison(problem, (result,), name=problem.graph.name)
    page = html_page(PageContent.of(comparison))
    assert "<script>alert" not in page
    chrome_trace(problem, timeline_of(problem, result))


def use_plan(problem: Problem, plan: Plan) -> None:
    """Fit a plan onto a problem and evaluate it."""
    from placewright.files import plan_for

    solvers.evaluate(problem, plan_for(problem, plan))


def refused(error: PlacewrightError) -> str:
    """The outcome of a refusal, whose text must be one line."""
    text = str(error)
    assert text, f"an empty {type(error).__name__}"
    assert len(text.splitlines()) == 1, text
    return "refused"
