"""The oracle: tries every plan of tiny problems, and holds solvers and bounds to the best of them.

A seed draws a problem of up to 6 ops and 3 devices. Then

- no bound is above the best plan that fits;
- `auto` fits where any plan does, and no baseline is better; where no plan fits, no baseline is
  over memory by less;
- `exact` fits where any plan without staging buffers does, and its bound is no proof against the
  best plan;
- the time and the memory of each result are those of the reference simulator.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
from attack.tally import Tally, try_seeds
from attack.tiny_problems import best_plan, tiny_problem

from placewright import MaxEvaluations, solve
from placewright.simulator import reference
from placewright.simulator.period import reference_period
from placewright.solvers import METHODS, Auto, Exact, bound
from placewright.solvers.registry import SEARCHES
from placewright.solvers.search import RuntimeSolver
from placewright.transforms import contract

if TYPE_CHECKING:
    from placewright import Problem, Result

EVALUATIONS = 1_500  # plans that `auto` evaluates at first
MORE_EVALUATIONS = 50_000  # plans, in rounds of the usual length, before a finding is one
BASELINES_EVERY = 4  # seeds: every baseline by itself; `auto` runs most of them
FUSION_EVERY = 7
THOROUGH_EVERY = 25
EXACT_EVERY = 20
ROUNDING = 1e-9  # of a proven bound that is compared with a sum of the simulator
EXACT_WORK = 0.2  # deterministic time of CP-SAT
NOT_EVERYWHERE = {"expert", "cpu-only"}  # they need a network of the zoo, or a host


def check_seed(seed: int) -> str:
    """Check one problem; what it was, in a few words."""
    problem = tiny_problem(seed)
    best = best_plan(problem, seed)
    fits = best.key[0] == 0
    baselines = _baselines(problem) if seed % BASELINES_EVERY == 0 else {}
    for name, baseline in baselines.items():
        check_simulation(name, baseline)
    fuse = seed % FUSION_EVERY == 0
    quick = Auto(exact=False, first_evaluations=100, fuse=fuse)
    effort = ""
    try:
        _check_auto(_solve(problem, quick, EVALUATIONS), fits, baselines)
    except AssertionError:
        effort = " with more plans"
        usual = Auto(exact=False, fuse=fuse)
        _check_auto(_solve(problem, usual, MORE_EVALUATIONS), fits, baselines)
    if fits:
        _check_bound("quick", bound(problem).seconds, best.key)
        if seed % THOROUGH_EVERY == 0:
            _check_bound("thorough", bound(problem, "thorough").seconds, best.key)
    unlimited = bound(problem, fits_only=False).seconds
    assert unlimited <= best.key[1] * (1 + ROUNDING) or best.key[0], f"{unlimited} for every plan"
    if seed % EXACT_EVERY == 0 and find_spec("ortools"):
        _check_exact(problem, best.key)
    return f"{problem.objective} {'fits' if fits else 'does not fit'}{effort}"


def _solve(problem: Problem, auto: Auto, evaluations: int) -> Result:
    """What is found: the choice of a cautious plan is no property of the search."""
    return solve(problem, auto, MaxEvaluations(evaluations), cautious=False)


def _check_auto(result: Result, fits: bool, baselines: dict[str, Result]) -> None:
    check_simulation("auto", result)
    assert not (fits and result.overflow), f"auto is {result.overflow} bytes over: a plan fits"
    for name, baseline in baselines.items():
        assert result.key <= baseline.key, f"auto has {result.key}, {name} has {baseline.key}"


def _baselines(problem: Problem) -> dict[str, Result]:
    """Every method that is no search, but those that stand for another runtime."""
    results = {}
    for name in METHODS.keys() - SEARCHES - NOT_EVERYWHERE:
        solver = METHODS[name]()
        if not isinstance(solver, RuntimeSolver):
            results[name] = solve(problem, solver)
    return results


def check_simulation(name: str, result: Result) -> None:
    """Compare a result with the reference simulator."""
    problem, plan = result.problem, result.plan
    assert problem is not None
    if plan.fusion is not None:
        fused = contract(problem, plan)
        problem, plan = fused.problem, fused.plan
    a, staging = problem.arrays, None if plan.staging is None else plan.staging.tolist()
    trace = reference.run(
        a,
        problem.discipline == "in order",
        plan.placement.tolist(),
        None if plan.priority is None else plan.priority.tolist(),
        staging,
    )
    overflow = int(np.maximum(np.array(trace.peak) - a.capacity, 0).sum())
    period = reference_period(a, plan.placement.tolist(), staging, problem.overlap)
    found = (result.step_time, result.period, result.overflow)
    assert found == (trace.step_time, period, overflow), (
        f"{name} has {found}, and the reference {(trace.step_time, period, overflow)}"
    )


def _check_bound(name: str, seconds: float, best: tuple[int, float]) -> None:
    assert seconds <= best[1], f"the {name} bound is {seconds}, and a plan takes {best[1]}"


def _check_exact(problem: Problem, best: tuple[int, float]) -> None:
    result = solve(problem, Exact(deterministic=EXACT_WORK, seconds=60))
    assert best[0] or not result.overflow, f"exact is {result.overflow} bytes over: a plan fits"
    if not best[0]:
        _check_bound("exact", result.bound, best)
    if result.fits and result.gap <= 1e-6:
        assert result.objective_value <= best[1] * (1 + 1e-6), (
            f"exact proves {result.objective_value}, and a plan takes {best[1]}"
        )


def attack(first_seed: int, seconds: float) -> Tally:
    """Check problems until the time is up."""
    return try_seeds(check_seed, first_seed, seconds)
