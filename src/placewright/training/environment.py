"""An environment: a problem in, its plans judged out, by the simulator or by any measurement.

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
class Judged:
    """What plans take, in turn.

    Args:
        seconds: The objective; infinity for a plan that could not be run.
        over: Bytes over the memory limits, all devices together.
        share: Bytes over, as a share of each device's memory, summed over devices.
    """

    seconds: NDArray[np.float64]
    over: NDArray[np.int64]
    share: NDArray[np.float64]

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Whether each plan fits and could be run."""
        valid: NDArray[np.bool_] = (self.over == 0) & np.isfinite(self.seconds)
        return valid


def simulated(
    problem: Problem, device: NDArray[np.int32], priority: NDArray[np.float64] | None = None
) -> Judged:
    """What the simulator says of plans × ops."""
    verdict = simulator.judge(problem, device, priority)
    return from_verdict(problem, verdict)


def from_verdict(problem: Problem, verdict: simulator.Verdict) -> Judged:
    """The simulator's verdict as the trainer wants it."""
    capacity = problem.arrays.capacity
    over = np.maximum(verdict.peak - capacity, 0)
    share = (over / np.maximum(capacity, 1)).sum(axis=1)
    return Judged(verdict.value, verdict.overflow, share)


def serial_seconds(problem: Problem) -> float:
    """All work one after the other on the device that is fastest for it; transfers are free."""
    a = problem.arrays
    total = float(a.compute[a.turn].sum(axis=0).min(initial=np.inf))
    return total if np.isfinite(total) and total > 0 else 1.0


class Environment:
    """Judges plans of one problem for a trainer.

    Args:
        measure: What judges plans × ops, or fewer of them if it may judge no more; the simulator by
            default. To train on measured step times give a function that runs each plan. For a
            policy with an order in mind it is given priorities (plans × ops) too.
        reference: Seconds that rewards are relative to; the serial time on the fastest device by
            default, so that one setting serves all problems.
    """

    def __init__(
        self,
        problem: Problem,
        measure: Callable[..., Judged] = simulated,
        reference: float | None = None,
    ) -> None:
        self.problem, self.measure = problem, measure
        self.reference = serial_seconds(problem) if reference is None else reference
        self.evaluations = 0
        self.best: NDArray[np.int32] | None = None
        self.order: NDArray[np.float64] | None = None
        """The best plan's priorities, if it has any."""
        self.key: tuple[float, float] = (np.inf, np.inf)
        """Bytes over and objective of the best plan."""
        self.found_by = ""
        self.history: list[tuple[int, float, float]] = []
        """(evaluations, seconds, best objective) each time the best improved."""
        self.seconds_before = 0.0
        """How long earlier parts of the same run took."""
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """How long the run has been going on."""
        return self.seconds_before + time.perf_counter() - self._started

    def judge(
        self, device: NDArray[np.int32], who: str, priority: NDArray[np.float64] | None = None
    ) -> Judged:
        """Judge plans × ops, count them and keep the best."""
        ordered = () if priority is None else (priority,)
        judged = self.measure(self.problem, device, *ordered)
        done = len(judged.seconds)
        if done:
            at = int(np.lexsort((judged.seconds, judged.over))[0])
            key = (float(judged.over[at]), float(judged.seconds[at]))
            if key < self.key and np.isfinite(key[1]):
                self.best, self.key, self.found_by = device[at].copy(), key, who
                self.order = None if priority is None else priority[at].copy()
                self.history.append((self.evaluations + at + 1, self.seconds, key[1]))
        self.evaluations += done
        return judged
