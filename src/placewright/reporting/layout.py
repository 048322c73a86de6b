"""A graph in, where every op and every box of ops is drawn out.

Each box is laid out by itself: its items in columns along the flow, ordered within a column so that
few edges cross (the barycentre method of Sugiyama, Tagawa and Toda, 1981), and long rows of columns
broken into lines, as text is. Boxes then stand inside the boxes around them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from placewright.graph import INPUT, STATE, WEIGHT
from placewright.reporting.module_tree import (
    Box,
    all_boxes,
    module_tree,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.graph import Graph

OP = (26.0, 10.0)  # width and height
STORED = (16.0, 7.0)  # of a weight, a state or an input, which are not run
GAP = (12.0, 5.0)  # at least; more between large items
EDGE = 6.0  # between a box's border and what is in it, at least
ASPECT = 1.7  # width over height that a box should have
WHOLE = 2.1  # and the whole, which is looked at on a screen
SWEEPS = 6
FEW = 8  # ops in a column that is not worth a cut

Size = tuple[float, float]
Column = list[int]


@dataclass(frozen=True, eq=False)
class Drawing:
    """Where everything is: x, y, width and height.

    Args:
        ops: For each op.
        boxes: For each box of `tree`, those around others first; the first is the whole.
        parent: For each box the one around it, -1 for the whole.
        home: For each op the box that it is in.
        edges: For each box its flow, as pairs of items; boxes count from the number of ops on.
    """

    tree: Sequence[Box]
    ops: list[tuple[float, float, float, float]]
    boxes: list[tuple[float, float, float, float]]
    parent: list[int]
    home: list[int]
    edges: list[list[tuple[int, int]]]


def draw(graph: Graph) -> Drawing:
    """The whole graph, with all boxes open."""
    boxes = all_boxes(module_tree(graph))
    number = {id(box): at for at, box in enumerate(boxes)}
    sizes: dict[int, Size] = {}
    inside: dict[int, list[tuple[float, float]]] = {}
    for box in reversed(boxes):
        item_sizes = [
            sizes[id(item)] if isinstance(item, Box) else _op_size(graph.ops[item].kind)
            for item in box.items
        ]
        inside[id(box)], sizes[id(box)] = _arrange(
            item_sizes, box.edges, WHOLE if box is boxes[0] else ASPECT
        )
    ops = [(0.0, 0.0, 0.0, 0.0)] * len(graph)
    placed = [(0.0, 0.0, *sizes[id(boxes[0])])] * len(boxes)
    parent, home = [-1] * len(boxes), [0] * len(graph)
    edges = []
    for at, box in enumerate(boxes):
        left, top = placed[at][:2]
        for item, (x, y) in zip(box.items, inside[id(box)], strict=True):
            if isinstance(item, Box):
                placed[number[id(item)]] = (left + x, top + y, *sizes[id(item)])
                parent[number[id(item)]] = at
            else:
                ops[item] = (left + x, top + y, *_op_size(graph.ops[item].kind))
                home[item] = at
        ids = [len(graph) + number[id(i)] if isinstance(i, Box) else i for i in box.items]
        edges.append([(ids[one], ids[other]) for one, other in box.edges])
    return Drawing(boxes, ops, placed, parent, home, edges)


def title_height(inner: float) -> float:
    """How much room the name of a box has above what is in it."""
    return 9.0 + 0.045 * inner


def _op_size(kind: str) -> Size:
    return STORED if kind in (WEIGHT, STATE, INPUT) else OP


def _arrange(
    sizes: list[Size], edges: list[tuple[int, int]], aspect: float
) -> tuple[list[tuple[float, float]], Size]:
    """Where each item stands in its box, and the size of the box."""
    widest = max(width for width, _ in sizes)
    tallest = max(height for _, height in sizes)
    gap = max(GAP[0], 0.05 * widest), max(GAP[1], 0.07 * tallest)
    edge = max(EDGE, 0.6 * gap[1])
    spaced = [(width + gap[0], height + gap[1]) for width, height in sizes]
    columns = _columns(len(sizes), edges)
    area = sum(width * height for width, height in spaced)
    least = max(tallest + gap[1], FEW * (OP[1] + GAP[1]))
    columns = _cut(columns, spaced, max(least, 1.2 * math.sqrt(area / aspect)))
    lines = _lines(columns, spaced, aspect)
    inner = sum(_line_height(line, spaced) for line in lines)
    spot = [(0.0, 0.0)] * len(sizes)
    y, right = title_height(inner), 0.0
    for line in lines:
        x, high = edge, _line_height(line, spaced)
        for column in line:
            wide = max(sizes[item][0] for item in column)
            down = y + (high - _column_height(column, spaced)) / 2
            for item in column:
                spot[item] = (x + (wide - sizes[item][0]) / 2, down)
                down += spaced[item][1]
            x += wide + gap[0]
        right = max(right, x - gap[0] + edge)
        y += high + gap[1]
    return spot, (right, y - 2 * gap[1] + edge)


def _columns(count: int, edges: list[tuple[int, int]]) -> list[Column]:
    """Items by their depth in the flow; what nothing feeds stands just before its first reader."""
    ahead: list[list[int]] = [[] for _ in range(count)]
    behind: list[list[int]] = [[] for _ in range(count)]
    for one, other in edges:
        if one < other:  # modules may read each other: only the flow in graph order counts
            ahead[one].append(other)
            behind[other].append(one)
    depth = [0] * count
    for item in range(count):
        depth[item] = max((depth[before] + 1 for before in behind[item]), default=0)
    for item in reversed(range(count)):
        if ahead[item] and not behind[item]:
            depth[item] = min(depth[after] for after in ahead[item]) - 1
    columns: list[Column] = [[] for _ in range(max(depth) - min(depth) + 1)]
    lowest = min(depth)
    for item in range(count):
        columns[depth[item] - lowest].append(item)
    columns = [column for column in columns if column]
    place = [0.0] * count
    for column in columns:
        _number(column, place)
    for sweep in range(SWEEPS):
        near = behind if sweep % 2 == 0 else ahead
        for column in columns if sweep % 2 == 0 else reversed(columns):
            at = {
                item: sum(place[each] for each in near[item]) / len(near[item])
                if near[item]
                else place[item]
                for item in column
            }
            column.sort(key=lambda item: (at[item], item))
            _number(column, place)
    return columns


def _number(column: Column, place: list[float]) -> None:
    """Places around the middle, as columns are drawn."""
    for at, item in enumerate(column):
        place[item] = at - (len(column) - 1) / 2


def _cut(columns: list[Column], sizes: list[Size], highest: float) -> list[Column]:
    """No column higher than that: the rest stands beside it."""
    cut: list[Column] = []
    for column in columns:
        part: Column = []
        for item in column:
            if part and _column_height([*part, item], sizes) > highest:
                cut.append(part)
                part = []
            part.append(item)
        cut.append(part)
    return cut


def _lines(columns: list[Column], sizes: list[Size], aspect: float) -> list[list[Column]]:
    """Columns in lines, so that the whole is about as wide as a page."""
    wide = [max(sizes[item][0] for item in column) for column in columns]
    high = _line_height(columns, sizes)
    total = sum(wide)

    def odd(count: int) -> float:
        return abs(math.log(total / count / (count * high) / aspect)) + (0.6 if count > 1 else 0)

    count = min(range(1, min(len(columns), 40) + 1), key=odd)
    width = max(total / count, *wide)
    lines: list[list[Column]] = [[]]
    used = 0.0
    for column, size in zip(columns, wide, strict=True):
        if lines[-1] and used + size > width * 1.001:
            lines.append([])
            used = 0.0
        lines[-1].append(column)
        used += size
    return lines


def _line_height(line: list[Column], sizes: list[Size]) -> float:
    return max(_column_height(column, sizes) for column in line)


def _column_height(column: Column, sizes: list[Size]) -> float:
    return sum(sizes[item][1] for item in column)
