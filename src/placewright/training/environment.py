"""An environment: judges the plans of a problem, by the simulator or by measurement.

It counts the plans that it judges and keeps the best one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright import simulator
from placewright.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.training.go.demonstrations import Demonstration


def simulate_plans(
    problem: Problem,
    placements: NDArray[np.int32],
    priority: NDArray[np.float64] | None = None,
    fusion: NDArray[np.int32] | None = None,
    threads: int = 1,
) -> Outcome:
    """The outcome of plans × ops in the simulator."""
    options: dict[str, Any] = {} if fusion is None else {"fusion": fusion}
    verdict = simulator.judge(problem, placements, priority, threads=threads, **options)
    return from_verdict(problem, verdict)


def from_verdict(problem: Problem, verdict: simulator.Verdict) -> Outcome:
    """The simulator's verdict as an outcome."""
    capacity = problem.arrays.capacity
    share = (verdict.excess / np.maximum(capacity, 1)).sum(axis=1)
    return Outcome(verdict.value, verdict.overflow, share)


def serial_seconds(problem: Problem) -> float:
    """All work, one op after the other, on the device that is fastest for it; no transfers."""
    a = problem.arrays
    total = float(a.compute[a.scheduled].sum(axis=0).min(initial=np.inf))
    return total if np.isfinite(total) and total > 0 else 1.0


def best_plan(outcome: Outcome) -> int:
    """The plan with the least overflow, and of those the fastest."""
    return int(np.lexsort((outcome.seconds, outcome.overflow))[0])


@dataclass(frozen=True, eq=False)
class JudgedPlans:
    """Plans × ops as they were judged, and their outcome.

    Args:
        priority, fusion: Plans × ops: those that the plans were judged with, if any.
    """

    placements: NDArray[np.int32]
    outcome: Outcome
    priority: NDArray[np.float64] | None = None
    fusion: NDArray[np.int32] | None = None


@dataclass(frozen=True)
class PlanSimulation:
    """How an environment judges plans by the simulator: pure, so that any process can do it."""

    def judge(
        self,
        problem: Problem,
        placements: NDArray[np.int32],
        priority: NDArray[np.float64] | None = None,
        fusion: NDArray[np.int32] | None = None,
        threads: int = 1,
    ) -> JudgedPlans:
        """Judge plans × ops; nothing is counted."""
        outcome = simulate_plans(problem, placements, priority, fusion, threads)
        return JudgedPlans(placements, outcome, priority, fusion)


class Environment:
    """Judges plans of one problem for a trainer.

    Args:
        measure: Judges plans × ops, or only the first of them where it may judge no more; the
            simulator by default. To train on measured step times pass a function that runs each
            plan. Priorities (plans × ops) and fused groups (plans × ops) are further arguments, for
            policies that decide on them.
        reference_seconds: Seconds that rewards are relative to; the serial time on the fastest
            device by default, so that one setting serves all problems.
        demonstration: Plans of the problem to imitate, for recipes that do (GO).
    """

    def __init__(
        self,
        problem: Problem,
        measure: Callable[..., Outcome] = simulate_plans,
        reference_seconds: float | None = None,
        demonstration: Demonstration | None = None,
    ) -> None:
        self.problem, self.measure = problem, measure
        self.reference_seconds = (
            serial_seconds(problem) if reference_seconds is None else reference_seconds
        )
        self.demonstration = demonstration
        self.evaluations = 0
        self.best_placement: NDArray[np.int32] | None = None
        self.best_priority: NDArray[np.float64] | None = None
        """The best plan's priorities, if it has any."""
        self.best_fusion: NDArray[np.int32] | None = None
        """The best plan's fused groups, if it has any."""
        self.best_key: tuple[float, float] = (np.inf, np.inf)
        """Overflow in bytes and objective of the best plan."""
        self.found_by = ""
        self.history: list[tuple[int, float, float]] = []
        """(evaluations, seconds, best objective) each time the best improved."""
        self.earlier_seconds = 0.0
        """How long earlier parts of the same run took."""
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """How long the run has been going on."""
        return self.earlier_seconds + time.perf_counter() - self._started

    @property
    def in_background(self) -> bool:
        """Whether plans may be judged on another thread while the policy learns."""
        return False

    @property
    def simulation(self) -> PlanSimulation | None:
        """How the simulator judges plans; None where plans are measured, on this machine alone."""
        return PlanSimulation() if self.measure is simulate_plans else None

    def judge(
        self,
        placements: NDArray[np.int32],
        found_by: str,
        priority: NDArray[np.float64] | None = None,
        fusion: NDArray[np.int32] | None = None,
    ) -> Outcome:
        """Judge plans × ops, count them and keep the best."""
        priorities = () if priority is None else (priority,)
        fused = {} if fusion is None else {"fusion": fusion}
        outcome = self.measure(self.problem, placements, *priorities, **fused)
        return self.record(JudgedPlans(placements, outcome, priority, fusion), found_by)

    def record(self, plans: JudgedPlans, found_by: str) -> Outcome:
        """Count plans that were judged, here or elsewhere, and keep the best."""
        outcome = plans.outcome
        count = len(outcome.seconds)
        if count:
            best = best_plan(outcome)
            self.keep(plans, best, self.evaluations + best + 1, found_by)
        self.evaluations += count
        return outcome

    def keep(self, plans: JudgedPlans, index: int, evaluations: int, found_by: str) -> None:
        """Keep one of these plans if it is better than the best.

        Args:
            evaluations: Plans judged so far, this one with them.
        """
        outcome = plans.outcome
        key = (float(outcome.overflow[index]), float(outcome.seconds[index]))
        if key < self.best_key and np.isfinite(key[1]):
            priority, fusion = plans.priority, plans.fusion
            self.best_placement = plans.placements[index].copy()
            self.best_key, self.found_by = key, found_by
            self.best_priority = None if priority is None else priority[index].copy()
            self.best_fusion = None if fusion is None else fusion[index].copy()
            self.history.append((evaluations, self.seconds, key[1]))
