"""Backward folding: which backward ops go with which forward ops in a contiguous split.

In a training graph a backward op goes with its forward op, so that only the forward half has an
order. A backward op without a forward op (a loss, a sum of gradients) keeps its own label, and the
order of its edges to others is mirrored, as Tarnawski et al. 2020 fold such graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.disjoint_sets import DisjointSets
from placewright.transforms import forward_ops, topological_positions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem

Edges = frozenset[tuple[int, int]]
"""Pairs of which the first must not be in a later stage than the second."""


def fold_labels(problem: Problem) -> NDArray[np.int64]:
    """A label for each op: its bundle, or that of its forward op; -1 for fixed ops."""
    a, ops = problem.arrays, problem.graph.ops
    pinned = a.allowed.sum(axis=1) == 1
    forward = np.array([op.phase == "forward" for op in ops])
    union = DisjointSets(a.ops)
    if not forward.all():
        with_forward = np.zeros(a.ops, dtype=bool)
        with_forward[a.leader[forward & a.scheduled]] = True
        common = {int(leader): a.allowed[leader] for leader in np.unique(a.leader)}
        forward_of = forward_ops(problem.graph)
        for op in np.flatnonzero(~forward & a.scheduled & ~with_forward[a.leader]).tolist():
            forward_op = forward_of[op]
            if forward_op is None and ops[op].phase == "update":
                forward_op = _forward_reader(problem, op)
            if forward_op is None or pinned[op] or pinned[a.leader[forward_op]]:
                continue
            root, forward_root = (
                union.find(int(a.leader[op])),
                union.find(int(a.leader[forward_op])),
            )
            shared = common[root] & common[forward_root]
            if shared.any():
                union.merge(root, forward_root)
                common[union.find(root)] = shared
    label = np.array([union.find(int(leader)) for leader in a.leader], dtype=np.int64)
    return np.where(pinned | pinned[a.leader], -1, label)


def _forward_reader(problem: Problem, update: int) -> int | None:
    """The first forward op that reads the weight of an update, or a view of it."""
    a, ops = problem.arrays, problem.graph.ops
    tensors = a.inputs[a.first_input[update] : a.first_input[update + 1]].tolist()
    tensors = [tensor for tensor in tensors if a.is_resident[a.producer[tensor]]]
    for tensor in tensors:  # grows by the views
        for reader in a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]].tolist():
            if ops[reader].phase == "forward" and a.scheduled[reader]:
                return int(reader)
            if a.is_weight[reader]:
                tensors.extend(range(a.first_tensor[reader], a.first_tensor[reader + 1]))
    return None


def precedence_edges(problem: Problem, label: NDArray[np.int64]) -> Edges:
    """Pairs of labels: forward ops in their order, and edges of backward nodes mirrored."""
    a = problem.arrays
    forward = np.array([op.phase == "forward" for op in problem.graph.ops])
    orphan = np.ones(a.ops, dtype=bool)  # by label
    orphan[label[forward & a.scheduled & (label >= 0)]] = False
    source = a.producer[a.inputs]
    source_label, reader_label = label[source], label[a.reader]
    crossing = (
        a.scheduled[source]
        & a.scheduled[a.reader]
        & (source_label >= 0)
        & (reader_label >= 0)
        & (source_label != reader_label)
    )
    is_forward = crossing & forward[source] & forward[a.reader]
    mirrored = (
        crossing
        & ~forward[source]
        & ~forward[a.reader]
        & (orphan[source_label] | orphan[reader_label])
    )
    pairs = [
        *zip(source_label[is_forward].tolist(), reader_label[is_forward].tolist(), strict=True)
    ]
    pairs += zip(reader_label[mirrored].tolist(), source_label[mirrored].tolist(), strict=True)
    return frozenset(pairs)


def without_cycles(
    problem: Problem, label: NDArray[np.int64], edges: Edges
) -> tuple[NDArray[np.int64], Edges]:
    """Labels with each cycle merged into one, and the order that is left.

    Where the ops of a cycle have no device in common, they keep their labels and lose their order.
    """
    a = problem.arrays
    if topological_positions(a.ops, edges) is not None:
        return label, edges
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ends = np.array(sorted(edges), dtype=np.int64)
    links = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(a.ops, a.ops))
    component = connected_components(links.tocsr(), connection="strong")[1]
    free = label >= 0
    leaders = np.unique(a.leader[free])
    common = np.ones((int(component.max()) + 1, a.devices), dtype=bool)
    np.logical_and.at(common, component[label[leaders]], a.allowed[leaders])
    # A component is named by one of its labels.
    label_of = np.zeros(len(common), dtype=np.int64)
    label_of[component[label[free]]] = label[free]
    is_mergeable = common[component].any(axis=1)
    merged = np.where(is_mergeable, label_of[component], np.arange(a.ops))
    remaining = {(int(merged[s]), int(merged[t])) for s, t in edges if component[s] != component[t]}
    return np.where(free, merged[label], -1), frozenset(remaining)
