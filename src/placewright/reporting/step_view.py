"""The step of a plan as it is drawn, with every fused group as one op.

Pages and pictures draw what the simulator ran. Where a plan fuses ops that is the contracted
problem, so `StepView` also says which ops of the graph each drawn op stands for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.reporting.memory import MemoryBreakdown, memory_breakdown
from placewright.simulator.waits import Waits, find_waits
from placewright.transforms import contract

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.problem_arrays import Arrays
    from placewright.timeline import Timeline


@dataclass(frozen=True, eq=False)
class StepView:
    """One step of a plan, ready to be drawn.

    Args:
        problem, plan: As they ran, without fused groups.
        graph_op: For each op that ran, the first op of the graph that it stands for.
        graph_tensor: For each tensor of the problem that ran, the graph's own number for it.
        executed_op: For each op of the graph, the op that ran for it.
    """

    problem: Problem
    plan: Plan
    timeline: Timeline
    graph_op: NDArray[np.int32]
    graph_tensor: NDArray[np.int32]
    executed_op: NDArray[np.int32]

    @classmethod
    def of(cls, problem: Problem, plan: Plan, timeline: Timeline | None = None) -> StepView:
        """The step of one plan.

        Args:
            timeline: That of the plan on this problem, if it was simulated before.

        Raises:
            PlanError: The plan is not one of this problem's, or is malformed.
        """
        if plan.fusion is None:
            op_numbers = np.arange(len(problem.graph), dtype=np.int32)
            tensor_numbers = np.arange(len(problem.arrays.sizes), dtype=np.int32)
            if timeline is None:
                timeline = simulator.simulate(problem, plan)
            return cls(problem, plan, timeline, op_numbers, tensor_numbers, op_numbers)
        contraction = contract(problem, plan)
        timeline = simulator.simulate(contraction.problem, contraction.plan)
        return cls(
            contraction.problem,
            contraction.plan,
            timeline,
            contraction.first_member,
            contraction.original_tensor,
            contraction.contracted_op,
        )

    @property
    def arrays(self) -> Arrays:
        return self.problem.arrays

    @cached_property
    def waits(self) -> Waits:
        return find_waits(self.problem, self.timeline)

    @cached_property
    def memory(self) -> MemoryBreakdown:
        return memory_breakdown(self.problem, self.timeline)

    @property
    def bytes_sent(self) -> tuple[int, int]:
        """Bytes of tensors and of streamed weights that are transferred in one step."""
        return self.timeline.bytes_sent(self.arrays)
