"""An environment: judges the plans of a problem, by the simulator or by measurement.

It counts the plans it judges and keeps the best, so that nothing a policy does goes unseen.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from placewright.problem import Problem


@dataclass(frozen=True, eq=False)
class Outcome:
    """What plans take, in turn.

    Args:
        seconds: The objective; infinity for a plan that could not be run.
        overflow: Bytes over the memory limits, all devices together.
        overflow_share: Bytes over, as a share of each device's memory, summed over devices.
    """

    seconds: NDArray[np.float64]
    overflow: NDArray[np.int64]
    overflow_share: NDArray[np.float64]

    @property
    def feasible(self) -> NDArray[np.bool_]:
        """Whether each plan fits and could be run."""
        feasible: NDArray[np.bool_] = (self.overflow == 0) & np.isfinite(self.seconds)
        return feasible


def simulate_plans(
    problem: Problem, placements: NDArray[np.int32], priority: NDArray[np.float64] | None = None
) -> Outcome:
    """What the simulator says of plans × ops."""
    verdict = simulator.judge(problem, placements, priority)
    return from_verdict(problem, verdict)


def from_verdict(problem: Problem, verdict: simulator.Verdict) -> Outcome:
    """The simulator's verdict as the trainer wants it."""
    capacity = problem.arrays.capacity
    excess = np.maximum(verdict.peak - capacity, 0)
    share = (excess / np.maximum(capacity, 1)).sum(axis=1)
    return Outcome(verdict.value, verdict.overflow, share)


def serial_seconds(problem: Problem) -> float:
    """All work one after the other on the device that is fastest for it; transfers are free."""
    a = problem.arrays
    total = float(a.compute[a.scheduled].sum(axis=0).min(initial=np.inf))
    return total if np.isfinite(total) and total > 0 else 1.0


class Environment:
    """Judges plans of one problem for a trainer.

    Args:
        measure: What judges plans × ops, or fewer of them if it may judge no more; the simulator by
            default. To train on measured step times give a function that runs each plan. For a
            policy with an order in mind it is given priorities (plans × ops) too.
        reference_seconds: Seconds that rewards are relative to; the serial time on the fastest device by
            default, so that one setting serves all problems.
    """

    def __init__(
        self,
        problem: Problem,
        measure: Callable[..., Outcome] = simulate_plans,
        reference_seconds: float | None = None,
    ) -> None:
        self.problem, self.measure = problem, measure
        self.reference_seconds = (
            serial_seconds(problem) if reference_seconds is None else reference_seconds
        )
        self.evaluations = 0
        self.best_placement: NDArray[np.int32] | None = None
        self.best_priority: NDArray[np.float64] | None = None
        """The best plan's priorities, if it has any."""
        self.best_key: tuple[float, float] = (np.inf, np.inf)
        """Bytes over and objective of the best plan."""
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

    def judge(
        self,
        placements: NDArray[np.int32],
        found_by: str,
        priority: NDArray[np.float64] | None = None,
    ) -> Outcome:
        """Judge plans × ops, count them and keep the best."""
        priorities = () if priority is None else (priority,)
        outcome = self.measure(self.problem, placements, *priorities)
        count = len(outcome.seconds)
        if count:
            best = int(np.lexsort((outcome.seconds, outcome.overflow))[0])
            key = (float(outcome.overflow[best]), float(outcome.seconds[best]))
            if key < self.best_key and np.isfinite(key[1]):
                self.best_placement, self.best_key, self.found_by = (
                    placements[best].copy(),
                    key,
                    found_by,
                )
                self.best_priority = None if priority is None else priority[best].copy()
                self.history.append((self.evaluations + best + 1, self.seconds, key[1]))
        self.evaluations += count
        return outcome
