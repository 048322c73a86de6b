"""Colocation groups: the groups of ops that ColocRL places.

Mirhoseini et al. 2017, "Device Placement Optimization with Reinforcement Learning", section 3.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.disjoint_sets import DisjointSets
from placewright.errors import ProblemError
from placewright.transforms.coarsen import merge_heavy_edges
from placewright.transforms.grouping import Grouping

if TYPE_CHECKING:
    from placewright.graph import Graph, Tensor
    from placewright.problem import Problem


def by_colocation(problem: Problem, count: int | None = None) -> Grouping:
    """Ops that belong together by the framework's constraints and the paper's rules.

    The problem's units. An op with exactly one reader joins it; a weight goes with its first
    reader, an update op with its weight, a gradient op with its forward op. Not always convex.

    Args:
        count: The maximum number of groups: groups are merged by the heaviest tensors between
            their forward ops.
    """
    graph, a = problem.graph, problem.arrays
    sets = join_with_forward(problem)
    for position, op in enumerate(graph.ops):
        if (
            a.scheduled[position]
            and op.phase == "forward"
            and len(reader_ops(graph, position)) == 1
        ):
            (reader,) = reader_ops(graph, position)
            if graph.ops[reader].phase == "forward":
                sets.merge(position, reader)
    grouping = Grouping.of("colocation", problem, [sets.find(op) for op in range(len(graph))])
    return grouping if count is None else merge_to_count(problem, grouping, count)


def by_forward(problem: Problem) -> Grouping:
    """Each forward op with its weights, gradient ops and updates: one decision of a policy each."""
    sets = join_with_forward(problem)
    labels = [sets.find(op) for op in range(len(problem.graph))]
    return Grouping.of("forward", problem, labels)


def join_with_forward(problem: Problem) -> DisjointSets:
    """Gradient ops with forward ops, weights with first readers, updates with weights, units."""
    graph, a = problem.graph, problem.arrays
    sets = DisjointSets(len(graph))
    for position, forward_op in enumerate(forward_ops(graph)):
        if forward_op is not None:
            sets.merge(forward_op, position)
    for position in range(len(graph)):
        readers = reader_ops(graph, position)
        if a.is_weight[position] and readers:
            sets.merge(position, min(readers))
            for reader in readers:
                if graph.ops[reader].phase == "update":
                    sets.merge(position, reader)
    for position, unit_head in enumerate(a.unit_head.tolist()):  # units may hold unscheduled ops
        sets.merge(unit_head, position)
    return sets


def reader_ops(graph: Graph, position: int) -> set[int]:
    """The ops that read any output of an op."""
    tensors = [(position, output) for output in range(len(graph.ops[position].outputs))]
    return {reader for tensor in tensors for reader in graph.readers.get(tensor, ())}


def merge_to_count(problem: Problem, grouping: Grouping, count: int) -> Grouping:
    """At most `count` groups, by heavy edges between forward ops.

    Where the groups are not convex even among forward ops, segments of equal work.
    """
    if count < 1:
        raise ProblemError(f"{count} groups were requested: expected at least 1")
    if len(grouping) <= count:
        return grouping
    a, graph, group = problem.arrays, problem.graph, grouping.group
    seconds = np.where(a.scheduled, np.where(a.allowed, a.compute, np.inf).min(axis=1), 0.0)
    work = np.bincount(group, weights=seconds, minlength=len(grouping)).astype(np.float64)
    forward = a.scheduled & np.array([op.phase == "forward" for op in graph.ops])
    edge_weights: dict[tuple[int, int], float] = {}
    for tensor in np.flatnonzero(forward[a.producer]).tolist():
        source = int(group[a.producer[tensor]])
        readers = a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]]
        for target in {int(group[reader]) for reader in readers[forward[readers]]} - {source}:
            pair = (source, target)
            edge_weights[pair] = edge_weights.get(pair, 0.0) + float(a.sizes[tensor]) + 1.0
    try:
        merged_group = merge_heavy_edges(work, edge_weights, count)
    except ProblemError:  # units that are not convex
        progress = np.cumsum(work + work.sum() / len(work)) / (2 * work.sum() or 1.0)
        merged_group = np.minimum((progress * count).astype(np.int64), count - 1)
    return Grouping.of(f"colocation:{count}", problem, merged_group[group].tolist())


def forward_ops(graph: Graph) -> list[int | None]:
    """For each gradient op the forward op it belongs to; None for other ops.

    Graphs captured from PyTorch have it in the name: `mlp.up.addmm.backward.mm`. Elsewhere we use
    that a gradient op reads tensors that its forward op read or made: in the same module, we take
    the forward op with which it shares most tensors, the later one on a tie; without a shared
    tensor the module's last forward op, or the forward op of the op it reads first.
    """
    touching_ops: dict[Tensor, list[int]] = {}
    last_of_module: dict[str, int] = {}
    forward_op_of: list[int | None] = []
    for position, op in enumerate(graph.ops):
        forward_op: int | None = None
        if op.phase == "forward":
            outputs = [(position, output) for output in range(len(op.outputs))]
            for tensor in dict.fromkeys([*op.inputs, *outputs]):
                touching_ops.setdefault(tensor, []).append(position)
            last_of_module[op.module] = position
        elif op.phase == "backward" and (forward_name := op.name.rpartition(".backward")[0]):
            forward_op = graph.position.get(forward_name)
        if op.phase == "backward" and forward_op is None:
            shared_counts: dict[int, int] = {}
            for tensor in dict.fromkeys(op.inputs):
                for forward in touching_ops.get(tensor, ()):
                    if graph.ops[forward].module == op.module:
                        shared_counts[forward] = shared_counts.get(forward, 0) + 1
            if shared_counts:
                forward_op = max(
                    shared_counts, key=lambda forward: (shared_counts[forward], forward)
                )
            elif op.module in last_of_module:
                forward_op = last_of_module[op.module]
            else:
                forward_op = next(
                    (forward_op_of[source] for source, _ in op.inputs if forward_op_of[source]),
                    None,
                )
        forward_op_of.append(forward_op)
    return forward_op_of
