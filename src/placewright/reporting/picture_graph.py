"""Draws a step's graph as SVG, coloured by device; large graphs are folded by module."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from placewright.reporting.layout import (
    GraphLayout,
    lay_out_graph,
    title_height,
)
from placewright.reporting.palette import CRITICAL, device_colours
from placewright.reporting.svg import Canvas, shorten_start

if TYPE_CHECKING:
    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.reporting.step_view import StepView

WIDTH, TOP, MARGIN = 1000.0, 54.0, 12.0
INK, MUTED, LINE, BACKGROUND = "#1b2230", "#5c6675", "#c9cfd9", "#ffffff"
MAX_OPEN_OPS = 2_000  # ops up to which every box is open
MAX_VISIBLE_ITEMS = 300  # things to look at in a larger graph

Rect = tuple[float, float, float, float]


def graph_svg(view: StepView, problem: Problem, plan: Plan, title: str) -> str:
    """Every op in the boxes of its modules; of a large graph the outer boxes alone."""
    layout = lay_out_graph(problem.graph)
    graph_width, graph_height = layout.boxes[0][2:]
    scale = min((WIDTH - 2 * MARGIN) / graph_width, 3.0)
    canvas = Canvas(WIDTH, TOP + graph_height * scale + MARGIN, BACKGROUND, title)
    colours = device_colours(problem.cluster.devices)
    canvas.label(MARGIN, 20, shorten_start(title, 120), INK, 13, bold=True)
    x = MARGIN
    for index, device in enumerate(problem.cluster.devices):
        op_count = int((plan.placement == index).sum())
        if op_count:
            text = f"{device.name}: {op_count:,} ops"
            canvas.rect(x, 33, 12, 9, colours[index]).label(x + 17, 41, text, MUTED, 10)
            x += 36 + 6 * len(text)
    critical = {
        int(view.graph_op[index]) for item_kind, index in view.waits.path if item_kind == "op"
    }
    _GraphPainter(canvas, layout, plan, problem, colours, scale, critical).paint()
    return canvas.to_svg()


def open_boxes(layout: GraphLayout, ops: int) -> list[bool]:
    """Which boxes are open: all, or from the outside in until there is enough to look at."""
    count = len(layout.boxes)
    if ops <= MAX_OPEN_OPS:
        return [True] * count
    inner: list[list[int]] = [[] for _ in range(count)]
    for box, outer in enumerate(layout.parent):
        if outer >= 0:
            inner[outer].append(box)
    is_open = [box_index == 0 for box_index in range(count)]
    visible_items, frontier = len(layout.tree[0].items), inner[0]
    while frontier:
        frontier_items = sum(len(layout.tree[box].items) for box in frontier)
        if visible_items + frontier_items > MAX_VISIBLE_ITEMS:
            break
        visible_items += frontier_items
        for box in frontier:
            is_open[box] = True
        frontier = [inner_box for box in frontier for inner_box in inner[box]]
    return is_open


class _GraphPainter:
    def __init__(
        self,
        canvas: Canvas,
        layout: GraphLayout,
        plan: Plan,
        problem: Problem,
        colours: list[str],
        scale: float,
        critical: set[int],
    ) -> None:
        self.canvas, self.layout, self.plan, self.problem = canvas, layout, plan, problem
        self.colours, self.scale, self.critical = colours, scale, critical
        self.left = (WIDTH - layout.boxes[0][2] * scale) / 2
        self.is_open = open_boxes(layout, len(problem.graph))
        self.visible = list(self.is_open)  # whether all boxes around it are open too
        for box, outer in enumerate(layout.parent):
            if outer >= 0:
                self.visible[box] = self.visible[outer] and self.is_open[box]

    def paint(self) -> None:
        layout = self.layout
        for box in np.flatnonzero(self.visible).tolist():
            self._draw_frame(box)
        for box, edges in enumerate(layout.edges):
            if self.visible[box]:
                path_data = "".join(self._edge_path(source, reader) for source, reader in edges)
                if path_data:
                    self.canvas.path(path_data, MUTED, 0.7, 'stroke-opacity="0.5"')
        for box, outer in enumerate(layout.parent):
            if outer >= 0 and self.visible[outer] and not self.visible[box]:
                self._draw_folded(box)
        for op, box_of_op in enumerate(layout.box_of):
            if self.visible[box_of_op]:
                self._draw_op(op)

    def _rect(self, item: int) -> Rect:
        count = len(self.problem.graph)
        x, y, width, height = (
            self.layout.ops[item] if item < count else self.layout.boxes[item - count]
        )
        return (
            self.left + x * self.scale,
            TOP + y * self.scale,
            width * self.scale,
            height * self.scale,
        )

    def _draw_op(self, op: int) -> None:
        x, y, width, height = self._rect(op)
        shade = "" if self.problem.arrays.scheduled[op] else 'opacity="0.55"'
        name = self.problem.graph.ops[op].name
        self.canvas.rect(x, y, width, height, self.colours[self.plan.placement[op]], shade, name)
        if op in self.critical:
            self.canvas.rect(x, y + 0.84 * height, width, 0.16 * height, CRITICAL)
        letters = int((width - 4) / (0.36 * height)) if height > 12 else 0
        if letters > 3:
            size = min(10.0, 0.55 * height)
            self.canvas.label(
                x + width / 2,
                y + 0.66 * height,
                shorten_start(name, letters),
                BACKGROUND,
                size,
                "middle",
            )

    def _draw_frame(self, box: int) -> None:
        """An open box."""
        if not box:
            return
        x, y, width, height = self._rect(len(self.problem.graph) + box)
        self.canvas.rect(x, y, width, height, "none", f'stroke="{LINE}" stroke-width="0.8"')
        size = min(11.0, 0.7 * title_height(self.layout.boxes[box][3]) * self.scale)
        letters = int(width / (0.65 * size))
        if size >= 5 and letters > 2:
            name = shorten_start(self.layout.tree[box].name, letters)
            self.canvas.label(x + 3, y + 1.15 * size, name, MUTED, size)

    def _draw_folded(self, box: int) -> None:
        """A box that stays shut, with a share of it in each device's colour."""
        x, y, width, height = self._rect(len(self.problem.graph) + box)
        name = self.layout.tree[box].name
        counts = np.bincount(self.plan.placement[self._box_ops[box]], minlength=len(self.colours))
        left = x
        for device in np.flatnonzero(counts).tolist():
            device_width = width * counts[device] / counts.sum()
            self.canvas.rect(left, y, device_width, height, self.colours[device], tooltip=name)
            left += device_width
        size = min(10.0, 0.5 * height, max(6.0, (width - 4) / (0.65 * len(name))))
        letters = int((width - 4) / (0.65 * size))
        if size >= 5 and letters > 3:
            middle, baseline = x + width / 2, y + height / 2 + 0.35 * size
            self.canvas.label(
                middle, baseline, shorten_start(name, letters), BACKGROUND, size, "middle"
            )

    @cached_property
    def _box_ops(self) -> list[list[int]]:
        """The ops of each box, those of the boxes in it among them."""
        ops: list[list[int]] = [[] for _ in self.layout.boxes]
        for op, op_box in enumerate(self.layout.box_of):
            ops[op_box].append(op)
        for box in range(len(ops) - 1, 0, -1):
            ops[self.layout.parent[box]] += ops[box]
        return ops

    def _edge_path(self, source: int, reader: int) -> str:
        """From one item to another, forth along a line or round to the next."""
        ax, ay, aw, ah = self._rect(source)
        bx, by, _, bh = self._rect(reader)
        x, y, end_x, end_y = ax + aw, ay + ah / 2, bx, by + bh / 2
        if end_x > x - 1:
            bend = min(30.0, max(4.0, (end_x - x) / 2))
            curve = (
                f"C{x + bend:.1f} {y:.1f} {end_x - bend:.1f} {end_y:.1f} {end_x:.1f} {end_y:.1f}"
            )
            return f"M{x:.1f} {y:.1f}{curve}"
        bend = 9 * self.scale
        middle = (ay + ah + by) / 2 if end_y > y else (ay + by + bh) / 2
        return (
            f"M{x:.1f} {y:.1f}C{x + bend:.1f} {y:.1f} {x + bend:.1f} {middle:.1f} "
            f"{x - bend:.1f} {middle:.1f}H{end_x + bend:.1f}"
            f"C{end_x - bend:.1f} {middle:.1f} {end_x - bend:.1f} {end_y:.1f} "
            f"{end_x:.1f} {end_y:.1f}"
        )
