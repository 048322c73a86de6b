"""Grouping: ops that are placed as one, with the mapping back to ops."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from placewright.disjoint_sets import DisjointSets
from placewright.errors import ProblemError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from placewright.problem import Problem

_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True, eq=False)
class Grouping:
    """A group number for each op; groups are numbered by their first op.

    Make one with `Grouping.of`, which joins the ops that the problem keeps together.
    """

    name: str
    group: NDArray[np.int32]

    @classmethod
    def of(cls, name: str, problem: Problem, labels: Sequence[object]) -> Grouping:
        """Ops of equal label in one group; whole units, and weights with their first reader."""
        a = problem.arrays
        if len(labels) != a.ops:
            raise ProblemError(f"a grouping has {len(labels)} labels: the graph has {a.ops} ops")
        sets = DisjointSets(a.ops)
        first_op: dict[object, int] = {}
        for op, label in enumerate(labels):
            if a.scheduled[op]:
                sets.merge(first_op.setdefault(label, op), op)
        for op in range(a.ops):
            sets.merge(int(a.leader[op]), op)
        return cls(name, number_labels([sets.find(op) for op in range(a.ops)]))

    def __len__(self) -> int:
        return int(self.group.max()) + 1

    def __repr__(self) -> str:
        return f"Grouping({self.name!r}, {len(self.group):,} ops in {len(self):,} groups)"

    def expand(self, values: NDArray[_Scalar]) -> NDArray[_Scalar]:
        """Values of groups (…, groups) as values of ops (…, ops)."""
        return values[..., self.group]

    def members(self) -> list[NDArray[np.int64]]:
        """The ops of each group, in graph order."""
        order = np.argsort(self.group, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(self.group[order])) + 1)

    def is_convex(self, problem: Problem) -> bool:
        """Whether no path leaves a group and comes back: each group could run as one.

        Paths go through scheduled ops only.
        """
        scheduled = problem.arrays.scheduled
        edges = {
            (int(self.group[source]), int(self.group[at]))
            for at, op in enumerate(problem.graph.ops)
            for source, _ in op.inputs
            if scheduled[source] and self.group[source] != self.group[at]
        }
        return topological_positions(len(self), edges) is not None


def number_labels(labels: Sequence[object]) -> NDArray[np.int32]:
    """Labels as numbers from 0, in order of first appearance."""
    number: dict[object, int] = {}
    return np.array([number.setdefault(label, len(number)) for label in labels], dtype=np.int32)


def topological_positions(size: int, edges: Iterable[tuple[int, int]]) -> NDArray[np.int64] | None:
    """Each item's position in a topological order, small numbers first; None if there is a cycle.

    Args:
        edges: Distinct (source, target) pairs of items.
    """
    readers: list[list[int]] = [[] for _ in range(size)]
    unmet = [0] * size
    for source, target in edges:
        readers[source].append(target)
        unmet[target] += 1
    ready = [item for item in range(size) if not unmet[item]]
    position = np.full(size, -1, dtype=np.int64)
    count = 0
    while ready:
        item = heapq.heappop(ready)
        position[item] = count
        count += 1
        for reader in readers[item]:
            unmet[reader] -= 1
            if not unmet[reader]:
                heapq.heappush(ready, reader)
    return position if count == size else None
