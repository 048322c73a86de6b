"""The coarse graph that a contiguous split cuts, with nodes in topological order.

A node consists of whole bundles, folded by `backward_folding`, and of the ops on a cycle with them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.solvers.contiguous.backward_folding import (
    fold_labels,
    precedence_edges,
    without_cycles,
)
from placewright.solvers.contiguous.boundary_tensors import BoundaryTensors
from placewright.transforms import merge_heavy_edges, topological_positions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.solvers.contiguous.backward_folding import Edges


@dataclass(frozen=True, eq=False)
class CoarseGraph:
    """The nodes of a problem, in a topological order of `precedence`.

    Args:
        node_of: Ops → nodes, or -1 for an op that can be on one device only. Such ops are fixed:
            they are on their device in every split.
        fixed_device: The device of each fixed op.
        first_op: Each node's first op, a forward one if it has any.
        allowed: Nodes × devices.
        seconds: Nodes × devices; 0 where a node may not be.
        fixed_seconds: Devices: seconds of the fixed ops.
        resident: Bytes that stay for the whole step.
        max_bytes: The same and every output, which is more than is ever in use at once.
        precedence: Pairs of nodes of which the first must not be in a later stage than the second.
        boundary: The tensors between nodes.
    """

    problem: Problem
    node_of: NDArray[np.int64]
    fixed_device: NDArray[np.int32]
    first_op: NDArray[np.int64]
    allowed: NDArray[np.bool_]
    seconds: NDArray[np.float64]
    fixed_seconds: NDArray[np.float64]
    resident: NDArray[np.int64]
    max_bytes: NDArray[np.int64]
    precedence: Edges
    boundary: BoundaryTensors

    def __len__(self) -> int:
        return len(self.first_op)

    @classmethod
    def of(cls, problem: Problem) -> CoarseGraph:
        """One node per bundle, except for folded ops."""
        label = fold_labels(problem)
        return cls._from_labels(
            problem, *without_cycles(problem, label, precedence_edges(problem, label))
        )

    @classmethod
    def _from_labels(cls, problem: Problem, label: NDArray[np.int64], edges: Edges) -> CoarseGraph:
        """Nodes from a label per op (-1 for fixed ops) and an order without cycles."""
        a = problem.arrays
        names, node_of = np.unique(label, return_inverse=True)
        offset = int(names[0] < 0) if len(names) else 0
        node_of, names = node_of.astype(np.int64) - offset, names[offset:]
        count = len(names)
        index_of = {int(name): index for index, name in enumerate(names)}
        compact = {(index_of[source], index_of[target]) for source, target in edges}
        position = topological_positions(count, compact)
        assert position is not None  # there are no cycles left
        node_of = np.append(position, -1)[node_of]  # -1 stays -1
        forward = np.array([op.phase == "forward" for op in problem.graph.ops]) & a.scheduled
        first_op = np.full(count, a.ops)
        for is_first in (~forward, forward):  # the later assignment wins: forward ops before others
            ops = np.flatnonzero(is_first & (node_of >= 0))[::-1]
            first_op[node_of[ops]] = ops
        seconds = np.where(a.allowed, a.compute, 0.0)
        tensor_bytes = np.where((a.alias < 0) & ~a.is_resident[a.producer], a.sizes, 0)
        outputs = np.bincount(a.producer, weights=tensor_bytes, minlength=a.ops).astype(np.int64)
        free = node_of >= 0
        fixed_device = problem.legalize(np.zeros(a.ops, dtype=np.int32))
        fixed_ops = np.flatnonzero(~free)
        fixed_seconds = np.bincount(
            fixed_device[fixed_ops], a.compute[fixed_ops, fixed_device[fixed_ops]], a.devices
        ).astype(float)

        def total(values: NDArray[np.generic]) -> NDArray[np.float64]:
            sums = np.bincount(node_of[free], weights=values[free], minlength=count)
            return sums.astype(np.float64)

        allowed = np.ones((count, a.devices), dtype=bool)
        leaders = np.unique(a.leader[free])  # the others follow, or go where they are allowed
        np.logical_and.at(allowed, node_of[leaders], a.allowed[leaders])
        return cls(
            problem,
            node_of,
            fixed_device,
            first_op,
            allowed,
            np.stack([total(column) for column in seconds.T], axis=1),
            fixed_seconds,
            total(a.resident).astype(np.int64),
            total(a.resident + outputs).astype(np.int64),
            frozenset((int(position[source]), int(position[target])) for source, target in compact),
            BoundaryTensors.of(problem, node_of, fixed_device),
        )

    @property
    def fastest_seconds(self) -> NDArray[np.float64]:
        """Each node's seconds on its fastest device."""
        fastest: NDArray[np.float64] = np.where(self.allowed, self.seconds, np.inf).min(axis=1)
        return fastest

    def placement(self, device: NDArray[np.integer]) -> NDArray[np.int32]:
        """The devices of all ops from those of the nodes (…, nodes)."""
        expanded = np.zeros((*device.shape[:-1], len(self.node_of)), dtype=np.int32)
        free = self.node_of >= 0
        expanded[..., free] = device[..., self.node_of[free]]
        return self.problem.legalize(expanded)

    def merge(self, group: NDArray[np.int64]) -> CoarseGraph:
        """Merge the nodes of each group.

        Groups must not form a cycle. Nodes that have no device in common are not merged.
        """
        common = np.ones((int(group.max()) + 1, self.allowed.shape[1]), dtype=bool)
        np.logical_and.at(common, group, self.allowed)
        merged = np.where(
            common[group].any(axis=1), group, int(group.max()) + 1 + np.arange(len(self))
        )
        label = np.where(self.node_of >= 0, merged[self.node_of], -1)
        edges = {(int(merged[source]), int(merged[target])) for source, target in self.precedence}
        return CoarseGraph._from_labels(
            self.problem, label, frozenset(edge for edge in edges if edge[0] != edge[1])
        )

    def coarsen(self, count: int) -> CoarseGraph:
        """About `count` nodes, with heavy tensors inside."""
        flow = dict.fromkeys(sorted(self.precedence), 0.0)
        heaviest = self.boundary.seconds.max(axis=0, initial=0.0)
        for index, source in enumerate(self.boundary.producer.tolist()):
            for reader in self.boundary.readers_of(index).tolist():
                for pair in ((source, reader), (reader, source)):
                    if pair in flow:
                        flow[pair] += float(heaviest[index])
        return self.merge(merge_heavy_edges(self.fastest_seconds, flow, count))

    def without_trivial_nodes(self, share: float = 0.0) -> CoarseGraph:
        """Nodes that take no time and have one neighbour only are merged with it.

        No load grows by this: the node adds nothing to the neighbour's stage and saves the
        transfers between the two. Where memory is short, only nodes without bytes are merged.

        Args:
            share: The share of all work that counts as no time. If it is above 0, nodes without a
                neighbour are merged too, with the node before them.
        """
        neighbours, is_tied = self._neighbours()
        is_short = self.resident.sum() > self.problem.arrays.capacity.min()
        is_trivial = self.seconds.max(axis=1, initial=0.0) <= share * self.fastest_seconds.sum()
        is_trivial &= ~is_tied & ((self.resident == 0) | ~is_short) & self.allowed.all(axis=1)
        merged = np.arange(len(self))
        if share:
            graph_order = np.argsort(self.first_op)
            for earlier, node in itertools.pairwise(graph_order.tolist()):
                if is_trivial[node] and not neighbours[node]:
                    merged[node] = earlier
        waiting = list(range(len(self)))
        while waiting:
            node = waiting.pop()
            if is_trivial[node] and len(neighbours[node]) == 1:
                neighbour = neighbours[node].pop()
                neighbours[neighbour].discard(node)
                merged[node] = neighbour
                waiting.append(neighbour)
        while (merged != merged[merged]).any():
            merged = merged[merged]
        return self.merge(merged)

    def _neighbours(self) -> tuple[list[set[int]], NDArray[np.bool_]]:
        """The neighbours of each node, and whether it shares tensors with fixed ops."""
        neighbours: list[set[int]] = [set() for _ in range(len(self))]
        is_tied = np.zeros(len(self), dtype=bool)
        pairs = list(self.precedence)
        for index, source in enumerate(self.boundary.producer.tolist()):
            readers = self.boundary.readers_of(index)
            if source < 0:
                is_tied[readers] = True
                continue
            is_tied[source] |= bool(self.boundary.fixed_targets[index])
            pairs.extend((source, reader) for reader in readers.tolist())
        for node, neighbour in pairs:
            neighbours[node].add(neighbour)
            neighbours[neighbour].add(node)
        return neighbours, is_tied
