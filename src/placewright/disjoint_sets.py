"""Disjoint sets (union-find): each set is named by its smallest item."""

from __future__ import annotations


class DisjointSets:
    """The items 0 to size - 1, at first each in its own set; the smallest item names its set."""

    def __init__(self, size: int) -> None:
        self.parent = list(range(size))

    def find(self, item: int) -> int:
        while self.parent[item] != item:
            self.parent[item] = self.parent[self.parent[item]]
            item = self.parent[item]
        return item

    def merge(self, a: int, b: int) -> None:
        low, high = sorted((self.find(a), self.find(b)))
        self.parent[high] = low
