"""A step in, its timeline as SVG out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.reporting.palette import (
    CRITICAL,
    STREAMED,
    TENSOR,
    device_colours,
)
from placewright.reporting.svg import Canvas, ending
from placewright.units import format_seconds

if TYPE_CHECKING:
    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.reporting.step_view import Shown

WIDTH, GUTTER, RIGHT, TOP = 1000.0, 130.0, 12.0, 58.0
DEVICE, CHANNEL, BETWEEN = 26.0, 14.0, 5.0
INK, QUIET, LINE, IDLE, BACK = "#1b2230", "#5c6675", "#dce0e7", "#eef0f4", "#ffffff"
NARROW = 0.4  # things this wide are drawn as one with their neighbours
LETTER = 7.0  # about the width of one at 11 points


@dataclass(frozen=True)
class _Slice:
    start: float
    end: float
    colour: str
    name: str


def timeline_svg(shown: Shown, problem: Problem, plan: Plan, title: str) -> str:
    """A lane for each device and each channel that is used; the critical path is underlined."""
    lanes = _lanes(shown, problem)
    height = TOP + sum(high + BETWEEN for _, high, _ in lanes) + 26
    canvas = Canvas(WIDTH, height, BACK, title)
    total = shown.timeline.step_time or 1.0
    scale = (WIDTH - GUTTER - RIGHT) / total
    canvas.words(12, 20, ending(title, 120), INK, 13, bold=True)
    canvas.words(WIDTH - RIGHT, 20, format_seconds(shown.timeline.step_time), INK, 13, "end")
    foot: dict[tuple[str, int], float] = {}
    y = TOP
    for key, high, _ in lanes:
        canvas.box(GUTTER, y, WIDTH - GUTTER - RIGHT, high, IDLE)
        foot[key] = y + high
        y += high + BETWEEN
    _axis(canvas, total, scale, y)
    y = TOP
    for key, high, (name, slices) in lanes:
        device = key[0] == "device"
        busy = sum(each.end - each.start for each in slices) / total
        size = 11.0 if device else 9.5
        canvas.words(12, y + high / 2 + 4, ending(name, 13), INK if device else QUIET, size)
        canvas.words(GUTTER - 8, y + high / 2 + 4, f"{busy:.0%}", QUIET, 9.5, "end")
        _draw(canvas, slices, scale, y, high)
        y += high + BETWEEN
    _path(canvas, shown, scale, foot)
    _legend(canvas, y + 12, any(each.colour == STREAMED for *_, (_, s) in lanes for each in s))
    return canvas.text()


def _lanes(
    shown: Shown, problem: Problem
) -> list[tuple[tuple[str, int], float, tuple[str, list[_Slice]]]]:
    timeline, a, graph = shown.timeline, shown.arrays, shown.problem.graph
    colours = device_colours(problem.cluster.devices)
    turns = np.flatnonzero(a.turn)
    lanes: list[tuple[tuple[str, int], float, tuple[str, list[_Slice]]]] = []
    for at, device in enumerate(problem.cluster.devices):
        here = turns[timeline.plan.device[turns] == at]
        here = here[np.lexsort((timeline.end[here], timeline.start[here]))]
        slices = [
            _Slice(float(timeline.start[op]), float(timeline.end[op]), colours[at], name)
            for op, name in ((op, graph.ops[op].name) for op in here.tolist())
        ]
        lanes.append((("device", at), DEVICE, (device.name, slices)))
    moved = timeline.transfers
    for at, channel in enumerate(problem.cluster.channels):
        rows = np.flatnonzero(moved.channel == at)
        rows = rows[np.lexsort((moved.end[rows], moved.start[rows]))]
        slices = [
            _Slice(
                float(moved.start[row]),
                float(moved.end[row]),
                STREAMED if moved.reader[row] >= 0 else TENSOR,
                graph.ops[int(a.producer[moved.tensor[row]])].name,
            )
            for row in rows.tolist()
        ]
        if slices:
            lanes.append((("channel", at), CHANNEL, (channel, slices)))
    return lanes


def _draw(canvas: Canvas, slices: list[_Slice], scale: float, y: float, high: float) -> None:
    run: list[tuple[float, float, str]] = []
    for at, each in enumerate(slices):
        x, wide = GUTTER + each.start * scale, (each.end - each.start) * scale
        if wide < NARROW:
            if run and run[-1][2] == each.colour and x - run[-1][1] < NARROW:
                run[-1] = (run[-1][0], x + wide, each.colour)
            else:
                run.append((x, x + wide, each.colour))
            continue
        shade = 'opacity="0.82"' if at % 2 else ""
        tip = f"{each.name}, {format_seconds(each.end - each.start)}"
        canvas.box(x, y, max(wide - 0.5, 0.3), high, each.colour, shade, tip if wide > 3 else "")
        letters = int((wide - 8) / LETTER)
        if letters > 4 and high > 12:
            canvas.words(x + 4, y + high / 2 + 4, ending(each.name, letters), BACK)
    for start, end, colour in run:
        canvas.box(start, y, max(end - start, 0.3), high, colour)


def _path(canvas: Canvas, shown: Shown, scale: float, foot: dict[tuple[str, int], float]) -> None:
    """One line along the feet of the lanes that the critical path goes through."""
    timeline, moved = shown.timeline, shown.timeline.transfers
    way, place = "", None
    for what, at in shown.waits.path:
        if what == "op":
            key, times = ("device", int(timeline.plan.device[at])), timeline.start[at]
            end = timeline.end[at]
        else:
            key, times, end = ("channel", int(moved.channel[at])), moved.start[at], moved.end[at]
        x = GUTTER + float(times) * scale
        if key != place:
            way += f"{'L' if way else 'M'}{x:.1f} {foot[key] - 1:.1f}"
        place = key
        way += f"H{GUTTER + float(end) * scale:.1f}"
    if way:
        canvas.path(way, CRITICAL, 1.8, 'stroke-linejoin="round"')


def _axis(canvas: Canvas, total: float, scale: float, bottom: float) -> None:
    rough = total / 8
    power = 10.0 ** math.floor(math.log10(rough))
    gap = next(each * power for each in (1, 2, 5, 10) if each * power >= rough)
    for at in range(int(total / gap) + 1):
        x = GUTTER + at * gap * scale
        canvas.path(f"M{x:.1f} {TOP - 8:.1f}V{bottom:.1f}", LINE, 0.8)
        if x < WIDTH - 60:
            canvas.words(x + 3, TOP - 12, format_seconds(float(f"{at * gap:.12g}")), QUIET, 10)


def _legend(canvas: Canvas, y: float, streams: bool) -> None:
    marks = [(TENSOR, "tensor on its way"), (CRITICAL, "critical path"), (IDLE, "idle")]
    marks[1:1] = [(STREAMED, "streamed weight")] if streams else []
    x = GUTTER
    for colour, text in marks:
        canvas.box(x, y - 8, 12, 8, colour).words(x + 17, y, text, QUIET, 10)
        x += 36 + 6 * len(text)
