"""Orders: plans and priorities in, the order in which a ready executor would take their ops out.

GO's priorities are those of an executor that takes whatever is ready. Where devices run in order,
ops are issued as such an executor would have started them: an order by rank alone makes devices
wait for heads of lines. On AmoebaNet-D and m-ETF's placement it takes 0.586 s, and issued so 0.502.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from placewright import simulator
from placewright.plan import Plan
from placewright.policies.go.fusion import usual_fusions
from placewright.training.environment import Environment, from_verdict
from placewright.transforms import Flow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.training.environment import Judged


_ready_of: WeakKeyDictionary[Problem, Problem] = WeakKeyDictionary()


def issued(
    problem: Problem, device: NDArray[np.int32], priority: NDArray[np.float64] | None
) -> NDArray[np.float64] | None:
    """Plans × ops: priorities for the problem's own discipline."""
    if problem.discipline == "ready" or priority is None:
        return priority
    return clock(problem, device, priority)[0]


def own_order(problem: Problem, device: NDArray[np.int32]) -> NDArray[np.float64] | None:
    """Plans × ops: the longest way to the end first, as `Go.order` has it without classes."""
    return issued(problem, device, -Flow(problem.arrays).bottom_levels(device))


def clock(
    problem: Problem, device: NDArray[np.int32], priority: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Plans × ops: when a ready executor starts and ends each op; what GO is told of its plans."""
    ready = _ready(problem)
    first = Plan.of(ready, device[0], priority[0])  # checked; its names serve for all of them
    runs = [
        simulator.simulate(ready, replace(first, device=row, priority=order))
        for row, order in zip(device, priority, strict=True)
    ]
    return np.stack([run.start for run in runs]), np.stack([run.end for run in runs])


def _ready(problem: Problem) -> Problem:
    if problem.discipline == "ready":
        return problem
    if problem not in _ready_of:
        changed = replace(problem, discipline="ready").with_arrays(**_fields(problem))
        _ready_of[problem] = changed
    return _ready_of[problem]


def _fields(problem: Problem) -> dict[str, Any]:
    """The problem's arrays, which may be others than its graph and cluster say."""
    return {each.name: getattr(problem.arrays, each.name) for each in fields(problem.arrays)}


class IssuingEnvironment(Environment):
    """Judges plans in the order in which a ready executor would take their ops.

    Args:
        threads: That judge plans side by side.
        fused: Whether plans that say nothing of fusion have ops fused as a compiler would.
    """

    def __init__(self, problem: Problem, threads: int = 1, fused: bool = False) -> None:
        self.threads, self.fused = threads, fused
        self.fusion: NDArray[np.int32] | None = None
        """The best plan's fused groups, if it has any."""
        self._groups: NDArray[np.int32] | None = None
        super().__init__(problem, self._simulated)

    def judge(
        self,
        device: NDArray[np.int32],
        who: str,
        priority: NDArray[np.float64] | None = None,
        fusion: NDArray[np.int32] | None = None,
    ) -> Judged:
        if fusion is None and self.fused:
            fusion = usual_fusions(self.problem, device)
        self._groups, before = fusion, self.key
        judged = super().judge(device, who, issued(self.problem, device, priority))
        if self.key < before:
            best = int(np.lexsort((judged.seconds, judged.over))[0])
            self.fusion = None if fusion is None else fusion[best].copy()
        return judged

    def _simulated(
        self,
        problem: Problem,
        device: NDArray[np.int32],
        priority: NDArray[np.float64] | None = None,
    ) -> Judged:
        how: dict[str, Any] = {} if self._groups is None else {"fusion": self._groups}
        verdict = simulator.judge(problem, device, priority, threads=self.threads, **how)
        return from_verdict(problem, verdict)
