"""Graph layout: where every op and every box of ops is drawn.

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
    ModuleBox,
    all_boxes,
    build_tree,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.graph import Graph

OP_SIZE = (26.0, 10.0)  # width and height
STORED_SIZE = (16.0, 7.0)  # of a weight, a state or an input, which are not run
MIN_GAP = (12.0, 5.0)  # at least; more between large items
MIN_MARGIN = 6.0  # between a box's border and its content, at least
BOX_ASPECT = 1.7  # width over height that a box should have
PAGE_ASPECT = 2.1  # width over height of the whole graph, for a screen
SWEEPS = 6
MIN_COLUMN_OPS = 8  # ops in a column that is not worth a cut

Size = tuple[float, float]
Column = list[int]


@dataclass(frozen=True, eq=False)
class GraphLayout:
    """Where everything is: x, y, width and height.

    Args:
        ops: For each op.
        boxes: For each box of `tree`, those around others first; the first is the whole.
        parent: For each box the one around it, -1 for the whole.
        box_of: For each op the box that it is in.
        edges: For each box its flow, as pairs of items; boxes count from the number of ops on.
    """

    tree: Sequence[ModuleBox]
    ops: list[tuple[float, float, float, float]]
    boxes: list[tuple[float, float, float, float]]
    parent: list[int]
    box_of: list[int]
    edges: list[list[tuple[int, int]]]


def lay_out_graph(graph: Graph) -> GraphLayout:
    """The whole graph, with all boxes open."""
    boxes = all_boxes(build_tree(graph))
    box_number = {id(box): index for index, box in enumerate(boxes)}
    sizes: dict[int, Size] = {}
    item_offsets: dict[int, list[tuple[float, float]]] = {}
    for box in reversed(boxes):
        item_sizes = [
            sizes[id(item)] if isinstance(item, ModuleBox) else _op_size(graph.ops[item].kind)
            for item in box.items
        ]
        item_offsets[id(box)], sizes[id(box)] = _arrange(
            item_sizes, box.edges, PAGE_ASPECT if box is boxes[0] else BOX_ASPECT
        )
    ops = [(0.0, 0.0, 0.0, 0.0)] * len(graph)
    box_rects = [(0.0, 0.0, *sizes[id(boxes[0])])] * len(boxes)
    parent, box_of = [-1] * len(boxes), [0] * len(graph)
    edges = []
    for index, box in enumerate(boxes):
        left, top = box_rects[index][:2]
        for item, (x, y) in zip(box.items, item_offsets[id(box)], strict=True):
            if isinstance(item, ModuleBox):
                box_rects[box_number[id(item)]] = (left + x, top + y, *sizes[id(item)])
                parent[box_number[id(item)]] = index
            else:
                ops[item] = (left + x, top + y, *_op_size(graph.ops[item].kind))
                box_of[item] = index
        item_numbers = [
            len(graph) + box_number[id(member)] if isinstance(member, ModuleBox) else member
            for member in box.items
        ]
        edges.append([(item_numbers[source], item_numbers[reader]) for source, reader in box.edges])
    return GraphLayout(boxes, ops, box_rects, parent, box_of, edges)


def title_height(inner: float) -> float:
    """The height for the name of a box above its content."""
    return 9.0 + 0.045 * inner


def _op_size(kind: str) -> Size:
    return STORED_SIZE if kind in (WEIGHT, STATE, INPUT) else OP_SIZE


def _arrange(
    sizes: list[Size], edges: list[tuple[int, int]], aspect: float
) -> tuple[list[tuple[float, float]], Size]:
    """Where each item stands in its box, and the size of the box."""
    widest = max(width for width, _ in sizes)
    tallest = max(height for _, height in sizes)
    gap = max(MIN_GAP[0], 0.05 * widest), max(MIN_GAP[1], 0.07 * tallest)
    margin = max(MIN_MARGIN, 0.6 * gap[1])
    spaced = [(width + gap[0], height + gap[1]) for width, height in sizes]
    columns = _columns(len(sizes), edges)
    area = sum(width * height for width, height in spaced)
    min_height = max(tallest + gap[1], MIN_COLUMN_OPS * (OP_SIZE[1] + MIN_GAP[1]))
    columns = _split_columns(columns, spaced, max(min_height, 1.2 * math.sqrt(area / aspect)))
    lines = _break_lines(columns, spaced, aspect)
    inner = sum(_line_height(line, spaced) for line in lines)
    offsets = [(0.0, 0.0)] * len(sizes)
    y, right = title_height(inner), 0.0
    for line in lines:
        x, line_height = margin, _line_height(line, spaced)
        for column in line:
            column_width = max(sizes[item][0] for item in column)
            item_y = y + (line_height - _column_height(column, spaced)) / 2
            for item in column:
                offsets[item] = (x + (column_width - sizes[item][0]) / 2, item_y)
                item_y += spaced[item][1]
            x += column_width + gap[0]
        right = max(right, x - gap[0] + margin)
        y += line_height + gap[1]
    return offsets, (right, y - 2 * gap[1] + margin)


def _columns(count: int, edges: list[tuple[int, int]]) -> list[Column]:
    """Items by their depth in the flow; what nothing feeds stands just before its first reader."""
    readers: list[list[int]] = [[] for _ in range(count)]
    sources: list[list[int]] = [[] for _ in range(count)]
    for source, reader in edges:
        if source < reader:  # modules may read each other: only the flow in graph order counts
            readers[source].append(reader)
            sources[reader].append(source)
    depth = [0] * count
    for item in range(count):
        depth[item] = max((depth[before] + 1 for before in sources[item]), default=0)
    for item in reversed(range(count)):
        if readers[item] and not sources[item]:
            depth[item] = min(depth[after] for after in readers[item]) - 1
    columns: list[Column] = [[] for _ in range(max(depth) - min(depth) + 1)]
    lowest = min(depth)
    for item in range(count):
        columns[depth[item] - lowest].append(item)
    columns = [column for column in columns if column]
    position = [0.0] * count
    for column in columns:
        _centre_positions(column, position)
    for sweep in range(SWEEPS):
        neighbours = sources if sweep % 2 == 0 else readers
        for column in columns if sweep % 2 == 0 else reversed(columns):
            barycentre = {
                item: sum(position[neighbour] for neighbour in neighbours[item])
                / len(neighbours[item])
                if neighbours[item]
                else position[item]
                for item in column
            }
            column.sort(key=lambda item: (barycentre[item], item))
            _centre_positions(column, position)
    return columns


def _centre_positions(column: Column, position: list[float]) -> None:
    """Places around the middle, as columns are drawn."""
    for index, item in enumerate(column):
        position[item] = index - (len(column) - 1) / 2


def _split_columns(columns: list[Column], sizes: list[Size], max_height: float) -> list[Column]:
    """No column higher than that: the rest stands beside it."""
    parts: list[Column] = []
    for column in columns:
        part: Column = []
        for item in column:
            if part and _column_height([*part, item], sizes) > max_height:
                parts.append(part)
                part = []
            part.append(item)
        parts.append(part)
    return parts


def _break_lines(columns: list[Column], sizes: list[Size], aspect: float) -> list[list[Column]]:
    """Columns in lines, so that the whole is about as wide as a page."""
    widths = [max(sizes[item][0] for item in column) for column in columns]
    height = _line_height(columns, sizes)
    total = sum(widths)

    def aspect_error(count: int) -> float:
        return abs(math.log(total / count / (count * height) / aspect)) + (0.6 if count > 1 else 0)

    count = min(range(1, min(len(columns), 40) + 1), key=aspect_error)
    width = max(total / count, *widths)
    lines: list[list[Column]] = [[]]
    line_width = 0.0
    for column, size in zip(columns, widths, strict=True):
        if lines[-1] and line_width + size > width * 1.001:
            lines.append([])
            line_width = 0.0
        lines[-1].append(column)
        line_width += size
    return lines


def _line_height(line: list[Column], sizes: list[Size]) -> float:
    return max(_column_height(column, sizes) for column in line)


def _column_height(column: Column, sizes: list[Size]) -> float:
    return sum(sizes[item][1] for item in column)
