"""A graph in, its modules as boxes in boxes out, with the ops and the flow between them.

A training step has a box for each phase, since its modules are gone through twice. A box that holds
too much to be looked at, as where a graph names no modules, is cut into runs of neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.graph import Graph

MOST = 120  # things in one box
DEEPEST = 12  # names of a module path that get boxes of their own


@dataclass(eq=False)
class Box:
    """A module, or a part of one.

    Args:
        name: What it is called inside the box around it.
        items: Ops, by position, and boxes, in order of their first op.
        edges: Pairs of indices into `items`: the second reads what the first makes.
    """

    name: str
    items: list[int | Box] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)

    @property
    def boxes(self) -> list[Box]:
        return [item for item in self.items if isinstance(item, Box)]


def module_tree(graph: Graph) -> Box:
    """The whole graph as a box."""
    root = _nested(graph)
    everything = _walk(root)
    for box in reversed(everything):  # inner boxes first
        box.items = [_only(item) if isinstance(item, Box) else item for item in box.items]
    everything = _walk(root)
    first = _first_ops(everything)
    for box in everything:
        box.items = _in_runs(sorted(box.items, key=lambda item: _place(item, first)), first)
    _connect(graph, root)
    return root


def all_boxes(root: Box) -> list[Box]:
    """Every box, those around others first."""
    return _walk(root)


def _nested(graph: Graph) -> Box:
    several = len({op.phase for op in graph.ops}) > 1
    root = Box(graph.name)
    known: dict[tuple[str, ...], Box] = {(): root}
    for position, op in enumerate(graph.ops):
        path: tuple[str, ...] = (op.phase,) if several else ()
        path += tuple(op.module.split(".")[:DEEPEST]) if op.module else ()
        for depth in range(1, len(path) + 1):
            if path[:depth] not in known:
                known[path[:depth]] = Box(path[depth - 1])
                known[path[: depth - 1]].items.append(known[path[:depth]])
        known[path].items.append(position)
    return root


def _only(box: Box) -> int | Box:
    """A box, or what it holds where that is one thing: nobody wants to open a box for that."""
    if len(box.items) > 1:
        return box
    inner = box.items[0]
    if isinstance(inner, Box):
        inner.name = f"{box.name}.{inner.name}"
    return inner


def _in_runs(items: list[int | Box], first: dict[int, int]) -> list[int | Box]:
    """The same items, or where they are too many, runs of neighbours in boxes."""
    if len(items) <= MOST:
        return items
    boxes = [item for item in items if isinstance(item, Box)]
    loose: list[int | Box] = [item for item in items if not isinstance(item, Box)]
    kept: list[int | Box] = list(boxes)
    if len(boxes) > MOST // 2:
        kept = _runs(kept, "modules", first)
    kept += _runs(loose, "ops", first) if len(loose) > MOST // 2 else loose
    return sorted(kept, key=lambda item: _place(item, first))


def _runs(items: list[int | Box], what: str, first: dict[int, int]) -> list[int | Box]:
    spans = [(at, at + 1) for at in range(len(items))]  # of the items that each run is made of
    while len(items) > MOST:
        parts = -(-len(items) // MOST)
        cuts = [round(at * len(items) / parts) for at in range(parts + 1)]
        runs: list[int | Box] = []
        for start, end in pairwise(cuts):
            word = f"{what} " if parts <= MOST else ""  # inside of other runs the word is known
            name = f"{word}{spans[start][0] + 1:,}–{spans[end - 1][1]:,}"
            run = Box(name, items[start:end])
            first[id(run)] = _place(run.items[0], first)
            runs.append(run)
        spans = [(spans[start][0], spans[end - 1][1]) for start, end in pairwise(cuts)]
        items = runs
    return items


def _walk(root: Box) -> list[Box]:
    found = [root]
    for box in found:
        found += box.boxes
    return found


def _first_ops(boxes: Sequence[Box]) -> dict[int, int]:
    """Where the first op of each box stands, by the box's identity."""
    first: dict[int, int] = {}
    for box in reversed(boxes):
        first[id(box)] = min(_place(item, first) for item in box.items)
    return first


def _place(item: int | Box, first: dict[int, int]) -> int:
    return first[id(item)] if isinstance(item, Box) else item


def _connect(graph: Graph, root: Box) -> None:
    """Give every box the flow between its items: each edge of the graph shows in one box."""
    trail: list[tuple[tuple[Box, int], ...]] = [()] * len(graph)  # (box, index in it), root first
    waiting: list[tuple[Box, tuple[tuple[Box, int], ...]]] = [(root, ())]
    for box, way in waiting:
        for at, item in enumerate(box.items):
            if isinstance(item, Box):
                waiting.append((item, (*way, (box, at))))
            else:
                trail[item] = (*way, (box, at))
    found: dict[int, dict[tuple[int, int], None]] = {}
    for position, op in enumerate(graph.ops):
        for source in dict.fromkeys(source for source, _ in op.inputs):
            for (box, at), (_, other) in zip(trail[source], trail[position], strict=False):
                if at != other:
                    found.setdefault(id(box), {})[at, other] = None
                    break
    for box in _walk(root):
        box.edges = list(found.get(id(box), {}))
