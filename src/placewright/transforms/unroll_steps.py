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

    from placewright.cluster import Cluster, Link
    from placewright.costs import CostModel, FusedParts, Seconds


def unroll(
    problem: Problem, plan: Plan, steps: int, order: Sequence[int]
) -> tuple[Problem, Plan, NDArray[np.int32]]:
    """The problem of `steps` independent steps at once, its plan, and each op's original.

    Weights and states exist once, everything else once per step. Earlier steps have priority.

    Args:
        order: The scheduled ops, in the plan's order.
    """
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
    original_op = np.array(original, dtype=np.int32)
    unrolled_graph = Graph(graph.name, tuple(ops), tuple(dict.fromkeys(outputs)))
    names = [device.name for device in problem.cluster.devices]
    pins = {
        op.name: names[plan.placement[original_op[at]]]
        for at, op in enumerate(ops)
        if op.kind == INPUT
    }
    unrolled_problem = replace(
        problem,
        graph=unrolled_graph,
        costs=_UnrolledCosts(problem.costs, graph, original_op),
        constraints=Constraints(pins=pins, limits=problem.constraints.limits),
    )
    rank = np.zeros(len(graph))
    rank[list(order)] = np.arange(len(order))
    step_count = np.zeros(len(graph), dtype=np.int64)
    priority = np.empty(len(ops))
    for at, source in enumerate(original):
        priority[at] = step_count[source] * len(graph) + rank[source]
        step_count[source] += 1
    keep_order = plan.priority is not None or problem.discipline == "in order"
    return (
        unrolled_problem,
        Plan.of(
            unrolled_problem,
            plan.placement[original_op],
            priority if keep_order else None,
            staging=plan.staging,
        ),
        original_op,
    )


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
