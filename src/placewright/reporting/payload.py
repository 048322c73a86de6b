"""The JSON object that the page is drawn from.

Names stand once and numbers in flat lists, which is what keeps a page of 20,000 ops small. Times of
a step are whole ticks; lists along a lane say how long after the end of the thing before it each
thing starts. `browser/data.js` reads all of this back.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.reporting.heading import heading_data
from placewright.reporting.layout import lay_out_graph
from placewright.reporting.palette import (
    CRITICAL,
    STREAMED,
    TENSOR,
    device_colours,
)
from placewright.simulator import waits as w
from placewright.units import UNLIMITED, format_bytes, format_rate
from placewright.version import __version__

if TYPE_CHECKING:
    from placewright.graph import Graph
    from placewright.problem import Problem
    from placewright.reporting.content import PageContent
    from placewright.reporting.memory import MemoryCurve
    from placewright.reporting.step_view import StepView
    from placewright.result import Result

Data = dict[str, Any]

DIGITS = 9  # of the step time that are kept: a nanosecond of a second
MAX_CHARACTERS = 4_600_000  # characters of the whole, as JSON
MAX_NAME_CHARACTERS = 900_000  # characters that names may take before long ones are shortened
MAX_MEMORY_POINTS = 3_000  # of one device's memory over time


def page_data(content: PageContent) -> Data:
    """Everything that the page shows, ready for JSON."""
    problem, graph = content.problem, content.problem.graph
    tick = tick_seconds(content)
    methods = [
        _method(result, label)
        for result, label in zip(content.results, content.labels, strict=True)
    ]
    data = {
        "version": __version__,
        "model": content.comparison.name,
        "graph_name": graph.name,
        "cluster": problem.cluster.name,
        "objective": problem.objective,
        "discipline": problem.discipline,
        **heading_data(content),
        "sentence": content.sentence,
        "helps": list(content.improvements),
        "answer": content.answer,
        "single": content.single,
        "single_device": content.comparison.single_device_name,
        "default": content.default,
        "skipped": [list(pair) for pair in content.comparison.skipped],
        "interrupted": content.comparison.interrupted,
        "lead": _lead_notes(content),
        "lines": _plan_lines(content),
        "notes": list(content.notes),
        "colours": {"critical": CRITICAL, "tensor": TENSOR, "streamed": STREAMED},
        "devices": _devices(problem),
        "channels": list(problem.cluster.channels),
        "ops": _ops(problem),
        "graph": _graph(graph),
        "methods": methods,
        "learning": None if content.learning_curve is None else content.learning_curve.data(),
        "tick": tick,
    }
    return data | {"plans": _plans(content, tick, methods, MAX_CHARACTERS - _json_length(data))}


def _lead_notes(content: PageContent) -> list[str]:
    """What comes before all figures: that the plan does not fit."""
    best = content.results[content.answer]
    if best.fits:
        return []
    return [
        f"The plan does not fit: it is out of memory by {format_bytes(best.overflow)}, and its "
        "time cannot be had."
    ]


def _plan_lines(content: PageContent) -> list[str]:
    """What the plan is in a few words: its throughput, and where layers are."""
    best = content.results[content.answer]
    lines = []
    if best.fits and best.throughput:
        rates = [format_rate(rate, noun) for noun, rate in best.throughput.items()]
        lines.append(f"Throughput: {', '.join(rates)}.")
    groups = best.layers
    if len(groups) > 1 or any(group.streamed_bytes for group in groups):
        lines.append(f"Layers: {'; '.join(map(str, groups))}.")
    return lines


def tick_seconds(content: PageContent) -> float:
    """Seconds of one tick: a power of ten that keeps enough digits of the longest step."""
    longest = max(result.step_time for result in content.results)
    if not (0 < longest < math.inf):
        return 1e-9
    return float(10.0 ** (math.ceil(math.log10(longest)) - DIGITS))


def _method(result: Result, label: str) -> Data:
    return {
        "name": label,
        "found_by": result.found_by,
        "step_time": result.step_time,
        "period": result.period,
        "value": result.objective_value,
        "bound": result.bound,
        "bound_name": result.bound_name,
        "gap": result.gap if result.fits and math.isfinite(result.gap) else None,
        "fits": result.fits,
        "overflow": result.overflow,
        "evaluations": result.evaluations,
        "seconds": result.seconds,
        "seed": result.seed,
        "devices": [[use.ops, use.busy, use.peak, use.limit] for use in result.devices],
        "history": [[count, round(seconds, 6), best] for count, seconds, best in result.history],
        "plan": None,
    }


def _devices(problem: Problem) -> list[Data]:
    colours = device_colours(problem.cluster.devices)
    capacity = problem.arrays.capacity.tolist()
    return [
        {
            "name": device.name,
            "model": device.model,
            "kind": device.kind,
            "memory": device.memory if device.memory < UNLIMITED else None,
            "usable": usable if usable < UNLIMITED else None,
            "reserve": device.reserve if usable == device.capacity else 0,  # of a limit: none
            "rates": {
                dtype: rate if math.isfinite(rate) else None for dtype, rate in device.rates.items()
            },
            "bandwidth": device.memory_bandwidth
            if math.isfinite(device.memory_bandwidth)
            else None,
            "colour": colour,
        }
        for device, colour, usable in zip(problem.cluster.devices, colours, capacity, strict=True)
    ]


def _ops(problem: Problem) -> Data:
    a, ops = problem.arrays, problem.graph.ops
    kinds = {kind: index for index, kind in enumerate(dict.fromkeys(op.kind for op in ops))}
    modules = {name: index for index, name in enumerate(dict.fromkeys(op.module for op in ops))}
    return {
        "names": shorten_names([op.name for op in ops]),
        "kinds": list(kinds),
        "kind": [kinds[op.kind] for op in ops],
        "modules": shorten_names(list(modules)),
        "module": [modules[op.module] for op in ops],
        "phase": "".join(op.phase[0] for op in ops),
        "turn": "".join("1" if scheduled else "0" for scheduled in a.scheduled.tolist()),
        "flops": [_round_digits(op.flops) for op in ops],
        "outputs": np.diff(a.first_tensor).tolist(),
        "sizes": a.sizes.tolist(),
        "inputs": np.diff(a.first_input).tolist(),
        "reads": a.inputs.tolist(),
    }


def shorten_names(names: list[str]) -> list[str]:
    """The names, the long ones with their middle left out if all together would be too long."""
    total, max_length = sum(map(len, names)), 1_000_000
    while total > MAX_NAME_CHARACTERS and max_length > 24:
        max_length = max_length // 2
        total = sum(min(len(name), max_length) for name in names)
    half = max_length // 2
    return [
        name if len(name) <= max_length else f"{name[: half - 1]}…{name[len(name) - half :]}"
        for name in names
    ]


def _graph(graph: Graph) -> Data:
    drawing = lay_out_graph(graph)
    return {
        "x": [round(box[0]) for box in drawing.ops],
        "y": [round(box[1]) for box in drawing.ops],
        "wide": [round(box[2]) for box in drawing.ops],
        "home": drawing.box_of,
        "names": shorten_names([box.name for box in drawing.tree]),
        "boxes": [[round(side) for side in box] for box in drawing.boxes],
        "parent": drawing.parent,
        "edges": [[end for edge in edges for end in edge] for edges in drawing.edges],
    }


def _plans(
    content: PageContent, tick: float, methods: list[Data], max_characters: int
) -> list[Data]:
    """The steps that are drawn: the answer's and as many others as fit the size limit.

    Each method whose step is among them is told where.
    """
    preferred = [content.answer, content.default, content.single]
    others = sorted(range(len(content.results)), key=lambda index: content.results[index].key)
    plans: list[Data] = []
    characters = 0
    for index in dict.fromkeys(
        candidate for candidate in (*preferred, *others) if candidate is not None
    ):
        plan = _StepPayload(content, index, tick).data()
        size = _json_length(plan)
        if plans and characters + size > max_characters:
            continue
        characters += size
        methods[index]["plan"] = len(plans)
        plans.append(plan)
    return plans


def _json_length(data: Data) -> int:
    """How many characters it is as JSON."""
    return len(json.dumps(data, separators=(",", ":")))


@dataclass(frozen=True, eq=False)
class _StepPayload:
    """One plan's step as lists of numbers."""

    content: PageContent
    index: int
    tick: float

    def data(self) -> Data:
        view = self.content.step_view(self.index)
        plan = self.content.results[self.index].plan
        order = _send_order(view)
        row = {old: new for new, old in enumerate(order)}
        tensors, streamed = view.bytes_sent
        return {
            "method": self.index,
            "device": plan.placement.tolist(),
            "staging": None if plan.staging is None else plan.staging.tolist(),
            "priority": None if plan.priority is None else _ranks(plan.priority),
            "group": None if plan.fusion is None else view.graph_op[view.executed_op].tolist(),
            "step": self._ticks(np.array([view.timeline.step_time]))[0],
            "sent": tensors,
            "streamed": streamed,
            "lanes": self._tracks(view),
            "waits": self._waits(view, row),
            "sends": self._sends(view, order),
            "path": [
                int(view.graph_op[item]) if item_kind == "op" else -1 - row[item]
                for item_kind, item in view.waits.path
            ],
            "memory": self._memory(view),
        }

    def _ticks(self, seconds: np.ndarray[Any, np.dtype[np.float64]]) -> list[int]:
        return [int(value) for value in np.rint(seconds / self.tick).tolist()]

    def _tracks(self, view: StepView) -> list[list[int]]:
        """For each device, of each op in turn: the op, ticks since the last, its own ticks."""
        a, timeline = view.arrays, view.timeline
        start, end = self._ticks(timeline.start), self._ticks(timeline.end)
        tracks: list[list[int]] = [[] for _ in range(a.devices)]
        last_end = [0] * a.devices
        scheduled_ops = np.flatnonzero(a.scheduled)
        order = scheduled_ops[
            np.lexsort((scheduled_ops, timeline.end[scheduled_ops], timeline.start[scheduled_ops]))
        ]
        placement, member = timeline.plan.placement.tolist(), view.graph_op.tolist()
        for op in order.tolist():
            device = placement[op]
            tracks[device] += (member[op], start[op] - last_end[device], end[op] - start[op])
            last_end[device] = end[op]
        return tracks

    def _waits(self, view: StepView, row: dict[int, int]) -> list[list[int]]:
        """What each op in each lane waited for, in the order of the lanes; see `_encode_wait`."""
        member, a = view.graph_op.tolist(), view.arrays
        timeline = view.timeline
        scheduled_ops = np.flatnonzero(a.scheduled)
        order = scheduled_ops[
            np.lexsort((scheduled_ops, timeline.end[scheduled_ops], timeline.start[scheduled_ops]))
        ]
        tracks: list[list[int]] = [[] for _ in range(a.devices)]
        placement = timeline.plan.placement.tolist()
        for op in order.tolist():
            tracks[placement[op]].append(_encode_wait(view.waits.ops[op], member, row))
        return tracks

    def _sends(self, view: StepView, order: list[int]) -> list[list[int]]:
        """For each channel, of each transfer: tensor, target, reader + 1, gap, ticks, wait."""
        transfers, member = view.timeline.transfers, view.graph_op.tolist()
        row = {old: new for new, old in enumerate(order)}
        start, end = self._ticks(transfers.start), self._ticks(transfers.end)
        tracks: list[list[int]] = [[] for _ in self.content.problem.cluster.channels]
        last_end = [0] * len(tracks)
        tensor, channel = view.graph_tensor[transfers.tensor].tolist(), transfers.channel.tolist()
        target, reader = transfers.target.tolist(), transfers.reader.tolist()
        for transfer in order:
            track = channel[transfer]
            tracks[track] += (
                tensor[transfer],
                target[transfer],
                0 if reader[transfer] < 0 else member[reader[transfer]] + 1,
                start[transfer] - last_end[track],
                end[transfer] - start[transfer],
                _encode_wait(view.waits.sends[transfer], member, row),
            )
            last_end[track] = end[transfer]
        return tracks

    def _memory(self, view: StepView) -> list[Data]:
        breakdown = view.memory
        return [
            {
                "weights": int(breakdown.weights[device]),
                "staging": int(breakdown.staging[device]),
                "over": self._memory_curve(curve),
            }
            for device, curve in enumerate(breakdown.curves)
        ]

    def _memory_curve(self, curve: MemoryCurve) -> list[int]:
        """Ticks since the last change, bytes of activations, bytes of copies, over and over."""
        points = thin_curve(curve)
        ticks = np.diff(np.array(self._ticks(curve.time[points])), prepend=0).tolist()
        columns = ticks, curve.activations[points].tolist(), curve.copies[points].tolist()
        return [value for row in zip(*columns, strict=True) for value in row]


def thin_curve(
    curve: MemoryCurve, max_points: int = MAX_MEMORY_POINTS
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The changes that are drawn: all, or of each of many stretches the highest and the lowest."""
    count = len(curve.time)
    if count <= max_points:
        return np.arange(count)
    total = curve.activations + curve.copies
    edges = np.linspace(0, count, max_points // 2 + 1).astype(np.int64)
    points = {0, count - 1}
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        points |= {low + int(total[low:high].argmax()), low + int(total[low:high].argmin())}
    return np.array(sorted(points), dtype=np.int64)


def _send_order(view: StepView) -> list[int]:
    """The rows of the transfers, channel by channel and then by time: how the page numbers them."""
    transfers = view.timeline.transfers
    return [int(row) for row in np.lexsort((transfers.end, transfers.start, transfers.channel))]


def _encode_wait(wait: w.Wait, member: list[int], row: dict[int, int]) -> int:
    """0: nothing; 1: the thing before it in its lane; else 8 × the op or transfer + the kind."""
    kind, target = wait
    if kind in (w.NOTHING, w.DEVICE_BUSY):
        return kind
    return 8 * (member[target] if kind in w.OP_WAITS else row[target]) + kind


def _ranks(priority: np.ndarray[Any, np.dtype[np.float64]]) -> list[int]:
    """Priorities as whole numbers in the same order, which are shorter."""
    return [int(rank) for rank in np.unique(priority, return_inverse=True)[1].tolist()]


def _round_digits(value: float) -> float | int:
    """Four significant digits, whole where that is all there is."""
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
