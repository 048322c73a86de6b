"""A step in, its graph coloured by device as SVG out; large graphs folded by module."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from placewright.reporting.layout import (
    Drawing,
    draw,
    title_height,
)
from placewright.reporting.palette import CRITICAL, device_colours
from placewright.reporting.svg import Canvas, ending

if TYPE_CHECKING:
    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.reporting.step_view import Shown

WIDTH, TOP, SIDE = 1000.0, 54.0, 12.0
INK, QUIET, LINE, BACK = "#1b2230", "#5c6675", "#c9cfd9", "#ffffff"
ALL_OPEN = 2_000  # ops up to which every box is open
FIRST_LOOK = 300  # things to look at in a larger graph

Rect = tuple[float, float, float, float]


def graph_svg(shown: Shown, problem: Problem, plan: Plan, title: str) -> str:
    """Every op in the boxes of its modules; of a large graph the outer boxes alone."""
    drawing = draw(problem.graph)
    wide, high = drawing.boxes[0][2:]
    scale = min((WIDTH - 2 * SIDE) / wide, 3.0)
    canvas = Canvas(WIDTH, TOP + high * scale + SIDE, BACK, title)
    colours = device_colours(problem.cluster.devices)
    canvas.words(SIDE, 20, ending(title, 120), INK, 13, bold=True)
    x = SIDE
    for at, device in enumerate(problem.cluster.devices):
        many = int((plan.device == at).sum())
        if many:
            text = f"{device.name}: {many:,} ops"
            canvas.box(x, 33, 12, 9, colours[at]).words(x + 17, 41, text, QUIET, 10)
            x += 36 + 6 * len(text)
    critical = {int(shown.member[at]) for what, at in shown.waits.path if what == "op"}
    _Painter(canvas, drawing, plan, problem, colours, scale, critical).paint()
    return canvas.text()


def opened(drawing: Drawing, ops: int) -> list[bool]:
    """Which boxes are open: all, or from the outside in until there is enough to look at."""
    count = len(drawing.boxes)
    if ops <= ALL_OPEN:
        return [True] * count
    inner: list[list[int]] = [[] for _ in range(count)]
    for box, around in enumerate(drawing.parent):
        if around >= 0:
            inner[around].append(box)
    is_open = [at == 0 for at in range(count)]
    seen, front = len(drawing.tree[0].items), inner[0]
    while front:
        more = sum(len(drawing.tree[box].items) for box in front)
        if seen + more > FIRST_LOOK:
            break
        seen += more
        for box in front:
            is_open[box] = True
        front = [each for box in front for each in inner[box]]
    return is_open


class _Painter:
    def __init__(
        self,
        canvas: Canvas,
        drawing: Drawing,
        plan: Plan,
        problem: Problem,
        colours: list[str],
        scale: float,
        critical: set[int],
    ) -> None:
        self.canvas, self.drawing, self.plan, self.problem = canvas, drawing, plan, problem
        self.colours, self.scale, self.critical = colours, scale, critical
        self.left = (WIDTH - drawing.boxes[0][2] * scale) / 2
        self.open = opened(drawing, len(problem.graph))
        self.seen = list(self.open)  # whether all boxes around it are open too
        for box, around in enumerate(drawing.parent):
            if around >= 0:
                self.seen[box] = self.seen[around] and self.open[box]

    def paint(self) -> None:
        drawing = self.drawing
        for box in np.flatnonzero(self.seen).tolist():
            self._frame(box)
        for box, edges in enumerate(drawing.edges):
            if self.seen[box]:
                way = "".join(self._line(one, other) for one, other in edges)
                if way:
                    self.canvas.path(way, QUIET, 0.7, 'stroke-opacity="0.5"')
        for box, around in enumerate(drawing.parent):
            if around >= 0 and self.seen[around] and not self.seen[box]:
                self._folded(box)
        for op, home in enumerate(drawing.home):
            if self.seen[home]:
                self._op(op)

    def _rect(self, item: int) -> Rect:
        count = len(self.problem.graph)
        x, y, wide, high = (
            self.drawing.ops[item] if item < count else self.drawing.boxes[item - count]
        )
        return (
            self.left + x * self.scale,
            TOP + y * self.scale,
            wide * self.scale,
            high * self.scale,
        )

    def _op(self, op: int) -> None:
        x, y, wide, high = self._rect(op)
        shade = "" if self.problem.arrays.turn[op] else 'opacity="0.55"'
        name = self.problem.graph.ops[op].name
        self.canvas.box(x, y, wide, high, self.colours[self.plan.device[op]], shade, name)
        if op in self.critical:
            self.canvas.box(x, y + 0.84 * high, wide, 0.16 * high, CRITICAL)
        letters = int((wide - 4) / (0.36 * high)) if high > 12 else 0
        if letters > 3:
            size = min(10.0, 0.55 * high)
            self.canvas.words(
                x + wide / 2, y + 0.66 * high, ending(name, letters), BACK, size, "middle"
            )

    def _frame(self, box: int) -> None:
        """An open box."""
        if not box:
            return
        x, y, wide, high = self._rect(len(self.problem.graph) + box)
        self.canvas.box(x, y, wide, high, "none", f'stroke="{LINE}" stroke-width="0.8"')
        size = min(11.0, 0.7 * title_height(self.drawing.boxes[box][3]) * self.scale)
        letters = int(wide / (0.65 * size))
        if size >= 5 and letters > 2:
            name = ending(self.drawing.tree[box].name, letters)
            self.canvas.words(x + 3, y + 1.15 * size, name, QUIET, size)

    def _folded(self, box: int) -> None:
        """A box that stays shut, with a share of it in each device's colour."""
        x, y, wide, high = self._rect(len(self.problem.graph) + box)
        name = self.drawing.tree[box].name
        counts = np.bincount(self.plan.device[self._inside[box]], minlength=len(self.colours))
        at = x
        for device in np.flatnonzero(counts).tolist():
            part = wide * counts[device] / counts.sum()
            self.canvas.box(at, y, part, high, self.colours[device], tip=name)
            at += part
        size = min(10.0, 0.5 * high, max(6.0, (wide - 4) / (0.65 * len(name))))
        letters = int((wide - 4) / (0.65 * size))
        if size >= 5 and letters > 3:
            middle, foot = x + wide / 2, y + high / 2 + 0.35 * size
            self.canvas.words(middle, foot, ending(name, letters), BACK, size, "middle")

    @cached_property
    def _inside(self) -> list[list[int]]:
        """The ops of each box, those of the boxes in it among them."""
        ops: list[list[int]] = [[] for _ in self.drawing.boxes]
        for op, home in enumerate(self.drawing.home):
            ops[home].append(op)
        for box in range(len(ops) - 1, 0, -1):
            ops[self.drawing.parent[box]] += ops[box]
        return ops

    def _line(self, one: int, other: int) -> str:
        """From one item to another, forth along a line or round to the next."""
        ax, ay, aw, ah = self._rect(one)
        bx, by, _, bh = self._rect(other)
        x, y, end, to = ax + aw, ay + ah / 2, bx, by + bh / 2
        if end > x - 1:
            bend = min(30.0, max(4.0, (end - x) / 2))
            curve = f"C{x + bend:.1f} {y:.1f} {end - bend:.1f} {to:.1f} {end:.1f} {to:.1f}"
            return f"M{x:.1f} {y:.1f}{curve}"
        bend = 9 * self.scale
        middle = (ay + ah + by) / 2 if to > y else (ay + by + bh) / 2
        return (
            f"M{x:.1f} {y:.1f}C{x + bend:.1f} {y:.1f} {x + bend:.1f} {middle:.1f} "
            f"{x - bend:.1f} {middle:.1f}H{end + bend:.1f}"
            f"C{end - bend:.1f} {middle:.1f} {end - bend:.1f} {to:.1f} {end:.1f} {to:.1f}"
        )
