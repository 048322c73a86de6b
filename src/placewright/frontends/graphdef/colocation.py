"""Colocation: the nodes of a GraphDef that must share a device."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placewright.graph import Op

_PREFIX = "loc:@"  # of an entry of `_class` that names a node


class Colocation:
    """Disjoint sets of nodes, each named by its path and name; a set's leader is its label."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def add_node(self, node: Any, path: str) -> None:
        """Merge a node with those that its `_class` attribute names."""
        if "_class" in node.attr:
            for entry in node.attr["_class"].list.s:
                label = entry.decode("utf-8", "replace")
                if label.startswith(_PREFIX):
                    self.merge(path + node.name, path + label.removeprefix(_PREFIX))

    def merge(self, node: str, other: str) -> None:
        """Put two nodes on one device."""
        self._parent[self._leader(node)] = self._leader(other)

    def label(self, ops: list[Op], positions: Mapping[str, int]) -> None:
        """Label the ops of each set; `positions` has the op of each node."""
        for node in {*self._parent, *self._parent.values()}:
            if node in positions:
                at = positions[node]
                ops[at] = replace(ops[at], colocate=self._leader(node))

    def _leader(self, node: str) -> str:
        while self._parent.get(node, node) != node:
            node = self._parent[node]
        return node
