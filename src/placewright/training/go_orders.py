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
from placewright.training.environment import Environment, from_verdict

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


def clock(
    problem: Problem, device: NDArray[np.int32], priority: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Plans × ops: when a ready executor starts and ends each op; what GO is told of its plans."""
    ready = _ready(problem)
    runs = [
        simulator.simulate(ready, Plan.of(ready, row, order))
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
    """

    def __init__(self, problem: Problem, threads: int = 1) -> None:
        self.threads = threads
        super().__init__(problem, self._simulated)

    def judge(
        self, device: NDArray[np.int32], who: str, priority: NDArray[np.float64] | None = None
    ) -> Judged:
        return super().judge(device, who, issued(self.problem, device, priority))

    def _simulated(
        self,
        problem: Problem,
        device: NDArray[np.int32],
        priority: NDArray[np.float64] | None = None,
    ) -> Judged:
        verdict = simulator.judge(problem, device, priority, threads=self.threads)
        return from_verdict(problem, verdict)
