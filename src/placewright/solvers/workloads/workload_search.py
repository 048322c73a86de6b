"""Search over plans of a workload: evaluates them call by call and keeps the best."""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright import simulator
from placewright.plan_batch import PlanBatch
from placewright.solvers.bounds import Bound, bound
from placewright.solvers.bounds.shared_memory import shared_memory_bound
from placewright.solvers.search import check_stop_and_seed
from placewright.solvers.workloads.call_plans import (
    CallPlan,
    CallPlans,
    evaluate_call,
    pin_weights,
    simple_plans,
)
from placewright.solvers.workloads.resident_weights import ResidentWeights

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.solvers.search import Search
    from placewright.solvers.stop import Stop
    from placewright.solvers.workloads.call_plans import Residency
    from placewright.workload import Workload

MAX_RESIDENCIES = 16
"""Placements of the weights that are remembered, each with its best plans."""
_BOUND_SECONDS = 5e-3  # seconds left per op, without which the quick bound is not computed
_MIN_BOUND_SECONDS = 5.0  # and at least these: the first bound imports a library


class WorkloadSearch:
    """Evaluates plans of one workload and keeps the best by (overflow, objective).

    One plan of one call is one evaluation. It also keeps the best plans for each of the best few
    placements of the weights.

    Args:
        stop: When to stop; `Stop()` never does.
        progress: Called with the search after each evaluation of a whole plan.
    """

    def __init__(
        self,
        workload: Workload,
        stop: Stop,
        seed: int,
        progress: Callable[[Any], None] | None = None,
    ) -> None:
        check_stop_and_seed(stop, seed)
        self.workload, self.stop, self.seed, self.progress = workload, stop, seed, progress
        self.rng = np.random.default_rng(seed)
        self.evaluations = 0
        self.best: CallPlans | None = None
        self.phase = ""
        self.found_by = ""
        """The phase that found the best plan."""
        self.history: list[tuple[int, float, float]] = []
        self.by_residency: dict[bytes, CallPlans] = {}
        """The best plans for each of the best few placements of the weights."""
        self.single_devices: list[CallPlans] = []
        """Everything on one device, for each device."""
        self._quick_bound = 0.0
        self._started = time.perf_counter()

    @property
    def problem(self) -> Problem:
        """The first call's problem: all calls share its cluster and its objective."""
        return self.workload.calls[0].problem

    @property
    def key(self) -> tuple[float, float]:
        """Overflow and objective of the best plan."""
        return (np.inf, np.inf) if self.best is None else self.best.key

    @property
    def seconds(self) -> float:
        """Seconds since the search began."""
        return time.perf_counter() - self._started

    @property
    def over(self) -> bool:
        """Whether the stop rule says stop."""
        return self.evaluations > 0 and self.best is not None and self.stop(self)

    def is_finished(self) -> bool:
        """Whether it is over, or the best plan fits and reaches the known bound."""
        if self.over:
            return True
        overflow, value = self.key
        known = self.bound.seconds if self.bound_known else self._quick_bound
        return not overflow and value <= known * (1 + 1e-6)

    def compute_quick_bound(self) -> None:
        """Compute the bound that does not depend on memory, if there is time; it is much faster."""
        ops = sum(problem.arrays.ops for problem in self.workload.problems)
        if self.stop.seconds_left(self) > max(_MIN_BOUND_SECONDS, ops * _BOUND_SECONDS):
            self._quick_bound = workload_bound(self.workload, fits_only=False).seconds

    @cached_property
    def bound(self) -> Bound:
        """A lower bound for plans that fit."""
        return workload_bound(self.workload)

    @property
    def bound_known(self) -> bool:
        """Whether the bound has been computed."""
        return "bound" in self.__dict__

    def report_progress(self, _: Search | None = None) -> None:
        """Call the progress function; also while a search of one part of the workload runs."""
        if self.progress is not None:
            self.progress(self)

    def judge(self, plans: Sequence[Plan]) -> CallPlans:
        """Evaluate a plan for each call, all with one placement of the weights."""
        calls = tuple(evaluate_call(self.workload, at, plan) for at, plan in enumerate(plans))
        self.evaluations += len(calls)
        return self.record(CallPlans(self.workload, calls))

    def judge_residency(
        self, residency: Residency, own: dict[int, Plan] | None = None
    ) -> CallPlans:
        """Evaluate simple plans of the calls for a placement of the weights, and keep the best.

        Args:
            own: Plans with this placement that some calls have, which take part.
        """
        calls = []
        for at in range(len(self.workload)):
            pinned = pin_weights(self.workload, at, residency)
            plans = self.simple_plans(at, residency, pinned)
            verdict = simulator.judge_batch(pinned, plans)
            self.evaluations += len(plans)
            best = verdict.best()
            excess = tuple((verdict.peak[best] - pinned.arrays.capacity).tolist())
            call = CallPlan(
                plans.plan(self.workload.problems[at], best), float(verdict.value[best]), excess
            )
            if own is not None and at in own:
                candidate = evaluate_call(self.workload, at, own[at])
                self.evaluations += 1
                call = min((candidate, call), key=lambda each: (each.overflow, each.value))
            calls.append(call)
        return self.record(CallPlans(self.workload, tuple(calls)))

    def simple_plans(self, at: int, residency: Residency, pinned: Problem) -> PlanBatch:
        """Plans of a call without any search, for weights that are fixed."""
        plans = simple_plans(pinned)
        if self.resident_weights is None:
            return plans
        splits = self.resident_weights.splits[at].plans(residency)
        if splits is None:
            return plans
        assert plans.staging is not None
        assert splits.staging is not None
        return PlanBatch(
            np.concatenate([plans.placement, splits.placement]),
            None,
            np.concatenate([plans.staging, splits.staging]),
        )

    @cached_property
    def resident_weights(self) -> ResidentWeights | None:
        """The choice of weights that stay on the GPU, if it cannot hold all."""
        return ResidentWeights.of(self.workload)

    def record(self, plans: CallPlans) -> CallPlans:
        """Keep plans that were evaluated, if they are among the best."""
        key = plans.key
        name = plans.residency.tobytes()
        known = self.by_residency.get(name)
        if known is None or key < known.key:
            self.by_residency[name] = plans
            if len(self.by_residency) > MAX_RESIDENCIES:
                del self.by_residency[
                    max(self.by_residency, key=lambda each: self.by_residency[each].key)
                ]
        if key < self.key:
            self.best, self.found_by = plans, self.phase
            self.history.append((self.evaluations, self.seconds, key[1]))
        self.report_progress()
        return plans


def workload_bound(workload: Workload, fits_only: bool = True) -> Bound:
    """Seconds that no plan of a workload can beat.

    Proof: under any plan of the workload each call takes no less than its own bound, in which the
    weights and states of the other calls occupy memory too; so does the weighted sum. For plans
    that fit, `shared_memory_bound` also counts that a weight has one device in all calls.

    Args:
        fits_only: The bound need hold only for plans that fit in each call.
    """
    bounds = [bound(problem, fits_only=fits_only) for problem in workload.problems]
    seconds = sum(
        count * each.seconds for count, each in zip(workload.counts.tolist(), bounds, strict=True)
    )
    names = ", ".join(dict.fromkeys(each.name for each in bounds))
    # The sum itself is rounded: one share of an epsilon for each product and each addition.
    rounding = 4 * len(bounds) * float(np.finfo(np.float64).eps)
    separate = Bound(seconds * (1 - rounding), names if len(bounds) == 1 else f"calls: {names}")
    if not fits_only or len(bounds) == 1:
        return separate
    together = shared_memory_bound(
        workload.problems, workload.counts.tolist(), list(workload.weights)
    )
    return separate if separate.seconds >= together else Bound(together, "shared memory")
