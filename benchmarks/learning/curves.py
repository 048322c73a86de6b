"""Draws curves of the best plan so far against the number of plans judged, as SVG."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from placewright.reporting.svg import Canvas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Points = Sequence[Sequence[float]]

_PANEL = 330.0, 220.0  # width and height of the area of curves
_MARGIN = 58.0
_MARKS = 60  # counts of plans at which the median of the seeds is drawn
_COLOURS = [
    "#7c8594",
    "#4c7fd0",
    "#e0813a",
    "#3fa284",
    "#b266c4",
    "#8f9a34",
    "#d62246",
    "#222222",
    "#3a9fc4",
]
_QUANTILE = 0.85  # of all drawn values that the vertical axis shows: first plans may be far worse


@dataclass(frozen=True)
class Curve:
    """The curves of one arm.

    Args:
        runs: For each seed (plans judged, best step time) each time the best improved.
    """

    name: str
    runs: Sequence[Points]


def best_after(points: Points, plans: float) -> float:
    """The best value of a run after so many plans; infinite before its first."""
    return min((value for count, value in points if count <= plans), default=math.inf)


def median_after(curve: Curve, plans: float) -> float:
    """The median over seeds after so many plans."""
    return statistics.median(best_after(points, plans) for points in curve.runs)


def draw_curves(
    title: str, panels: Mapping[str, Sequence[Curve]], plans: int, first: int = 10
) -> str:
    """A picture with a panel for each problem; plans are on a logarithmic axis.

    Args:
        plans: The last count of plans on the axis.
        first: The first one.
    """
    width, height = _PANEL
    drawn_curves = [curve for curves in panels.values() for curve in curves if curve.runs]
    names = list(dict.fromkeys(curve.name for curve in drawn_curves))
    colour = {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(names)}
    total = len(panels) * (width + _MARGIN) + _MARGIN / 2
    rows = -(-len(names) // 4)
    canvas = Canvas(total, height + 100 + 16 * rows, "#ffffff", title)
    canvas.label(12, 20, title, "#222222", 13, bold=True)
    marks = [first * (plans / first) ** (at / _MARKS) for at in range(_MARKS + 1)]
    for index, (name, curves) in enumerate(panels.items()):
        left = _MARGIN + index * (width + _MARGIN)
        drawn = {
            curve.name: [(mark, median_after(curve, mark)) for mark in marks]
            for curve in curves
            if curve.runs
        }
        _draw_panel(canvas, left, name, drawn, colour, (first, plans))
    for index, name in enumerate(names):
        x, y = 16 + index % 4 * 185, height + 90 + index // 4 * 16
        canvas.path(f"M{x} {y - 4}h18", colour[name], 2.5)
        canvas.label(x + 24, y, name, "#222222")
    return canvas.to_svg()


def _draw_panel(
    canvas: Canvas,
    left: float,
    name: str,
    drawn: Mapping[str, Sequence[tuple[float, float]]],
    colour: Mapping[str, str],
    extent: tuple[int, int],
) -> None:
    (width, height), top = _PANEL, 48.0
    canvas.label(left, top - 8, name, "#222222", 11, bold=True)
    finite = sorted(
        value for points in drawn.values() for _, value in points if math.isfinite(value)
    )
    if not finite:
        return
    low, high = finite[0], max(finite[int(_QUANTILE * (len(finite) - 1))], finite[0] * 1.01)
    low, high = low - 0.04 * (high - low), high + 0.04 * (high - low)
    span = math.log(extent[1] / extent[0])

    def x_of(plans: float) -> float:
        return left + width * math.log(plans / extent[0]) / span

    def y_of(seconds: float) -> float:
        return top + height * (high - min(seconds, high)) / (high - low)

    canvas.path(f"M{left} {top}v{height}h{width}", "#7c8594", 1)
    for tick in range(5):
        seconds = low + (high - low) * tick / 4
        canvas.label(left - 5, y_of(seconds) + 4, f"{seconds:.3f}", "#555555", 10, "end")
        canvas.path(f"M{left} {y_of(seconds):.1f}h{width}", "#e6e8eb", 0.7)
    decade = 10 ** math.ceil(math.log10(extent[0]))
    while decade <= extent[1]:
        canvas.label(x_of(decade), top + height + 15, f"{decade:,}", "#555555", 10, "middle")
        decade *= 10
    canvas.label(left + width / 2, top + height + 30, "plans judged", "#555555", 10, "middle")
    for each, points in drawn.items():
        seen = [(x_of(count), y_of(value)) for count, value in points if math.isfinite(value)]
        if seen:
            steps = " ".join(f"L{x:.1f} {y:.1f}" for x, y in seen)
            canvas.path(f"M{steps[1:]}", colour[each], 1.8)
