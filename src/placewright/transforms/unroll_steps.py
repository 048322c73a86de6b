"""Unrolls several steps in flight that share weights into one problem and plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from placewright.graph import INPUT, Graph, Op, Tensor
from placewright.plan import Plan
from placewright.problem import Constraints, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placewright.cluster import Cluster
    from placewright.costs import CostModel, FusedParts, Seconds
    from placewright.device import Link


def unroll(
    problem: Problem, plan: Plan, steps: int, order: Sequence[int]
) -> tuple[Problem, Plan, NDArray[np.int32]]:
    """The problem of `steps` independent steps at once, its plan, and each op's original.

    Weights and states exist once, everything else once per step. Earlier steps have priority.

    Args:
        order: The scheduled ops, in the plan's order.
    """
    unrolled_graph, original_op = _unroll_graph(problem, steps)
    names = [device.name for device in problem.cluster.devices]
    pins = {
        op.name: names[plan.placement[original_op[at]]]
        for at, op in enumerate(unrolled_graph.ops)
        if op.kind == INPUT
    }
    unrolled_problem = replace(
        problem,
        graph=unrolled_graph,
        costs=_UnrolledCosts(problem.costs, problem.graph, original_op),
        constraints=Constraints(pins=pins, limits=problem.constraints.limits),
    )
    keep_order = plan.priority is not None or problem.discipline == "in order"
    unrolled_plan = Plan.of(
        unrolled_problem,
        plan.placement[original_op],
        _step_priorities(original_op, order, len(problem.graph)) if keep_order else None,
        staging=plan.staging,
    )
    return unrolled_problem, unrolled_plan, original_op


def _unroll_graph(problem: Problem, steps: int) -> tuple[Graph, NDArray[np.int32]]:
    """The graph of all steps, and each op's original."""
    graph, a = problem.graph, problem.arrays
    ops: list[Op] = []
    original: list[int] = []
    outputs: list[Tensor] = []
    shared: dict[int, int] = {}
    for step in range(steps):
        position: dict[int, int] = {}
        for at, op in enumerate(graph.ops):
            if at in shared:
                position[at] = shared[at]
                continue
            position[at] = len(ops)
            if a.is_resident[at]:
                shared[at] = len(ops)
            inputs = tuple((position[source], output) for source, output in op.inputs)
            name = op.name if a.is_resident[at] else f"{op.name}#{step}"
            ops.append(replace(op, name=name, inputs=inputs, colocate=None, runs_on=()))
            original.append(at)
        outputs += [(position[source], output) for source, output in graph.outputs or ()]
    unrolled_graph = Graph(graph.name, tuple(ops), tuple(dict.fromkeys(outputs)))
    return unrolled_graph, np.array(original, dtype=np.int32)


def _step_priorities(
    original_op: NDArray[np.int32], order: Sequence[int], ops: int
) -> NDArray[np.float64]:
    """Priorities by step, then by the plan's order."""
    rank = np.zeros(ops)
    rank[list(order)] = np.arange(len(order))
    step_count = np.zeros(ops, dtype=np.int64)
    priority = np.empty(len(original_op))
    for at, source in enumerate(original_op.tolist()):
        priority[at] = step_count[source] * ops + rank[source]
        step_count[source] += 1
    return priority


@dataclass(frozen=True, eq=False)
class _UnrolledCosts:
    """The costs of the original problem, step after step."""

    base: CostModel
    graph: Graph
    original: NDArray[np.int32]

    def op_seconds(self, graph: Graph, cluster: Cluster) -> Seconds:
        return self.base.op_seconds(self.graph, cluster)[self.original]

    def transfer_seconds(self, graph: Graph, links: Sequence[Link]) -> Seconds:
        first_tensor = np.concatenate([[0], np.cumsum([len(op.outputs) for op in self.graph.ops])])
        tensors = [
            t
            for op in self.original
            for t in range(int(first_tensor[op]), int(first_tensor[op + 1]))
        ]
        return self.base.transfer_seconds(self.graph, links)[:, tensors]

    def fused_parts(self, graph: Graph, cluster: Cluster) -> FusedParts:
        raise NotImplementedError("an unrolled problem is fused before it is unrolled")
