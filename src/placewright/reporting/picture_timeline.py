"""Draws a step's timeline as SVG."""

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
from placewright.reporting.svg import Canvas, shorten_start
from placewright.units import format_seconds

if TYPE_CHECKING:
    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.reporting.step_view import StepView

WIDTH, GUTTER, RIGHT, TOP = 1000.0, 130.0, 12.0, 58.0
DEVICE_HEIGHT, CHANNEL_HEIGHT, TRACK_GAP = 26.0, 14.0, 5.0
INK, MUTED, LINE, IDLE, BACKGROUND = "#1b2230", "#5c6675", "#dce0e7", "#eef0f4", "#ffffff"
MIN_SLICE_WIDTH = 0.4  # narrower slices are merged with their neighbours
LETTER_WIDTH = 7.0  # about the width of one at 11 points


@dataclass(frozen=True)
class _TimelineSlice:
    start: float
    end: float
    colour: str
    name: str


def timeline_svg(view: StepView, problem: Problem, plan: Plan, title: str) -> str:
    """A lane for each device and each channel that is used; the critical path is underlined."""
    tracks = _tracks(view, problem)
    height = TOP + sum(track_height + TRACK_GAP for _, track_height, _ in tracks) + 26
    canvas = Canvas(WIDTH, height, BACKGROUND, title)
    total = view.timeline.step_time or 1.0
    scale = (WIDTH - GUTTER - RIGHT) / total
    canvas.label(12, 20, shorten_start(title, 120), INK, 13, bold=True)
    canvas.label(WIDTH - RIGHT, 20, format_seconds(view.timeline.step_time), INK, 13, "end")
    bottom: dict[tuple[str, int], float] = {}
    y = TOP
    for key, track_height, _ in tracks:
        canvas.rect(GUTTER, y, WIDTH - GUTTER - RIGHT, track_height, IDLE)
        bottom[key] = y + track_height
        y += track_height + TRACK_GAP
    _draw_axis(canvas, total, scale, y)
    y = TOP
    for key, track_height, (name, slices) in tracks:
        is_device = key[0] == "device"
        busy_share = sum(piece.end - piece.start for piece in slices) / total
        size = 11.0 if is_device else 9.5
        canvas.label(
            12, y + track_height / 2 + 4, shorten_start(name, 13), INK if is_device else MUTED, size
        )
        canvas.label(GUTTER - 8, y + track_height / 2 + 4, f"{busy_share:.0%}", MUTED, 9.5, "end")
        _draw_slices(canvas, slices, scale, y, track_height)
        y += track_height + TRACK_GAP
    _draw_path(canvas, view, scale, bottom)
    _draw_legend(
        canvas,
        y + 12,
        any(piece.colour == STREAMED for *_, (_, track_slices) in tracks for piece in track_slices),
    )
    return canvas.to_svg()


def _tracks(
    view: StepView, problem: Problem
) -> list[tuple[tuple[str, int], float, tuple[str, list[_TimelineSlice]]]]:
    timeline, a, graph = view.timeline, view.arrays, view.problem.graph
    colours = device_colours(problem.cluster.devices)
    scheduled_ops = np.flatnonzero(a.scheduled)
    tracks: list[tuple[tuple[str, int], float, tuple[str, list[_TimelineSlice]]]] = []
    for index, device in enumerate(problem.cluster.devices):
        device_ops = scheduled_ops[timeline.plan.placement[scheduled_ops] == index]
        device_ops = device_ops[np.lexsort((timeline.end[device_ops], timeline.start[device_ops]))]
        slices = [
            _TimelineSlice(float(timeline.start[op]), float(timeline.end[op]), colours[index], name)
            for op, name in ((op, graph.ops[op].name) for op in device_ops.tolist())
        ]
        tracks.append((("device", index), DEVICE_HEIGHT, (device.name, slices)))
    transfers = timeline.transfers
    for index, channel in enumerate(problem.cluster.channels):
        channel_rows = np.flatnonzero(transfers.channel == index)
        channel_rows = channel_rows[
            np.lexsort((transfers.end[channel_rows], transfers.start[channel_rows]))
        ]
        slices = [
            _TimelineSlice(
                float(transfers.start[row]),
                float(transfers.end[row]),
                STREAMED if transfers.reader[row] >= 0 else TENSOR,
                graph.ops[int(a.producer[transfers.tensor[row]])].name,
            )
            for row in channel_rows.tolist()
        ]
        if slices:
            tracks.append((("channel", index), CHANNEL_HEIGHT, (channel, slices)))
    return tracks


def _draw_slices(
    canvas: Canvas, pieces: list[_TimelineSlice], scale: float, y: float, height: float
) -> None:
    merged: list[tuple[float, float, str]] = []
    for index, piece in enumerate(pieces):
        x, width = GUTTER + piece.start * scale, (piece.end - piece.start) * scale
        if width < MIN_SLICE_WIDTH:
            if merged and merged[-1][2] == piece.colour and x - merged[-1][1] < MIN_SLICE_WIDTH:
                merged[-1] = (merged[-1][0], x + width, piece.colour)
            else:
                merged.append((x, x + width, piece.colour))
            continue
        shade = 'opacity="0.82"' if index % 2 else ""
        tip = f"{piece.name}, {format_seconds(piece.end - piece.start)}"
        canvas.rect(
            x, y, max(width - 0.5, 0.3), height, piece.colour, shade, tip if width > 3 else ""
        )
        letters = int((width - 8) / LETTER_WIDTH)
        if letters > 4 and height > 12:
            canvas.label(x + 4, y + height / 2 + 4, shorten_start(piece.name, letters), BACKGROUND)
    for start, end, colour in merged:
        canvas.rect(start, y, max(end - start, 0.3), height, colour)


def _draw_path(
    canvas: Canvas, view: StepView, scale: float, bottom: dict[tuple[str, int], float]
) -> None:
    """One line along the feet of the lanes that the critical path goes through."""
    timeline, transfers = view.timeline, view.timeline.transfers
    path_data, current_track = "", None
    for item_kind, item in view.waits.path:
        if item_kind == "op":
            key, start = ("device", int(timeline.plan.placement[item])), timeline.start[item]
            end = timeline.end[item]
        else:
            key, start, end = (
                ("channel", int(transfers.channel[item])),
                transfers.start[item],
                transfers.end[item],
            )
        x = GUTTER + float(start) * scale
        if key != current_track:
            path_data += f"{'L' if path_data else 'M'}{x:.1f} {bottom[key] - 1:.1f}"
        current_track = key
        path_data += f"H{GUTTER + float(end) * scale:.1f}"
    if path_data:
        canvas.path(path_data, CRITICAL, 1.8, 'stroke-linejoin="round"')


def _draw_axis(canvas: Canvas, total: float, scale: float, bottom: float) -> None:
    target_gap = total / 8
    power = 10.0 ** math.floor(math.log10(target_gap))
    gap = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= target_gap)
    for tick in range(int(total / gap) + 1):
        x = GUTTER + tick * gap * scale
        canvas.path(f"M{x:.1f} {TOP - 8:.1f}V{bottom:.1f}", LINE, 0.8)
        if x < WIDTH - 60:
            canvas.label(x + 3, TOP - 12, format_seconds(float(f"{tick * gap:.12g}")), MUTED, 10)


def _draw_legend(canvas: Canvas, y: float, has_streams: bool) -> None:
    entries = [(TENSOR, "transfer"), (CRITICAL, "critical path"), (IDLE, "idle")]
    entries[1:1] = [(STREAMED, "streamed weight")] if has_streams else []
    x = GUTTER
    for colour, text in entries:
        canvas.rect(x, y - 8, 12, 8, colour).label(x + 17, y, text, MUTED, 10)
        x += 36 + 6 * len(text)
