"""Results of workloads: `solve` and `evaluate` for several calls that share their weights."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from placewright.errors import ConfigError, PlanError
from placewright.logs import log_duration
from placewright.solvers.auto import Auto
from placewright.solvers.problem_results import (
    MIN_SEARCH_SHARE,
    bound_seconds,
    evaluate_problem,
    is_uncertain,
    solve_problem,
    stop_rule,
)
from placewright.solvers.progress_display import search_progress
from placewright.solvers.search import phase_name
from placewright.solvers.workloads.workload_choice import choose_cautiously
from placewright.solvers.workloads.workload_search import WorkloadSearch, workload_bound
from placewright.solvers.workloads.workload_solver import WorkloadSolver, solve_jointly
from placewright.workload_plan import WorkloadPlan
from placewright.workload_result import WorkloadResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.plan import Plan
    from placewright.solvers.bounds import Bound
    from placewright.solvers.search import Solver
    from placewright.solvers.stop import Stop
    from placewright.solvers.workloads.call_plans import CallPlans
    from placewright.workload import Workload


def solve_workload(
    workload: Workload,
    solver: Solver,
    stop: Stop | None = None,
    seed: int = 0,
    progress: Callable[[Any], None] | bool | None = None,
    warm_start: WorkloadPlan | None = None,
    select: Literal["best"] | None = None,
    *,
    budget: str | float | None = None,
    keep_interrupted: bool = False,
    cautious: bool = True,
) -> WorkloadResult:
    """Find a plan for a workload; arguments as in `solve`."""
    if isinstance(solver, Auto) and solver.fuse:
        raise ConfigError("a workload with fused ops: ops of several calls are not fused together")
    rule = stop_rule(stop, budget)
    if len(workload) == 1:
        start = None if warm_start is None else _checked(workload, warm_start).plans[0]
        return _solve_one_call(
            workload, solver, rule, seed, progress, start, select, keep_interrupted, cautious
        )
    search = WorkloadSearch(workload, rule, seed)
    needed = sum(map(bound_seconds, workload.problems))
    full_bound = rule.seconds_left(search) >= MIN_SEARCH_SHARE * needed
    search.stop = rule.reserve(
        needed
        if full_bound
        else sum(bound_seconds(problem, full=False) for problem in workload.problems)
    )
    interrupted = False
    chosen: CallPlans | None = None
    with search_progress(progress, solver.name) as search.progress:
        try:
            if warm_start is not None:
                search.phase = "start"
                search.judge(_checked(workload, warm_start).full_plans(workload))
            if not search.over:
                with log_duration(f"{solver.name}: searching plans of {len(workload)} calls"):
                    if isinstance(solver, Auto):
                        WorkloadSolver(solver).run(search)
                    else:
                        solve_jointly(search, solver)
            seconds = search.seconds
            is_careful = cautious and select is None and isinstance(solver, Auto)
            if is_careful and any(is_uncertain(call.problem) for call in workload.calls):
                chosen = choose_cautiously(search)
        except KeyboardInterrupt:
            if search.best is None or not keep_interrupted:
                raise
            interrupted, seconds = True, search.seconds
    if search.best is None:
        raise PlanError(
            f"solver {solver.name!r} evaluated no plan: a solver must evaluate at least one"
        )
    best, found_by = search.best, search.found_by
    if chosen is not None and chosen is not best:
        best, found_by = chosen, "cautious choice"
    is_full = best.key[0] == 0 and (full_bound or search.bound_known)
    proven = search.bound if is_full else workload_bound(workload, fits_only=False)
    # Another runtime's placement is evaluated as if we ran it.
    result = _result(workload, best.workload_plan(), phase_name(solver), proven)
    return replace(
        result,
        evaluations=search.evaluations,
        seconds=seconds,
        seed=seed,
        found_by=found_by,
        history=tuple(search.history),
        interrupted=interrupted,
    )


def evaluate_workload(
    workload: Workload, plan: WorkloadPlan | WorkloadResult, name: str = "given"
) -> WorkloadResult:
    """Simulate a workload's plan that exists, call by call; arguments as in `evaluate`.

    Raises:
        PlanError: The plan is not one of this workload's, or is malformed.
    """
    started = time.perf_counter()
    saved = plan if isinstance(plan, WorkloadResult) else None
    checked = _checked(workload, plan.plan if isinstance(plan, WorkloadResult) else plan)
    result = _result(workload, checked, name if saved is None else saved.solver, None)
    seconds = time.perf_counter() - started
    if saved is None:
        history = ((len(workload), seconds, result.objective_value),)
        return replace(result, evaluations=len(workload), seconds=seconds, history=history)
    return replace(
        result,
        evaluations=saved.evaluations,
        seconds=saved.seconds,
        seed=saved.seed,
        found_by=saved.found_by,
        history=saved.history,
        options=saved.options,
        interrupted=saved.interrupted,
    )


def _checked(workload: Workload, plan: WorkloadPlan) -> WorkloadPlan:
    if not isinstance(plan, WorkloadPlan):
        raise PlanError(
            f"found {plan!r} instead of a workload's plan: make one with "
            "WorkloadPlan.of(workload, plans)"
        )
    return WorkloadPlan.of(workload, dict(zip(plan.calls, plan.plans, strict=True)))


def _solve_one_call(
    workload: Workload,
    solver: Solver,
    stop: Stop,
    seed: int,
    progress: Callable[[Any], None] | bool | None,
    warm_start: Plan | None,
    select: Literal["best"] | None,
    keep_interrupted: bool,
    cautious: bool,
) -> WorkloadResult:
    """One call is a problem by itself: the same plan as without a workload."""
    call = workload.calls[0]
    result = solve_problem(
        call.problem,
        solver,
        stop,
        seed,
        progress,
        warm_start,
        select,
        keep_interrupted=keep_interrupted,
        cautious=cautious,
    )
    plan = WorkloadPlan.of(workload, [result.plan])
    return WorkloadResult(
        solver=result.solver,
        plan=plan,
        calls=(result,),
        counts=(float(call.count),),
        bound=result.bound * call.count,
        bound_name=result.bound_name,
        evaluations=result.evaluations,
        seconds=result.seconds,
        seed=seed,
        found_by=result.found_by,
        history=tuple((count, at, best * call.count) for count, at, best in result.history),
        workload=workload,
        interrupted=result.interrupted,
    )


def _result(
    workload: Workload, plan: WorkloadPlan, name: str, proven: Bound | None
) -> WorkloadResult:
    calls = tuple(
        evaluate_problem(problem, full_plan, name)
        for problem, full_plan in zip(workload.problems, plan.full_plans(workload), strict=True)
    )
    result = WorkloadResult(
        solver=name,
        plan=plan,
        calls=calls,
        counts=tuple(workload.counts.tolist()),
        bound=0.0,
        bound_name="",
        evaluations=0,
        seconds=0.0,
        seed=0,
        workload=workload,
    )
    if proven is None:
        proven = workload_bound(workload, fits_only=result.fits)
        if any(each.fusion is not None for each in plan.plans):  # of the ops that are really run
            seconds = sum(
                count * call.bound for count, call in zip(result.counts, calls, strict=True)
            )
            proven = replace(proven, seconds=min(proven.seconds, seconds))
    return replace(result, bound=proven.seconds, bound_name=proven.name)
