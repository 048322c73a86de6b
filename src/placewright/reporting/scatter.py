"""Points of predicted and measured step times in, a scatter plot as SVG out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from placewright.reporting.palette import CRITICAL
from placewright.reporting.svg import Canvas, clean
from placewright.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

Point = tuple[str, float, float]
"""A name, what was predicted and what was measured, in seconds."""

SIDE, LEFT, FOOT, TOP = 420.0, 78.0, 46.0, 34.0
_BACK, _INK, _LINE = "#ffffff", "#333a45", "#c9ced6"
_COLOURS = ("#4c7fd0", "#e0813a", "#3fa284", "#b266c4", "#d3587a", "#8f9a34", "#3a9fc4")


def scatter(groups: dict[str, Sequence[Point]], title: str = "predicted and measured") -> str:
    """One mark a plan on logarithmic axes, a colour a group; on the line both are equal.

    The pale band is 15 % to either side of it. Pointing at a mark shows its name and figures.
    """
    seen = [point for points in groups.values() for point in points if _shown(point)]
    low, high = _ends([value for _, *both in seen for value in both])
    width, height = LEFT + SIDE + 150, TOP + SIDE + FOOT
    canvas = Canvas(width, height, _BACK, title)
    canvas.words(LEFT, TOP - 14, title, _INK, 13, bold=True)

    def place(value: float) -> float:
        return (math.log10(value) - low) / (high - low) * SIDE

    _band(canvas, math.log10(1.15) / (high - low) * SIDE)
    for decade in range(math.ceil(low), math.floor(high) + 1):
        at, label = place(10.0**decade), format_seconds(10.0**decade)
        canvas.path(f"M{LEFT + at:.1f} {TOP}v{SIDE}", _LINE, 1)
        canvas.path(f"M{LEFT} {TOP + SIDE - at:.1f}h{SIDE}", _LINE, 1)
        canvas.words(LEFT + at, TOP + SIDE + 15, label, _INK, 10, "middle")
        canvas.words(LEFT - 6, TOP + SIDE - at + 4, label, _INK, 10, "end")
    canvas.path(f"M{LEFT} {TOP + SIDE}l{SIDE} {-SIDE}", CRITICAL, 1.2)
    canvas.path(f"M{LEFT} {TOP}v{SIDE}h{SIDE}", _INK, 1)
    canvas.words(LEFT + SIDE / 2, TOP + SIDE + 34, "measured", _INK, 11, "middle")
    canvas.words(8, TOP - 14, "predicted", _INK, 11)
    for number, (name, points) in enumerate(groups.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        for point in filter(_shown, points):
            label, predicted, measured = point
            figures = f"{format_seconds(predicted)} predicted, {format_seconds(measured)} measured"
            x, y = LEFT + place(measured), TOP + SIDE - place(predicted)
            canvas.parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6" fill="{colour}" fill-opacity="0.75">'
                f"<title>{clean(f'{name}, {label}: {figures}')}</title></circle>"
            )
        y = TOP + 10 + 17 * number
        canvas.box(LEFT + SIDE + 14, y - 8, 9, 9, colour)
        canvas.words(LEFT + SIDE + 28, y, name[:20], _INK, 11)
    return canvas.text()


def _shown(point: Point) -> bool:
    return all(math.isfinite(value) and value > 0 for value in point[1:])


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Where both axes begin and end, as powers of ten, with a little air."""
    if not values:
        return -4.0, 0.0
    low, high = math.log10(min(values)), math.log10(max(values))
    air = max(0.08, 0.06 * (high - low))
    return low - air, high + air


def _band(canvas: Canvas, off: float) -> None:
    x, y = LEFT, TOP + SIDE
    off = min(off, SIDE)
    way = (
        f"M{x} {y - off:.1f}L{x + SIDE - off:.1f} {TOP}L{x + SIDE} {TOP}"
        f"L{x + SIDE} {TOP + off:.1f}L{x + off:.1f} {y}L{x} {y}Z"
    )
    canvas.parts.append(f'<path d="{way}" fill="{CRITICAL}" fill-opacity="0.08"/>')
