"""Coarsening: a problem in, a given number of convex groups that keep heavy tensors inside out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.disjoint_sets import Union
from placewright.errors import ProblemError
from placewright.transforms.grouping import Grouping, topological

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem

_LARGEST = 2.0  # times an equal share: the most work that a group may grow to by merging


def by_heavy_edges(problem: Problem, count: int) -> Grouping:
    """At most `count` convex groups, by merging the ends of the heaviest edges first.

    Heavy-edge matching (Karypis and Kumar 1998) on directed graphs: see `_matching` for why the
    groups stay convex. When no edge may be merged any more, groups that are neighbours in
    topological order are merged, which keeps them convex too.
    """
    if count < 1:
        raise ProblemError(f"{count} groups are asked for: expected at least 1")
    a = problem.arrays
    leaders = np.unique(a.leader)
    number = np.full(a.ops, -1)
    number[leaders] = np.arange(len(leaders))
    team = number[a.leader]
    seconds = np.where(a.turn, np.where(a.allowed, a.compute, np.inf).min(axis=1), 0.0)
    work = np.bincount(team, weights=seconds, minlength=len(leaders)).astype(np.float64)
    flow: dict[tuple[int, int], float] = {}
    for tensor in np.flatnonzero(a.turn[a.producer]).tolist():
        source = int(team[a.producer[tensor]])
        readers = a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]]
        for target in {int(team[reader]) for reader in readers} - {source}:
            pair = (source, target)
            flow[pair] = flow.get(pair, 0.0) + float(a.sizes[tensor]) + 1.0
    group = heavy_edges(work, flow, count)[team]
    return Grouping.of(f"coarse:{count}", problem, group[a.leader].tolist())


def heavy_edges(
    work: NDArray[np.float64], flow: dict[tuple[int, int], float], count: int
) -> NDArray[np.int64]:
    """The group of each item, at most `count` of them, numbered topologically.

    Args:
        work: How much each item is.
        flow: (source, target) → how much better it is to have the two together.
    """
    coarse = _Coarse(work, flow)
    while coarse.size > count:
        before = coarse.size
        coarse.merge(_only_readers(coarse, count))
        if coarse.size > count:
            coarse.merge(_matching(coarse, count))
        if coarse.size == before:
            break
    if coarse.size > count:
        coarse.cut(count)
    return coarse.group


class _Coarse:
    """Groups of items and what flows between them; group numbers are topological."""

    def __init__(self, work: NDArray[np.float64], flow: dict[tuple[int, int], float]) -> None:
        self.group = np.arange(len(work))  # items → groups
        self.work, self.flow = work, flow
        self._renumber(self.group)

    @property
    def size(self) -> int:
        return len(self.work)

    def levels(self) -> NDArray[np.int64]:
        """The longest way to each group, in edges."""
        level = np.zeros(self.size, dtype=np.int64)
        for source, target in sorted(self.flow):  # numbers are topological
            level[target] = max(level[target], level[source] + 1)
        return level

    def merge(self, pairs: list[tuple[int, int]]) -> None:
        union = Union(self.size)
        for tail, head in pairs:
            union.join(tail, head)
        self._renumber(np.array([union.find(group) for group in range(self.size)]))

    def largest(self, count: int) -> float:
        """The most work that a group may grow to by merging."""
        return _LARGEST * float(self.work.sum()) / count

    def cut(self, count: int) -> None:
        """Neighbours in topological order together, in stretches of equal work."""
        done = np.cumsum(self.work) - self.work / 2
        share = np.minimum(
            (done / max(self.work.sum(), 1e-300) * count).astype(np.int64), count - 1
        )
        if not self.work.sum() > 0:
            share = np.arange(self.size) * count // self.size
        first = np.unique(share, return_index=True)[1]
        self._renumber(first[np.searchsorted(share[first], share)])

    def _renumber(self, into: NDArray[np.int64]) -> None:
        """Merge groups into the ones that `into` names, and number them topologically anew."""
        kept, compact = np.unique(into, return_inverse=True)
        flow: dict[tuple[int, int], float] = {}
        for (source, target), size in self.flow.items():
            pair = (int(compact[source]), int(compact[target]))
            if pair[0] != pair[1]:
                flow[pair] = flow.get(pair, 0.0) + size
        order = topological(len(kept), flow)
        if order is None:
            raise ProblemError(
                "the groups that must share a device are not convex: cannot be coarsened"
            )
        self.flow = {(int(order[s]), int(order[t])): size for (s, t), size in flow.items()}
        work = np.bincount(order[compact], weights=self.work, minlength=len(kept))
        self.work = work.astype(np.float64)
        self.group = order[compact[self.group]]


def _only_readers(coarse: _Coarse, count: int) -> list[tuple[int, int]]:
    """Pairs of a group and its only reader, the heaviest edges first.

    All of them may be merged at once: what leaves the merged group leaves from its last member, and
    a way back to an earlier member would have been a circle before.
    """
    readers = np.bincount([source for source, _ in coarse.flow], minlength=coarse.size)
    only = [item for item in coarse.flow.items() if readers[item[0][0]] == 1]
    union, work = Union(coarse.size), coarse.work.copy()
    pairs: list[tuple[int, int]] = []
    for (tail, head), _ in sorted(only, key=lambda item: (-item[1], item[0])):
        one, other = union.find(tail), union.find(head)
        if len(pairs) == coarse.size - count:
            break
        if work[one] + work[other] <= coarse.largest(count):
            work[min(one, other)] += work[max(one, other)]
            union.join(one, other)
            pairs.append((tail, head))
    return pairs


def _matching(coarse: _Coarse, count: int) -> list[tuple[int, int]]:
    """Pairs (tail, head) to merge at once, the heaviest edges first.

    Only edges that climb one level of the longest-way numbering are merged, and no tail of one pair
    has an edge to the head of another pair on the same two levels. Then groups stay convex: give a
    merged pair its tail's level. An edge from pair A to pair B climbs at least one level, unless it
    leads from A's tail to B's head with both on the same levels, which is excluded; an edge from a
    single group to a pair's head on the next level keeps the level, but every edge out of that pair
    then climbs. So no circle can close.
    """
    level = coarse.levels()
    readers: dict[int, list[int]] = {}
    producers: dict[int, list[int]] = {}
    for source, target in coarse.flow:
        readers.setdefault(source, []).append(target)
        producers.setdefault(target, []).append(source)
    tails: set[int] = set()
    heads: set[int] = set()
    pairs: list[tuple[int, int]] = []
    most, largest = coarse.size - count, coarse.largest(count)
    for (tail, head), _ in sorted(coarse.flow.items(), key=lambda item: (-item[1], item[0])):
        if len(pairs) == most:
            break
        if level[head] != level[tail] + 1:
            continue
        if any(end in tails or end in heads for end in (tail, head)):
            continue
        if coarse.work[tail] + coarse.work[head] > largest:
            continue
        if any(w in heads and level[w] == level[head] for w in readers[tail] if w != head):
            continue
        if any(x in tails and level[x] == level[tail] for x in producers[head] if x != tail):
            continue
        tails.add(tail)
        heads.add(head)
        pairs.append((tail, head))
    return pairs
