"""Sets that grow together, and who stands for each (union-find)."""

from __future__ import annotations


class Union:
    """The items 0 to size - 1, each a set of its own at first; the smallest stands for its set."""

    def __init__(self, size: int) -> None:
        self.parent = list(range(size))

    def find(self, item: int) -> int:
        while self.parent[item] != item:
            self.parent[item] = self.parent[self.parent[item]]
            item = self.parent[item]
        return item

    def join(self, one: int, other: int) -> None:
        low, high = sorted((self.find(one), self.find(other)))
        self.parent[high] = low
