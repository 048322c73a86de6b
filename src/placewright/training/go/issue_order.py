"""Issue order: priorities that launch ops as a ready executor would start them.

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
from placewright.policies.go.fusion import fuse_greedily
from placewright.training.environment import Environment, from_verdict
from placewright.transforms import PathLengths

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.training.environment import Outcome


_ready_problems: WeakKeyDictionary[Problem, Problem] = WeakKeyDictionary()


def issue_priorities(
    problem: Problem, placements: NDArray[np.int32], priority: NDArray[np.float64] | None
) -> NDArray[np.float64] | None:
    """Plans × ops: priorities for the problem's own discipline."""
    if problem.discipline == "ready" or priority is None:
        return priority
    return ready_times(problem, placements, priority)[0]


def longest_path_priorities(
    problem: Problem, placements: NDArray[np.int32]
) -> NDArray[np.float64] | None:
    """Plans × ops: the longest way to the end first, as `Go.order` has it without classes."""
    return issue_priorities(
        problem, placements, -PathLengths(problem.arrays).bottom_levels(placements)
    )


def ready_times(
    problem: Problem, placements: NDArray[np.int32], priority: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Plans × ops: when a ready executor starts and ends each op; what GO is told of its plans."""
    ready = _ready_problem(problem)
    template = Plan.of(
        ready, placements[0], priority[0]
    )  # checked; its names serve for all of them
    timelines = [
        simulator.simulate(ready, replace(template, placement=placement, priority=row_priority))
        for placement, row_priority in zip(placements, priority, strict=True)
    ]
    return np.stack([timeline.start for timeline in timelines]), np.stack(
        [timeline.end for timeline in timelines]
    )


def _ready_problem(problem: Problem) -> Problem:
    if problem.discipline == "ready":
        return problem
    if problem not in _ready_problems:
        ready_problem = replace(problem, discipline="ready").with_arrays(**_array_fields(problem))
        _ready_problems[problem] = ready_problem
    return _ready_problems[problem]


def _array_fields(problem: Problem) -> dict[str, Any]:
    """The problem's arrays, which may be others than its graph and cluster say."""
    return {
        array_field.name: getattr(problem.arrays, array_field.name)
        for array_field in fields(problem.arrays)
    }


class IssueOrderEnvironment(Environment):
    """Judges plans in the order in which a ready executor would take their ops.

    Args:
        threads: That judge plans side by side.
        fuse_by_default: Whether plans that say nothing of fusion have ops fused as a compiler would.
    """

    def __init__(self, problem: Problem, threads: int = 1, fuse_by_default: bool = False) -> None:
        self.threads, self.fuse_by_default = threads, fuse_by_default
        self.best_fusion: NDArray[np.int32] | None = None
        """The best plan's fused groups, if it has any."""
        self._fusion: NDArray[np.int32] | None = None
        super().__init__(problem, self._simulate_plans)

    def judge(
        self,
        placements: NDArray[np.int32],
        found_by: str,
        priority: NDArray[np.float64] | None = None,
        fusion: NDArray[np.int32] | None = None,
    ) -> Outcome:
        if fusion is None and self.fuse_by_default:
            fusion = fuse_greedily(self.problem, placements)
        self._fusion, previous_key = fusion, self.best_key
        outcome = super().judge(
            placements, found_by, issue_priorities(self.problem, placements, priority)
        )
        if self.best_key < previous_key:
            best = int(np.lexsort((outcome.seconds, outcome.overflow))[0])
            self.best_fusion = None if fusion is None else fusion[best].copy()
        return outcome

    def _simulate_plans(
        self,
        problem: Problem,
        placements: NDArray[np.int32],
        priority: NDArray[np.float64] | None = None,
    ) -> Outcome:
        options: dict[str, Any] = {} if self._fusion is None else {"fusion": self._fusion}
        verdict = simulator.judge(problem, placements, priority, threads=self.threads, **options)
        return from_verdict(problem, verdict)
