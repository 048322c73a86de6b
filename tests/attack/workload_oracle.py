"""The oracle for workloads: tries every plan of tiny ones, and holds the solver to the best.

- The bound is not above the best plan that fits.
- The solver fits where any plan does, and no single device for all calls is better, nor the plan
  of one call with its weights imposed on the others.
- The result of each call is that of the reference simulator, and weights agree between calls.
"""

from __future__ import annotations

from attack.oracle import check_simulation
from attack.tally import Tally, try_seeds
from attack.tiny_workloads import best_workload_plan, tiny_workload

from placewright import MaxEvaluations, Workload, WorkloadResult, solve
from placewright.plan import Plan
from placewright.solvers import Auto, Balanced, Streamed
from placewright.solvers.stop import Stop
from placewright.solvers.workloads.call_plans import residency_of
from placewright.solvers.workloads.workload_search import WorkloadSearch, workload_bound
from placewright.transforms import join_calls

EVALUATIONS = 6_000  # plans of single calls, at first
MORE_EVALUATIONS = 100_000  # before a finding is one


def check_seed(seed: int) -> str:
    """Check one workload; what it was, in a few words."""
    workload = tiny_workload(seed)
    best = best_workload_plan(workload, seed)
    effort = ""
    try:
        result = solve(
            workload, Auto(first_evaluations=100), MaxEvaluations(EVALUATIONS), cautious=False
        )
        _check_result(result, best.fits)
    except AssertionError:
        effort = " with more plans"
        result = solve(workload, Auto(), MaxEvaluations(MORE_EVALUATIONS), cautious=False)
        _check_result(result, best.fits)
    for name, key in baseline_keys(workload).items():
        assert result.key <= key, f"the solver has {result.key}, {name} has {key}"
    if best.fits:
        seconds = workload_bound(workload).seconds
        assert seconds <= best.value, f"the bound is {seconds}, and a plan takes {best.value}"
        if best.complete:
            assert result.objective_value >= best.value * (1 - 1e-12)
    ratio = result.objective_value / best.value if best.fits and best.value else 1.0
    quality = "" if not best.fits else " optimal" if ratio <= 1 + 1e-9 else " above the optimum"
    return f"{'fits' if best.fits else 'does not fit'}{quality}{effort}"


def _check_result(result: WorkloadResult, fits: bool) -> None:
    for name, call in zip(result.plan.calls, result.calls, strict=True):
        check_simulation(name, call)
    assert not (fits and result.overflow), f"{result.overflow} bytes over: a plan fits"


def baseline_keys(workload: Workload) -> dict[str, tuple[int, float]]:
    """Overflow and objective of plans that anyone would try."""
    keys: dict[str, tuple[int, float]] = {}
    joint = join_calls(workload)
    search = WorkloadSearch(workload, Stop(), 0)
    for at, placement in enumerate(joint.problem.single_device_placements()):
        plans = search.judge(joint.split(Plan.of(joint.problem, placement)))
        keys[f"device {at} for all calls"] = plans.key
    for at, problem in enumerate(workload.problems):
        for solver in (Streamed(), Balanced()):
            own = solve(problem, solver).plan
            plans = search.judge_residency(residency_of(workload, at, own), {at: own})
            keys[f"{solver.name}'s weights of call {at}"] = plans.key
    return keys


def attack(first_seed: int, seconds: float) -> Tally:
    """Check tiny workloads until the time is up."""
    return try_seeds(check_seed, first_seed, seconds)
