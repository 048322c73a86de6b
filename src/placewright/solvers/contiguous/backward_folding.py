"""Folding: a problem in, which ops a contiguous split keeps together and in which order out.

In a training graph a backward op goes with its forward op, so that only the forward half has an
order. A backward op without a forward op (a loss, a sum of gradients) stays by itself, and the
order of what it hands to others is mirrored: this is how Tarnawski et al. 2020 fold such graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.disjoint_sets import Union
from placewright.transforms import forward_ops, topological

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem

Edges = frozenset[tuple[int, int]]
"""Pairs of which the first may not be in a later stage than the second."""


def folded(problem: Problem) -> NDArray[np.int64]:
    """A label for each op: its team, or that of its forward op; -1 for those set apart."""
    a, ops = problem.arrays, problem.graph.ops
    alone = a.allowed.sum(axis=1) == 1
    forward = np.array([op.phase == "forward" for op in ops])
    union = Union(a.ops)
    if not forward.all():
        with_forward = np.zeros(a.ops, dtype=bool)
        with_forward[a.leader[forward & a.turn]] = True
        common = {int(leader): a.allowed[leader] for leader in np.unique(a.leader)}
        homes = forward_ops(problem.graph)
        for op in np.flatnonzero(~forward & a.turn & ~with_forward[a.leader]).tolist():
            home = homes[op]
            if home is None and ops[op].phase == "update":
                home = _reader(problem, op)
            if home is None or alone[op] or alone[a.leader[home]]:
                continue
            one, other = union.find(int(a.leader[op])), union.find(int(a.leader[home]))
            both = common[one] & common[other]
            if both.any():
                union.join(one, other)
                common[union.find(one)] = both
    label = np.array([union.find(int(leader)) for leader in a.leader], dtype=np.int64)
    return np.where(alone | alone[a.leader], -1, label)


def _reader(problem: Problem, update: int) -> int | None:
    """The first forward op that reads the weight which an update reads, or a view of it."""
    a, ops = problem.arrays, problem.graph.ops
    tensors = a.inputs[a.first_input[update] : a.first_input[update + 1]].tolist()
    tensors = [tensor for tensor in tensors if a.stored[a.producer[tensor]]]
    for tensor in tensors:  # grows by the views
        for reader in a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]].tolist():
            if ops[reader].phase == "forward" and a.turn[reader]:
                return int(reader)
            if a.weight[reader]:
                tensors.extend(range(a.first_tensor[reader], a.first_tensor[reader + 1]))
    return None


def before(problem: Problem, label: NDArray[np.int64]) -> Edges:
    """Pairs of labels: forward ops in their order, and mirrored what backward pieces hand on."""
    a = problem.arrays
    forward = np.array([op.phase == "forward" for op in problem.graph.ops])
    orphan = np.ones(a.ops, dtype=bool)  # by label
    orphan[label[forward & a.turn & (label >= 0)]] = False
    reader = np.repeat(np.arange(a.ops), np.diff(a.first_input))
    source = a.producer[a.inputs]
    one, other = label[source], label[reader]
    real = a.turn[source] & a.turn[reader] & (one >= 0) & (other >= 0) & (one != other)
    ahead = real & forward[source] & forward[reader]
    mirrored = real & ~forward[source] & ~forward[reader] & (orphan[one] | orphan[other])
    pairs = [*zip(one[ahead].tolist(), other[ahead].tolist(), strict=True)]
    pairs += zip(other[mirrored].tolist(), one[mirrored].tolist(), strict=True)
    return frozenset(pairs)


def without_circles(
    problem: Problem, label: NDArray[np.int64], edges: Edges
) -> tuple[NDArray[np.int64], Edges]:
    """Labels that wait for each other in a circle as one, and the order that is left.

    Where the ops of a circle have no device in common, they keep their labels and lose their order.
    """
    a = problem.arrays
    if topological(a.ops, edges) is not None:
        return label, edges
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ends = np.array(sorted(edges), dtype=np.int64)
    links = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(a.ops, a.ops))
    component = connected_components(links.tocsr(), connection="strong")[1]
    free = label >= 0
    lead = np.unique(a.leader[free])
    common = np.ones((int(component.max()) + 1, a.devices), dtype=bool)
    np.logical_and.at(common, component[label[lead]], a.allowed[lead])
    # A component is called by one of its labels.
    name = np.zeros(len(common), dtype=np.int64)
    name[component[label[free]]] = label[free]
    one = common[component].any(axis=1)
    into = np.where(one, name[component], np.arange(a.ops))
    kept = {(int(into[s]), int(into[t])) for s, t in edges if component[s] != component[t]}
    return np.where(free, into[label], -1), frozenset(kept)
