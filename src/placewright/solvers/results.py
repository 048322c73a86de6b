"""Results: `solve` runs a solver on a problem or workload, `evaluate` simulates a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from placewright.errors import ConfigError
from placewright.solvers.auto import Auto
from placewright.solvers.problem_results import evaluate_problem, solve_problem
from placewright.solvers.problem_results import timeline_of as timeline_of
from placewright.solvers.workloads.workload_results import evaluate_workload, solve_workload
from placewright.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.result import Result
    from placewright.solvers.best_plans import Candidate
    from placewright.solvers.search import Search, Solver
    from placewright.solvers.stop import Stop
    from placewright.workers import Workers
    from placewright.workload_plan import WorkloadPlan
    from placewright.workload_result import WorkloadResult

DEFAULT_BUDGET = "30s"
"""Time budget of `solve` without a solver, a stop rule and a budget."""


@overload
def solve(
    problem: Problem,
    solver: Solver | None = None,
    stop: Stop | None = None,
    seed: int = 0,
    progress: Callable[[Any], None] | bool | None = None,
    warm_start: Plan | None = None,
    select: Callable[[Search], Candidate] | Literal["best"] | None = None,
    *,
    budget: str | float | None = None,
    keep_interrupted: bool = False,
    cautious: bool = True,
    workers: Workers | str | int | None = None,
) -> Result: ...
@overload
def solve(
    problem: Workload,
    solver: Solver | None = None,
    stop: Stop | None = None,
    seed: int = 0,
    progress: Callable[[Any], None] | bool | None = None,
    warm_start: WorkloadPlan | None = None,
    select: Literal["best"] | None = None,
    *,
    budget: str | float | None = None,
    keep_interrupted: bool = False,
    cautious: bool = True,
    workers: Workers | str | int | None = None,
) -> WorkloadResult: ...


def solve(
    problem: Problem | Workload,
    solver: Solver | None = None,
    stop: Stop | None = None,
    seed: int = 0,
    progress: Callable[[Any], None] | bool | None = None,
    warm_start: Any = None,
    select: Callable[[Search], Candidate] | Literal["best"] | None = None,
    *,
    budget: str | float | None = None,
    keep_interrupted: bool = False,
    cautious: bool = True,
    workers: Workers | str | int | None = None,
) -> Result | WorkloadResult:
    """Find a plan. This is what `placewright place --fresh` does: no stored plan is read.

    The same problem, solver, seed, warm start and number of evaluations give the same plan.

    Args:
        problem: A problem, or a workload of several calls, whose result is a `WorkloadResult`.
        solver: The search method; `Auto()` by default. Another method than that is run on all
            calls of a workload, joined into one problem.
        stop: When to stop, e.g. `MaxEvaluations(1000)`.
        seed: Random seed.
        progress: Called with the search after each batch of plans; True to show a bar in a notebook
            or lines on stderr, False to show nothing. By default a notebook shows a bar.
        warm_start: A plan that is evaluated first, so that the result is no worse.
        select: Chooses one of `search.top_plans`, e.g. `RobustChoice()`; `"best"` takes the best by
            simulation. By default that is also taken, except that `Auto` chooses cautiously.
        budget: Time budget: seconds, or text such as `"30s"`. It is joined with `stop`. Without a
            solver, a stop rule and a budget it is 30 s; a given solver without either runs to its
            own end.
        keep_interrupted: On Ctrl-C, return the best plan so far (`Result.interrupted`) instead of
            raising KeyboardInterrupt.
        cautious: Whether `Auto`, without a `select`, chooses cautiously (`CautiousChoice`): where
            costs are estimates, a model that fits one device is split only if the gain survives
            slow hand-overs and a slow host (`Result.notes` says so); where op times were measured,
            ops are left to a host beside a GPU only if that gains enough.
        workers: Workers that share large batches of plans, or text such as `"processes:8"`; the
            plan is the same with any.

    A solver that stands for another runtime (`RuntimeSolver`) is evaluated on the problem as that
    runtime runs it. The bound is that of the given problem.
    """
    if solver is None:
        if stop is None and budget is None:
            budget = DEFAULT_BUDGET
        solver = Auto()
    if isinstance(solver, type) or not hasattr(solver, "run"):
        description = f"the class {solver.__name__}" if isinstance(solver, type) else repr(solver)
        raise ConfigError(f"expected a solver such as solvers.Auto(), found {description}")
    if not isinstance(problem, Workload):
        return solve_problem(
            problem,
            solver,
            stop,
            seed,
            progress,
            warm_start,
            select,
            budget=budget,
            keep_interrupted=keep_interrupted,
            cautious=cautious,
            workers=workers,
        )
    if workers is not None:
        raise ConfigError("workers with a workload: they are for one problem")
    if callable(select):
        raise ConfigError("select with a workload: it chooses among plans of one problem")
    return solve_workload(
        problem,
        solver,
        stop,
        seed,
        progress,
        warm_start,
        select,
        budget=budget,
        keep_interrupted=keep_interrupted,
        cautious=cautious,
    )


@overload
def evaluate(problem: Problem, plan: Plan | Result, name: str = "given") -> Result: ...
@overload
def evaluate(
    problem: Workload, plan: WorkloadPlan | WorkloadResult, name: str = "given"
) -> WorkloadResult: ...


def evaluate(
    problem: Problem | Workload, plan: Any, name: str = "given"
) -> Result | WorkloadResult:
    """Simulate a plan that exists.

    Args:
        plan: A plan of this problem or workload. A result keeps its method, its effort and its
            history, and gets the figures that its plan has on this problem now.
        name: The method of a bare plan, for tables and reports.

    Raises:
        PlanError: The plan is not one of this problem's, or is malformed.
    """
    if isinstance(problem, Workload):
        return evaluate_workload(problem, plan, name)
    return evaluate_problem(problem, plan, name)
