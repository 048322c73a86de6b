"""Steps in flight: a problem and a plan in, the same for several steps that share weights out."""

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


def repeat(
    problem: Problem, plan: Plan, steps: int, order: Sequence[int]
) -> tuple[Problem, Plan, NDArray[np.int32]]:
    """The problem of `steps` independent steps at once, its plan, and each op's original.

    Weights and states are there once; everything else once a step. A step goes before the next.

    Args:
        order: The ops that take a turn, in the plan's order.
    """
    graph, a = problem.graph, problem.arrays
    ops: list[Op] = []
    original: list[int] = []
    outputs: list[Tensor] = []
    shared: dict[int, int] = {}
    for step in range(steps):
        place: dict[int, int] = {}
        for at, op in enumerate(graph.ops):
            if at in shared:
                place[at] = shared[at]
                continue
            place[at] = len(ops)
            if a.stored[at]:
                shared[at] = len(ops)
            inputs = tuple((place[source], output) for source, output in op.inputs)
            name = op.name if a.stored[at] else f"{op.name}#{step}"
            ops.append(replace(op, name=name, inputs=inputs, colocate=None, runs_on=()))
            original.append(at)
        outputs += [(place[source], output) for source, output in graph.outputs or ()]
    of = np.array(original, dtype=np.int32)
    several = Graph(graph.name, tuple(ops), tuple(dict.fromkeys(outputs)))
    names = [device.name for device in problem.cluster.devices]
    pins = {op.name: names[plan.device[of[at]]] for at, op in enumerate(ops) if op.kind == INPUT}
    repeated = replace(
        problem,
        graph=several,
        costs=_Costs(problem.costs, graph, of),
        constraints=Constraints(pins=pins, limits=problem.constraints.limits),
    )
    rank = np.zeros(len(graph))
    rank[list(order)] = np.arange(len(order))
    seen = np.zeros(len(graph), dtype=np.int64)
    priority = np.empty(len(ops))
    for at, source in enumerate(original):
        priority[at] = seen[source] * len(graph) + rank[source]
        seen[source] += 1
    keep_order = plan.priority is not None or problem.discipline == "in order"
    return (
        repeated,
        Plan.of(repeated, plan.device[of], priority if keep_order else None, staging=plan.staging),
        of,
    )


@dataclass(frozen=True, eq=False)
class _Costs:
    """The original's costs, step after step."""

    base: CostModel
    graph: Graph
    original: NDArray[np.int32]

    def op_seconds(self, graph: Graph, cluster: Cluster) -> Seconds:
        return self.base.op_seconds(self.graph, cluster)[self.original]

    def transfer_seconds(self, graph: Graph, links: Sequence[Link]) -> Seconds:
        first = np.concatenate([[0], np.cumsum([len(op.outputs) for op in self.graph.ops])])
        tensors = [t for op in self.original for t in range(int(first[op]), int(first[op + 1]))]
        return self.base.transfer_seconds(self.graph, links)[:, tensors]

    def fused_parts(self, graph: Graph, cluster: Cluster) -> FusedParts:
        raise NotImplementedError("a repeated problem is fused before it is repeated")
