"""Colocation groups: a problem in, the groups that ColocRL places out.

Mirhoseini et al. 2017, "Device Placement Optimization with Reinforcement Learning", section 3.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.disjoint_sets import Union
from placewright.errors import ProblemError
from placewright.transforms.coarsen import heavy_edges
from placewright.transforms.grouping import Grouping

if TYPE_CHECKING:
    from placewright.graph import Graph, Tensor
    from placewright.problem import Problem


def by_colocation(problem: Problem, count: int | None = None) -> Grouping:
    """Ops that belong together by the framework's constraints and the paper's rules.

    The problem's own units; an op with exactly one consumer joins it; a weight goes with its first
    reader, an update op with its weight, a gradient op with its forward op. Not always convex.

    Args:
        count: The most groups to make: heavy tensors between the groups' forward ops are put inside
            until there are no more.
    """
    graph, a = problem.graph, problem.arrays
    union = _with_forward(problem)
    for position, op in enumerate(graph.ops):
        if a.turn[position] and op.phase == "forward" and len(_readers(graph, position)) == 1:
            (reader,) = _readers(graph, position)
            if graph.ops[reader].phase == "forward":
                union.join(position, reader)
    grouping = Grouping.of("colocation", problem, [union.find(op) for op in range(len(graph))])
    return grouping if count is None else _fewer(problem, grouping, count)


def by_forward(problem: Problem) -> Grouping:
    """Each forward op with its weights, its gradient ops and their updates: the ops that learned
    placers decide on."""
    union = _with_forward(problem)
    labels = [union.find(op) for op in range(len(problem.graph))]
    return Grouping.of("forward", problem, labels)


def _with_forward(problem: Problem) -> Union:
    """Gradient ops with forward ops, weights with first readers, updates with weights, units."""
    graph, a = problem.graph, problem.arrays
    union = Union(len(graph))
    for position, home in enumerate(forward_ops(graph)):
        if home is not None:
            union.join(home, position)
    for position in range(len(graph)):
        readers = _readers(graph, position)
        if a.weight[position] and readers:
            union.join(position, min(readers))
            for reader in readers:
                if graph.ops[reader].phase == "update":
                    union.join(position, reader)
    for position, head in enumerate(a.head.tolist()):  # units may hold ops that take no turn
        union.join(head, position)
    return union


def _readers(graph: Graph, position: int) -> set[int]:
    """The ops that read any output of an op."""
    tensors = [(position, output) for output in range(len(graph.ops[position].outputs))]
    return {reader for tensor in tensors for reader in graph.readers.get(tensor, ())}


def _fewer(problem: Problem, grouping: Grouping, count: int) -> Grouping:
    """At most `count` groups, by heavy edges between forward ops.

    Where the groups are not convex even among forward ops, stretches of them with equal work.
    """
    if count < 1:
        raise ProblemError(f"{count} groups are asked for: expected at least 1")
    if len(grouping) <= count:
        return grouping
    a, graph, group = problem.arrays, problem.graph, grouping.group
    seconds = np.where(a.turn, np.where(a.allowed, a.compute, np.inf).min(axis=1), 0.0)
    work = np.bincount(group, weights=seconds, minlength=len(grouping)).astype(np.float64)
    forward = a.turn & np.array([op.phase == "forward" for op in graph.ops])
    flow: dict[tuple[int, int], float] = {}
    for tensor in np.flatnonzero(forward[a.producer]).tolist():
        source = int(group[a.producer[tensor]])
        readers = a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]]
        for target in {int(group[reader]) for reader in readers[forward[readers]]} - {source}:
            pair = (source, target)
            flow[pair] = flow.get(pair, 0.0) + float(a.sizes[tensor]) + 1.0
    try:
        into = heavy_edges(work, flow, count)
    except ProblemError:  # units that are not convex
        done = np.cumsum(work + work.sum() / len(work)) / (2 * work.sum() or 1.0)
        into = np.minimum((done * count).astype(np.int64), count - 1)
    return Grouping.of(f"colocation:{count}", problem, into[group].tolist())


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
