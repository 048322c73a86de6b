"""A scatter plot, as SVG, of predicted against measured step times."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from placewright.reporting.palette import CRITICAL
from placewright.reporting.svg import Canvas, escape_xml
from placewright.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

ScatterPoint = tuple[str, float, float]
"""A name, what was predicted and what was measured, in seconds."""

SIDE, LEFT, BOTTOM, TOP = 420.0, 78.0, 46.0, 34.0
_BACKGROUND, _INK, _LINE = "#ffffff", "#333a45", "#c9ced6"
_COLOURS = ("#4c7fd0", "#e0813a", "#3fa284", "#b266c4", "#d3587a", "#8f9a34", "#3a9fc4")


def scatter_svg(
    groups: dict[str, Sequence[ScatterPoint]], title: str = "predicted and measured"
) -> str:
    """One mark per plan on logarithmic axes, one colour per group; on the line both are equal.

    The pale band is 15 % to either side of it. Pointing at a mark shows its name and figures.
    """
    drawable = [point for points in groups.values() for point in points if _is_drawable(point)]
    low, high = _axis_range([value for _, *seconds in drawable for value in seconds])
    width, height = LEFT + SIDE + 150, TOP + SIDE + BOTTOM
    canvas = Canvas(width, height, _BACKGROUND, title)
    canvas.label(LEFT, TOP - 14, title, _INK, 13, bold=True)

    def axis_offset(value: float) -> float:
        return (math.log10(value) - low) / (high - low) * SIDE

    _draw_band(canvas, math.log10(1.15) / (high - low) * SIDE)
    for decade in range(math.ceil(low), math.floor(high) + 1):
        offset, label = axis_offset(10.0**decade), format_seconds(10.0**decade)
        canvas.path(f"M{LEFT + offset:.1f} {TOP}v{SIDE}", _LINE, 1)
        canvas.path(f"M{LEFT} {TOP + SIDE - offset:.1f}h{SIDE}", _LINE, 1)
        canvas.label(LEFT + offset, TOP + SIDE + 15, label, _INK, 10, "middle")
        canvas.label(LEFT - 6, TOP + SIDE - offset + 4, label, _INK, 10, "end")
    canvas.path(f"M{LEFT} {TOP + SIDE}l{SIDE} {-SIDE}", CRITICAL, 1.2)
    canvas.path(f"M{LEFT} {TOP}v{SIDE}h{SIDE}", _INK, 1)
    canvas.label(LEFT + SIDE / 2, TOP + SIDE + 34, "measured", _INK, 11, "middle")
    canvas.label(8, TOP - 14, "predicted", _INK, 11)
    for number, (name, points) in enumerate(groups.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        for point in filter(_is_drawable, points):
            label, predicted, measured = point
            figures = f"{format_seconds(predicted)} predicted, {format_seconds(measured)} measured"
            x, y = LEFT + axis_offset(measured), TOP + SIDE - axis_offset(predicted)
            canvas.elements.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6" fill="{colour}" fill-opacity="0.75">'
                f"<title>{escape_xml(f'{name}, {label}: {figures}')}</title></circle>"
            )
        y = TOP + 10 + 17 * number
        canvas.rect(LEFT + SIDE + 14, y - 8, 9, 9, colour)
        canvas.label(LEFT + SIDE + 28, y, name[:20], _INK, 11)
    return canvas.to_svg()


def _is_drawable(point: ScatterPoint) -> bool:
    return all(math.isfinite(value) and value > 0 for value in point[1:])


def _axis_range(values: Sequence[float]) -> tuple[float, float]:
    """Where both axes begin and end, as powers of ten, with a little air."""
    if not values:
        return -4.0, 0.0
    low, high = math.log10(min(values)), math.log10(max(values))
    padding = max(0.08, 0.06 * (high - low))
    return low - padding, high + padding


def _draw_band(canvas: Canvas, half_width: float) -> None:
    x, y = LEFT, TOP + SIDE
    half_width = min(half_width, SIDE)
    path_data = (
        f"M{x} {y - half_width:.1f}L{x + SIDE - half_width:.1f} {TOP}L{x + SIDE} {TOP}"
        f"L{x + SIDE} {TOP + half_width:.1f}L{x + half_width:.1f} {y}L{x} {y}Z"
    )
    canvas.elements.append(f'<path d="{path_data}" fill="{CRITICAL}" fill-opacity="0.08"/>')
