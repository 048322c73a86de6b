"""A grouping: ops put together so that they are placed as one, with the way back to ops."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from placewright.disjoint_sets import Union
from placewright.errors import ProblemError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from placewright.problem import Problem

_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True, eq=False)
class Grouping:
    """A group number for each op; groups are numbered by their first op.

    Make one with `Grouping.of`, which joins the ops that the problem keeps together anyway.
    """

    name: str
    group: NDArray[np.int32]

    @classmethod
    def of(cls, name: str, problem: Problem, label: Sequence[object]) -> Grouping:
        """Ops of equal label in one group; whole units, and weights with their first reader."""
        a = problem.arrays
        if len(label) != a.ops:
            raise ProblemError(f"a grouping has {len(label)} labels: the graph has {a.ops} ops")
        union = Union(a.ops)
        first: dict[object, int] = {}
        for op, word in enumerate(label):
            if a.turn[op]:
                union.join(first.setdefault(word, op), op)
        for op in range(a.ops):
            union.join(int(a.leader[op]), op)
        return cls(name, numbered([union.find(op) for op in range(a.ops)]))

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

    def convex(self, problem: Problem) -> bool:
        """Whether no way leaves a group and comes back: each group could run as one.

        Weights and other things that are there before the step do not count as ways.
        """
        turn = problem.arrays.turn
        edges = {
            (int(self.group[source]), int(self.group[at]))
            for at, op in enumerate(problem.graph.ops)
            for source, _ in op.inputs
            if turn[source] and self.group[source] != self.group[at]
        }
        return topological(len(self), edges) is not None


def numbered(labels: Sequence[object]) -> NDArray[np.int32]:
    """Labels as numbers from 0, in order of first appearance."""
    number: dict[object, int] = {}
    return np.array([number.setdefault(label, len(number)) for label in labels], dtype=np.int32)


def topological(size: int, edges: Iterable[tuple[int, int]]) -> NDArray[np.int64] | None:
    """Each item's place in a topological order, small numbers first; None if there is a circle.

    Args:
        edges: Distinct (source, target) pairs of items.
    """
    readers: list[list[int]] = [[] for _ in range(size)]
    waiting = [0] * size
    for source, target in edges:
        readers[source].append(target)
        waiting[target] += 1
    ready = [item for item in range(size) if not waiting[item]]
    place = np.full(size, -1, dtype=np.int64)
    done = 0
    while ready:
        item = heapq.heappop(ready)
        place[item] = done
        done += 1
        for reader in readers[item]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    return place if done == size else None
