"""The tree of modules: boxes in boxes, with their ops and the flow between them.

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

MAX_BOX_ITEMS = 120  # items in one box
MAX_DEPTH = 12  # names of a module path that get boxes of their own


@dataclass(eq=False)
class ModuleBox:
    """A module, or a part of one.

    Args:
        name: What it is called inside the box around it.
        items: Ops, by position, and boxes, in order of their first op.
        edges: Pairs of indices into `items`: the second reads what the first makes.
    """

    name: str
    items: list[int | ModuleBox] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)

    @property
    def boxes(self) -> list[ModuleBox]:
        return [item for item in self.items if isinstance(item, ModuleBox)]


def build_tree(graph: Graph) -> ModuleBox:
    """The whole graph as a box."""
    root = _nested(graph)
    all_nested = _boxes_below(root)
    for box in reversed(all_nested):  # inner boxes first
        box.items = [
            _unwrap_single(item) if isinstance(item, ModuleBox) else item for item in box.items
        ]
    all_nested = _boxes_below(root)
    first_ops = _first_ops(all_nested)
    for box in all_nested:
        box.items = _group_runs(
            sorted(box.items, key=lambda item: _first_op(item, first_ops)), first_ops
        )
    _connect(graph, root)
    return root


def all_boxes(root: ModuleBox) -> list[ModuleBox]:
    """Every box, those around others first."""
    return _boxes_below(root)


def _nested(graph: Graph) -> ModuleBox:
    has_phases = len({op.phase for op in graph.ops}) > 1
    root = ModuleBox(graph.name)
    boxes: dict[tuple[str, ...], ModuleBox] = {(): root}
    for position, op in enumerate(graph.ops):
        path: tuple[str, ...] = (op.phase,) if has_phases else ()
        path += tuple(op.module.split(".")[:MAX_DEPTH]) if op.module else ()
        for depth in range(1, len(path) + 1):
            if path[:depth] not in boxes:
                boxes[path[:depth]] = ModuleBox(path[depth - 1])
                boxes[path[: depth - 1]].items.append(boxes[path[:depth]])
        boxes[path].items.append(position)
    return root


def _unwrap_single(box: ModuleBox) -> int | ModuleBox:
    """A box, or what it holds where that is one thing: nobody wants to open a box for that."""
    if len(box.items) > 1:
        return box
    inner = box.items[0]
    if isinstance(inner, ModuleBox):
        inner.name = f"{box.name}.{inner.name}"
    return inner


def _group_runs(items: list[int | ModuleBox], first_ops: dict[int, int]) -> list[int | ModuleBox]:
    """The same items, or where they are too many, runs of neighbours in boxes."""
    if len(items) <= MAX_BOX_ITEMS:
        return items
    boxes = [item for item in items if isinstance(item, ModuleBox)]
    ops: list[int | ModuleBox] = [item for item in items if not isinstance(item, ModuleBox)]
    grouped: list[int | ModuleBox] = list(boxes)
    if len(boxes) > MAX_BOX_ITEMS // 2:
        grouped = _make_runs(grouped, "modules", first_ops)
    grouped += _make_runs(ops, "ops", first_ops) if len(ops) > MAX_BOX_ITEMS // 2 else ops
    return sorted(grouped, key=lambda item: _first_op(item, first_ops))


def _make_runs(
    items: list[int | ModuleBox], item_word: str, first_ops: dict[int, int]
) -> list[int | ModuleBox]:
    spans = [
        (index, index + 1) for index in range(len(items))
    ]  # of the items that each run is made of
    while len(items) > MAX_BOX_ITEMS:
        parts = -(-len(items) // MAX_BOX_ITEMS)
        cuts = [round(index * len(items) / parts) for index in range(parts + 1)]
        runs: list[int | ModuleBox] = []
        for start, end in pairwise(cuts):
            word = (
                f"{item_word} " if parts <= MAX_BOX_ITEMS else ""
            )  # inside of other runs the word is known
            name = f"{word}{spans[start][0] + 1:,}–{spans[end - 1][1]:,}"
            run = ModuleBox(name, items[start:end])
            first_ops[id(run)] = _first_op(run.items[0], first_ops)
            runs.append(run)
        spans = [(spans[start][0], spans[end - 1][1]) for start, end in pairwise(cuts)]
        items = runs
    return items


def _boxes_below(root: ModuleBox) -> list[ModuleBox]:
    boxes = [root]
    for box in boxes:
        boxes += box.boxes
    return boxes


def _first_ops(boxes: Sequence[ModuleBox]) -> dict[int, int]:
    """Where the first op of each box stands, by the box's identity."""
    first_ops: dict[int, int] = {}
    for box in reversed(boxes):
        first_ops[id(box)] = min(_first_op(item, first_ops) for item in box.items)
    return first_ops


def _first_op(item: int | ModuleBox, first_ops: dict[int, int]) -> int:
    return first_ops[id(item)] if isinstance(item, ModuleBox) else item


def _connect(graph: Graph, root: ModuleBox) -> None:
    """Give every box the flow between its items: each edge of the graph shows in one box."""
    op_paths: list[tuple[tuple[ModuleBox, int], ...]] = [()] * len(
        graph
    )  # (box, index in it), root first
    queue: list[tuple[ModuleBox, tuple[tuple[ModuleBox, int], ...]]] = [(root, ())]
    for box, box_path in queue:
        for index, item in enumerate(box.items):
            if isinstance(item, ModuleBox):
                queue.append((item, (*box_path, (box, index))))
            else:
                op_paths[item] = (*box_path, (box, index))
    box_edges: dict[int, dict[tuple[int, int], None]] = {}
    for position, op in enumerate(graph.ops):
        for source in dict.fromkeys(source for source, _ in op.inputs):
            for (box, index), (_, reader_index) in zip(
                op_paths[source], op_paths[position], strict=False
            ):
                if index != reader_index:
                    box_edges.setdefault(id(box), {})[index, reader_index] = None
                    break
    for box in _boxes_below(root):
        box.edges = list(box_edges.get(id(box), {}))
