"""Coarsens a problem into a given number of convex groups that keep heavy tensors inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.disjoint_sets import DisjointSets
from placewright.errors import ProblemError
from placewright.transforms.grouping import Grouping, topological_positions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem

_MAX_SHARE = 2.0  # times an equal share of the work: merging does not go beyond


def by_heavy_edges(problem: Problem, count: int) -> Grouping:
    """At most `count` convex groups, by merging the ends of the heaviest edges first.

    Heavy-edge matching (Karypis and Kumar 1998) on directed graphs: `_matched_pairs` says why the
    groups stay convex. When no edge may be merged any more, neighbours in topological order are
    merged, which keeps groups convex too.
    """
    if count < 1:
        raise ProblemError(f"{count} groups were requested: expected at least 1")
    a = problem.arrays
    leaders = np.unique(a.leader)
    item_of_leader = np.full(a.ops, -1)
    item_of_leader[leaders] = np.arange(len(leaders))
    item = item_of_leader[a.leader]
    seconds = np.where(a.scheduled, np.where(a.allowed, a.compute, np.inf).min(axis=1), 0.0)
    work = np.bincount(item, weights=seconds, minlength=len(leaders)).astype(np.float64)
    edge_weights: dict[tuple[int, int], float] = {}
    for tensor in np.flatnonzero(a.scheduled[a.producer]).tolist():
        source = int(item[a.producer[tensor]])
        readers = a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]]
        for target in {int(item[reader]) for reader in readers} - {source}:
            pair = (source, target)
            edge_weights[pair] = edge_weights.get(pair, 0.0) + float(a.sizes[tensor]) + 1.0
    group = merge_heavy_edges(work, edge_weights, count)[item]
    return Grouping.of(f"coarse:{count}", problem, group[a.leader].tolist())


def merge_heavy_edges(
    work: NDArray[np.float64], edge_weights: dict[tuple[int, int], float], count: int
) -> NDArray[np.int64]:
    """The group of each item, at most `count` of them, numbered topologically.

    Args:
        work: The work of each item.
        edge_weights: (source, target) → the gain of having the two together.
    """
    coarse = _GroupGraph(work, edge_weights)
    while coarse.size > count:
        size_before = coarse.size
        coarse.merge(_single_reader_pairs(coarse, count))
        if coarse.size > count:
            coarse.merge(_matched_pairs(coarse, count))
        if coarse.size == size_before:
            break
    if coarse.size > count:
        coarse.split_evenly(count)
    return coarse.group


class _GroupGraph:
    """Groups of items and the edges between them; group numbers are topological."""

    def __init__(
        self, work: NDArray[np.float64], edge_weights: dict[tuple[int, int], float]
    ) -> None:
        self.group = np.arange(len(work))  # items → groups
        self.work, self.edge_weights = work, edge_weights
        self._renumber(self.group)

    @property
    def size(self) -> int:
        return len(self.work)

    def levels(self) -> NDArray[np.int64]:
        """The longest path to each group, in edges."""
        level = np.zeros(self.size, dtype=np.int64)
        for source, target in sorted(self.edge_weights):  # numbers are topological
            level[target] = max(level[target], level[source] + 1)
        return level

    def merge(self, pairs: list[tuple[int, int]]) -> None:
        sets = DisjointSets(self.size)
        for tail, head in pairs:
            sets.merge(tail, head)
        self._renumber(np.array([sets.find(group) for group in range(self.size)]))

    def max_work(self, count: int) -> float:
        """The most work that a group may grow to by merging."""
        return _MAX_SHARE * float(self.work.sum()) / count

    def split_evenly(self, count: int) -> None:
        """Merge neighbours in topological order into segments of equal work."""
        midpoints = np.cumsum(self.work) - self.work / 2
        part = np.minimum(
            (midpoints / max(self.work.sum(), 1e-300) * count).astype(np.int64), count - 1
        )
        if not self.work.sum() > 0:
            part = np.arange(self.size) * count // self.size
        first_of_part = np.unique(part, return_index=True)[1]
        self._renumber(first_of_part[np.searchsorted(part[first_of_part], part)])

    def _renumber(self, representative: NDArray[np.int64]) -> None:
        """Merge groups into their representatives and number them topologically again."""
        groups, compact = np.unique(representative, return_inverse=True)
        edge_weights: dict[tuple[int, int], float] = {}
        for (source, target), size in self.edge_weights.items():
            pair = (int(compact[source]), int(compact[target]))
            if pair[0] != pair[1]:
                edge_weights[pair] = edge_weights.get(pair, 0.0) + size
        order = topological_positions(len(groups), edge_weights)
        if order is None:
            raise ProblemError(
                "the groups that must share a device are not convex: cannot be coarsened"
            )
        self.edge_weights = {
            (int(order[s]), int(order[t])): size for (s, t), size in edge_weights.items()
        }
        work = np.bincount(order[compact], weights=self.work, minlength=len(groups))
        self.work = work.astype(np.float64)
        self.group = order[compact[self.group]]


def _single_reader_pairs(coarse: _GroupGraph, count: int) -> list[tuple[int, int]]:
    """Pairs of a group and its only reader, the heaviest edges first.

    All of them may be merged at once: edges leave a merged group from its last member only, and a
    path back to an earlier member would have been a cycle before.
    """
    readers = np.bincount([source for source, _ in coarse.edge_weights], minlength=coarse.size)
    single_reader_edges = [edge for edge in coarse.edge_weights.items() if readers[edge[0][0]] == 1]
    sets, work = DisjointSets(coarse.size), coarse.work.copy()
    pairs: list[tuple[int, int]] = []
    for (tail, head), _ in sorted(single_reader_edges, key=lambda edge: (-edge[1], edge[0])):
        tail_set, head_set = sets.find(tail), sets.find(head)
        if len(pairs) == coarse.size - count:
            break
        if work[tail_set] + work[head_set] <= coarse.max_work(count):
            work[min(tail_set, head_set)] += work[max(tail_set, head_set)]
            sets.merge(tail_set, head_set)
            pairs.append((tail, head))
    return pairs


def _matched_pairs(coarse: _GroupGraph, count: int) -> list[tuple[int, int]]:
    """Pairs (tail, head) to merge at once, the heaviest edges first.

    Only edges that climb one level of the longest-path numbering are merged, and no tail of a pair
    has an edge to the head of another pair on the same two levels. Then groups stay convex: give a
    merged pair its tail's level. An edge from pair A to pair B climbs at least one level, unless it
    leads from A's tail to B's head with both on the same levels, which is excluded; an edge from a
    single group to a pair's head on the next level keeps the level, but every edge out of that pair
    then climbs. So no cycle can close.
    """
    level = coarse.levels()
    readers: dict[int, list[int]] = {}
    producers: dict[int, list[int]] = {}
    for source, target in coarse.edge_weights:
        readers.setdefault(source, []).append(target)
        producers.setdefault(target, []).append(source)
    tails: set[int] = set()
    heads: set[int] = set()
    pairs: list[tuple[int, int]] = []
    max_pairs, max_work = coarse.size - count, coarse.max_work(count)
    for (tail, head), _ in sorted(
        coarse.edge_weights.items(), key=lambda edge: (-edge[1], edge[0])
    ):
        if len(pairs) == max_pairs:
            break
        if level[head] != level[tail] + 1:
            continue
        if any(end in tails or end in heads for end in (tail, head)):
            continue
        if coarse.work[tail] + coarse.work[head] > max_work:
            continue
        if any(w in heads and level[w] == level[head] for w in readers[tail] if w != head):
            continue
        if any(x in tails and level[x] == level[tail] for x in producers[head] if x != tail):
            continue
        tails.add(tail)
        heads.add(head)
        pairs.append((tail, head))
    return pairs
