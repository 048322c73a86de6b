"""Results of one problem: runs a solver on it, and simulates plans that exist."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from placewright import simulator
from placewright.costs import Roofline, Table
from placewright.errors import PlanError
from placewright.logs import log_duration
from placewright.result import DeviceUse, Result
from placewright.solvers.auto import Auto
from placewright.solvers.bounds import bound
from placewright.solvers.cautious_choice import CautiousChoice
from placewright.solvers.islands import Islands
from placewright.solvers.progress_display import search_progress
from placewright.solvers.registry import METHODS
from placewright.solvers.search import Search, simulated_problem
from placewright.solvers.stop import MaxTime, Stop
from placewright.transforms import contract
from placewright.units import parse_seconds
from placewright.workers import as_workers

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.solvers.best_plans import Candidate
    from placewright.solvers.bounds import Bound
    from placewright.solvers.search import Solver
    from placewright.timeline import Timeline
    from placewright.workers import Workers


_FULL_BOUND_SECONDS = 1.5e-4  # seconds per op of a bound that accounts for memory
_QUICK_BOUND_SECONDS = 5e-5  # without memory
MIN_SEARCH_SHARE = 4.0
"""Budgets below this many times the bound's seconds get the bound without memory."""


def solve_problem(
    problem: Problem,
    solver: Solver,
    stop: Stop | None = None,
    seed: int = 0,
    progress: Callable[[Search], None] | bool | None = None,
    warm_start: Plan | None = None,
    select: Callable[[Search], Candidate] | Literal["best"] | None = None,
    *,
    budget: str | float | None = None,
    keep_interrupted: bool = False,
    cautious: bool = True,
    workers: Workers | str | int | None = None,
) -> Result:
    """Find a plan for one problem; arguments as in `solve`."""
    if select is None and cautious and isinstance(solver, Auto | Islands) and is_uncertain(problem):
        select = CautiousChoice()
    original, problem = problem, simulated_problem(problem, solver)
    stop = stop_rule(stop, budget)
    search = Search(problem, stop, seed)
    full_bound = stop.seconds_left(search) >= MIN_SEARCH_SHARE * bound_seconds(problem)
    search.stop = stop.reserve(bound_seconds(problem, full_bound))
    interrupted = False
    chosen: Candidate | None = None
    with (
        as_workers(workers) as search.workers,
        search_progress(progress, solver.name) as search.progress,
    ):
        try:
            if warm_start is not None:
                search.phase = "start"
                search.judge_plan(warm_start)
                search.phase = ""
            if not search.over:
                ops, cluster = len(problem.graph), problem.cluster.name
                with log_duration(f"{solver.name}: searching plans of {ops:,} ops on {cluster}"):
                    solver.run(search)
            seconds = search.seconds
            if search.best is not None and callable(select):
                with log_duration(f"{solver.name}: choosing among the best plans"):
                    chosen = select(search)
        except KeyboardInterrupt:
            if search.best is None or not keep_interrupted:
                raise
            interrupted, seconds = True, search.seconds
    if search.best is None:
        raise PlanError(
            f"solver {solver.name!r} evaluated no plan: a solver must evaluate at least one"
        )
    plan, found_by = search.best, search.found_by
    if chosen is not None:
        plan, found_by = chosen.plan, chosen.found_by
    notes = (chosen.note,) if chosen is not None and chosen.note else ()
    timeline = simulator.simulate(problem, plan)
    # The bound holds for the ops that are really run, and some bounds for plans that fit only.
    with log_duration(f"{solver.name}: proving a lower bound"):
        if plan.fusion is None and timeline.fits and problem is original:
            proven_bound = search.bound if full_bound or search.bound_known else search.quick_bound
        else:
            proven_bound = _plan_bound(original, plan, timeline.fits and full_bound)
    result = _result(problem, timeline, solver.name, proven_bound)
    return replace(
        result,
        evaluations=search.evaluations,
        seconds=seconds,
        seed=seed,
        found_by=found_by,
        history=tuple(search.history),
        interrupted=interrupted,
        notes=notes,
    )


def evaluate_problem(problem: Problem, plan: Plan | Result, name: str = "given") -> Result:
    """Simulate a plan of one problem; arguments as in `evaluate`."""
    started = time.perf_counter()
    saved, executed = None, problem
    if isinstance(plan, Result):
        saved = plan
        plan, name = saved.plan, saved.solver
        executed = simulated_problem(problem, METHODS[name]()) if name in METHODS else problem
    timeline = simulator.simulate(executed, plan)
    seconds = time.perf_counter() - started
    result = _result(executed, timeline, name, _plan_bound(problem, plan, timeline.fits))
    if saved is None:
        history = ((1, seconds, result.objective_value),)
        return replace(result, evaluations=1, seconds=seconds, history=history)
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


def stop_rule(stop: Stop | None, budget: str | float | None) -> Stop:
    """A stop rule joined with a time budget.

    Raises:
        ConfigError: The budget is no time.
    """
    if budget is None:
        return Stop() if stop is None else stop
    limit = MaxTime(parse_seconds(budget) if isinstance(budget, str) else budget)
    return limit if stop is None else stop | limit


def timeline_of(problem: Problem, result: Result) -> Timeline:
    """The timeline of a result's plan on this problem, simulated if the result has none."""
    if result.timeline is not None and result.problem is problem:
        return result.timeline
    return simulator.simulate(problem, result.plan)


def is_uncertain(problem: Problem) -> bool:
    """Whether costs are estimates, or were measured op by op on a machine."""
    costs = problem.costs
    return isinstance(costs, Roofline) or (isinstance(costs, Table) and bool(costs.machine))


def _plan_bound(problem: Problem, plan: Plan, fits_only: bool) -> Bound:
    bounded_problem = problem if plan.fusion is None else contract(problem, plan).problem
    return bound(bounded_problem, fits_only=fits_only)


def bound_seconds(problem: Problem, full: bool = True) -> float:
    """About the seconds that the bound takes, with or without the one of memory."""
    return problem.arrays.ops * (_FULL_BOUND_SECONDS if full else _QUICK_BOUND_SECONDS)


def _result(problem: Problem, timeline: Timeline, name: str, proven_bound: Bound) -> Result:
    return Result(
        solver=name,
        plan=timeline.plan,
        objective=problem.objective,
        step_time=timeline.step_time,
        period=timeline.period,
        bound=proven_bound.seconds,
        bound_name=proven_bound.name,
        overflow=timeline.overflow,
        evaluations=0,
        seconds=0.0,
        seed=0,
        devices=_device_uses(problem, timeline),
        problem=problem,
        timeline=timeline,
    )


def _device_uses(problem: Problem, timeline: Timeline) -> tuple[DeviceUse, ...]:
    counts = np.bincount(timeline.plan.placement, minlength=len(problem.cluster))
    busy = timeline.busy
    return tuple(
        DeviceUse(
            name=device.name,
            ops=int(counts[index]),
            busy=float(busy[index]),
            peak=int(timeline.peak[index]),
            limit=int(timeline.capacity[index]),
            reserve=device.reserve,
        )
        for index, device in enumerate(problem.cluster.devices)
    )
