"""Colocation groups: a problem in, the groups that ColocRL places out.

Mirhoseini et al. 2017, "Device Placement Optimization with Reinforcement Learning", section 3.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.transforms.grouping import Grouping
from placewright.union import Union

if TYPE_CHECKING:
    from placewright.graph import Graph, Tensor
    from placewright.problem import Problem


def by_colocation(problem: Problem) -> Grouping:
    """Ops that belong together by the framework's constraints and the paper's rules.

    The problem's own units; an op with exactly one consumer joins it; a weight goes with its first
    reader, an update op with its weight, a gradient op with its forward op. Not always convex.
    """
    graph, a = problem.graph, problem.arrays
    union = Union(len(graph))
    for position, home in enumerate(forward_ops(graph)):
        if home is not None:
            union.join(home, position)
    for position, op in enumerate(graph.ops):
        tensors = [(position, output) for output in range(len(op.outputs))]
        readers = {reader for tensor in tensors for reader in graph.readers.get(tensor, ())}
        if a.weight[position] and readers:
            union.join(position, min(readers))
            for reader in readers:
                if graph.ops[reader].phase == "update":
                    union.join(position, reader)
        if a.turn[position] and len(readers) == 1 and op.phase == "forward":
            (reader,) = readers
            if graph.ops[reader].phase == "forward":
                union.join(position, reader)
    for position, head in enumerate(a.head.tolist()):  # units may hold ops that take no turn
        union.join(head, position)
    return Grouping.of("colocation", problem, [union.find(op) for op in range(len(graph))])


def forward_ops(graph: Graph) -> list[int | None]:
    """For each gradient op the forward op it belongs to; None for other ops.

    Graphs captured from PyTorch say it in the name: `mlp.up.addmm.backward.mm`. Elsewhere: a
    gradient op reads what its forward op read or made, so we take, in the same module, the forward
    op with which it shares most tensors, the later one on a tie; without a shared tensor the
    module's last forward op, or the home of the op it reads first.
    """
    touched: dict[Tensor, list[int]] = {}
    last_of_module: dict[str, int] = {}
    home: list[int | None] = []
    for position, op in enumerate(graph.ops):
        found: int | None = None
        if op.phase == "forward":
            made = [(position, output) for output in range(len(op.outputs))]
            for tensor in dict.fromkeys([*op.inputs, *made]):
                touched.setdefault(tensor, []).append(position)
            last_of_module[op.module] = position
        elif op.phase == "backward" and (named := op.name.rpartition(".backward")[0]):
            found = graph.position.get(named)
        if op.phase == "backward" and found is None:
            shared: dict[int, int] = {}
            for tensor in dict.fromkeys(op.inputs):
                for forward in touched.get(tensor, ()):
                    if graph.ops[forward].module == op.module:
                        shared[forward] = shared.get(forward, 0) + 1
            if shared:
                found = max(shared, key=lambda forward: (shared[forward], forward))
            elif op.module in last_of_module:
                found = last_of_module[op.module]
            else:
                found = next((home[source] for source, _ in op.inputs if home[source]), None)
        home.append(found)
    return home
