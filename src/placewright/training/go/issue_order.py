"""Issue order: priorities that launch ops as a ready executor would start them.

GO's priorities are those of an executor that takes whatever is ready. Where devices run in order,
ops are issued as such an executor would have started them: in the order of rank alone, devices wait
for the op at the head of their queue. On AmoebaNet-D m-ETF's placement takes 0.586 s by rank, and
0.502 s in this order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from placewright.training.clock import ready_times
from placewright.training.environment import (
    Environment,
    JudgedPlans,
    PlanSimulation,
    simulate_plans,
)
from placewright.transforms import PathLengths, fuse_greedily

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from placewright.outcome import Outcome
    from placewright.problem import Problem
    from placewright.training.go.demonstrations import Demonstration


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
    """Plans × ops: the longest path to the end first, as in `Go.priorities` without classes."""
    return issue_priorities(
        problem, placements, -PathLengths(problem.arrays).bottom_levels(placements)
    )


@dataclass(frozen=True)
class IssueOrderSimulation(PlanSimulation):
    """Judges plans in the order in which a ready executor would start their ops.

    Args:
        fuse_by_default: Whether plans without fused groups have ops fused as a compiler would.
    """

    fuse_by_default: bool = False

    def judge(
        self,
        problem: Problem,
        placements: NDArray[np.int32],
        priority: NDArray[np.float64] | None = None,
        fusion: NDArray[np.int32] | None = None,
        threads: int = 1,
    ) -> JudgedPlans:
        priority, fusion = self.issue(problem, placements, priority, fusion)
        return super().judge(problem, placements, priority, fusion, threads)

    def issue(
        self,
        problem: Problem,
        placements: NDArray[np.int32],
        priority: NDArray[np.float64] | None,
        fusion: NDArray[np.int32] | None,
    ) -> tuple[NDArray[np.float64] | None, NDArray[np.int32] | None]:
        """Plans × ops: the priorities and the fused groups that plans are judged with."""
        if fusion is None and self.fuse_by_default:
            fusion = fuse_greedily(problem, placements)
        return issue_priorities(problem, placements, priority), fusion


class IssueOrderEnvironment(Environment):
    """Judges plans in the order in which a ready executor would start their ops.

    Args:
        measure: As for `Environment`; the simulator, on another thread, by default.
        demonstration: Plans of the problem to imitate.
        threads: Threads that simulate plans in parallel.
        fuse_by_default: Whether plans without fused groups have ops fused as a compiler would.
    """

    def __init__(
        self,
        problem: Problem,
        measure: Callable[..., Outcome] | None = None,
        demonstration: Demonstration | None = None,
        threads: int = 1,
        fuse_by_default: bool = False,
    ) -> None:
        self._issue_order, self._simulated = IssueOrderSimulation(fuse_by_default), measure is None
        simulate = partial(simulate_plans, threads=threads)
        super().__init__(
            problem, simulate if measure is None else measure, demonstration=demonstration
        )

    @property
    def in_background(self) -> bool:
        return self._simulated

    @property
    def simulation(self) -> PlanSimulation | None:
        return self._issue_order if self._simulated else None

    def judge(
        self,
        placements: NDArray[np.int32],
        found_by: str,
        priority: NDArray[np.float64] | None = None,
        fusion: NDArray[np.int32] | None = None,
    ) -> Outcome:
        priority, fusion = self._issue_order.issue(self.problem, placements, priority, fusion)
        return super().judge(placements, found_by, priority, fusion)
