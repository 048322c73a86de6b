"""Selects a workload's plan cautiously where op times were measured, as `CautiousChoice` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.plan_batch import PlanBatch
from placewright.solvers.cautious_choice import SLOW_HOST, host_matters, scale_host
from placewright.solvers.pessimistic_costs import PessimisticCosts
from placewright.solvers.workloads.call_plans import (
    CallPlan,
    CallPlans,
    pin_weights,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.solvers.workloads.call_plans import Residency
    from placewright.solvers.workloads.workload_search import WorkloadSearch


def choose_cautiously(search: WorkloadSearch) -> CallPlans:
    """One of the best plans, or a simpler one, with a slower host in mind.

    Where costs are estimates and all calls fit one device, a split is taken only if its gain
    survives pessimistic costs in every call (`pessimistic_costs.py`).

    Where op times were measured, a plan that leaves ops to a host next to a GPU must gain enough:
    plans are compared by the geometric mean of each call's time with the host as measured and with
    a slower host, times its count. For each of the best placements of weights, every call takes the
    better of its annealed plan and of the simple plans in this sense; everything on one device is a
    candidate, too.
    """
    best, workload = search.best, search.workload
    assert best is not None
    if best.key[0]:
        return best
    pessimistic = [PessimisticCosts.of(problem) for problem in workload.problems]
    if all(costs is not None for costs in pessimistic):
        return _surviving_plans(search, [costs for costs in pessimistic if costs is not None])
    if not any(map(host_matters, workload.problems)):
        return best
    slow = [scale_host(problem, *SLOW_HOST) for problem in workload.problems]
    candidates = [best, *search.by_residency.values(), *search.single_devices]
    scored = [_most_cautious(search, plans, slow) for plans in candidates if not plans.key[0]]
    return min(scored, key=lambda pair: pair[0])[1]


def _surviving_plans(search: WorkloadSearch, costs: list[PessimisticCosts]) -> CallPlans:
    """Costs are estimates and all calls fit one device: the best plans whose gain survives."""
    assert search.best is not None
    candidates = [search.best, *search.by_residency.values(), *search.single_devices]
    survivors = [
        plans
        for plans in candidates
        if not plans.key[0]
        and all(own.survives(call.plan) for own, call in zip(costs, plans.calls, strict=True))
    ]
    return min(survivors, key=lambda plans: plans.key, default=search.best)


def _most_cautious(
    search: WorkloadSearch, plans: CallPlans, slow: list[Problem]
) -> tuple[float, CallPlans]:
    """The plans of one placement of weights with the least cautious time, and that time."""
    workload = search.workload
    chosen, total = [], 0.0
    for at, call in enumerate(plans.calls):
        seconds, plan = min(
            _scored_plans(search, at, call, plans.residency, slow[at]),
            key=lambda pair: pair[0],
        )
        total += float(workload.counts[at]) * seconds
        chosen.append(plan)
    is_same = all(plan is call for plan, call in zip(chosen, plans.calls, strict=True))
    return total, plans if is_same else CallPlans(workload, tuple(chosen))


def _scored_plans(
    search: WorkloadSearch, at: int, call: CallPlan, residency: Residency, slow: Problem
) -> list[tuple[float, CallPlan]]:
    """A call's own plan, and the simple plans that fit, each with its cautious time."""
    problem = search.workload.problems[at]
    own = _cautious_seconds(call.value, slow, PlanBatch.repeat(call.plan))[0]
    scored = [(float(own), call)]
    rows = search.simple_plans(at, residency, pin_weights(search.workload, at, residency))
    verdict = simulator.judge_batch(problem, rows)
    excess = verdict.peak - problem.arrays.capacity
    fits = np.flatnonzero((excess <= 0).all(axis=1))
    if len(fits):
        seconds = _cautious_seconds(verdict.value[fits], slow, rows[fits])
        best = int(seconds.argmin())
        row = int(fits[best])
        plan = CallPlan(
            rows.plan(problem, row), float(verdict.value[row]), tuple(excess[row].tolist())
        )
        scored.append((float(seconds[best]), plan))
    return scored


def _cautious_seconds(
    value: float | NDArray[np.float64], slow: Problem, rows: PlanBatch
) -> NDArray[np.float64]:
    """The geometric mean of the times with the host as measured and with a slower one."""
    seconds: NDArray[np.float64] = np.sqrt(value * simulator.judge_batch(slow, rows).value)
    return seconds
