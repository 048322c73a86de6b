"""A page's content in, the one JSON object that the page is drawn from out.

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

from placewright.reporting import waits as w
from placewright.reporting.layout import draw
from placewright.reporting.palette import (
    CRITICAL,
    STREAMED,
    TENSOR,
    device_colours,
)
from placewright.reporting.sentence import why
from placewright.version import __version__

if TYPE_CHECKING:
    from placewright.graph import Graph
    from placewright.problem import Problem
    from placewright.reporting.content import Content
    from placewright.reporting.memory import Over
    from placewright.reporting.step_view import Shown
    from placewright.result import Result

Data = dict[str, Any]

DIGITS = 9  # of the step time that are kept: a nanosecond of a second
LARGEST = 4_600_000  # characters of the whole, as JSON
NAMES = 900_000  # characters that names may take before long ones are shortened
POINTS = 3_000  # of one device's memory over time
UNLIMITED = 2**60  # bytes: a device with more has no limit that is worth a line


def payload(content: Content) -> Data:
    """Everything that the page shows, ready for JSON."""
    problem, graph = content.problem, content.problem.graph
    tick = tick_of(content)
    methods = [
        _method(result, label)
        for result, label in zip(content.results, content.labels, strict=True)
    ]
    data = {
        "version": __version__,
        "model": content.model,
        "graph_name": graph.name,
        "cluster": problem.cluster.name,
        "objective": problem.objective,
        "discipline": problem.discipline,
        "sentence": why(content),
        "helps": list(content.helps),
        "answer": content.answer,
        "single": content.single,
        "single_device": content.alone,
        "default": content.default,
        "skipped": [list(pair) for pair in content.skipped],
        "interrupted": content.interrupted,
        "notes": list(content.notes),
        "colours": {"critical": CRITICAL, "tensor": TENSOR, "streamed": STREAMED},
        "devices": _devices(problem),
        "channels": list(problem.cluster.channels),
        "ops": _ops(problem),
        "graph": _graph(graph),
        "methods": methods,
        "learning": None if content.learning is None else content.learning.data(),
        "tick": tick,
    }
    return data | {"plans": _plans(content, tick, methods, LARGEST - _length(data))}


def tick_of(content: Content) -> float:
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
        "value": result.value,
        "bound": result.bound,
        "bound_name": result.bound_name,
        "gap": result.gap if math.isfinite(result.gap) else None,
        "fits": result.fits,
        "overflow": result.overflow,
        "evaluations": result.evaluations,
        "seconds": result.seconds,
        "seed": result.seed,
        "devices": [[use.ops, use.busy, use.peak, use.limit] for use in result.devices],
        "history": [[count, round(at, 6), best] for count, at, best in result.history],
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
            "reserve": device.reserve,
            "colour": colour,
        }
        for device, colour, usable in zip(problem.cluster.devices, colours, capacity, strict=True)
    ]


def _ops(problem: Problem) -> Data:
    a, ops = problem.arrays, problem.graph.ops
    kinds = {kind: at for at, kind in enumerate(dict.fromkeys(op.kind for op in ops))}
    modules = {name: at for at, name in enumerate(dict.fromkeys(op.module for op in ops))}
    return {
        "names": shortened([op.name for op in ops]),
        "kinds": list(kinds),
        "kind": [kinds[op.kind] for op in ops],
        "modules": shortened(list(modules)),
        "module": [modules[op.module] for op in ops],
        "phase": "".join(op.phase[0] for op in ops),
        "turn": "".join("1" if turn else "0" for turn in a.turn.tolist()),
        "flops": [_rounded(op.flops) for op in ops],
        "outputs": np.diff(a.first_tensor).tolist(),
        "sizes": a.sizes.tolist(),
        "inputs": np.diff(a.first_input).tolist(),
        "reads": a.inputs.tolist(),
    }


def shortened(names: list[str]) -> list[str]:
    """The names, the long ones with their middle left out if all together would be too long."""
    total, longest = sum(map(len, names)), 1_000_000
    while total > NAMES and longest > 24:
        longest = longest // 2
        total = sum(min(len(name), longest) for name in names)
    half = longest // 2
    return [
        name if len(name) <= longest else f"{name[: half - 1]}…{name[len(name) - half :]}"
        for name in names
    ]


def _graph(graph: Graph) -> Data:
    drawing = draw(graph)
    return {
        "x": [round(box[0]) for box in drawing.ops],
        "y": [round(box[1]) for box in drawing.ops],
        "wide": [round(box[2]) for box in drawing.ops],
        "home": drawing.home,
        "names": shortened([box.name for box in drawing.tree]),
        "boxes": [[round(side) for side in box] for box in drawing.boxes],
        "parent": drawing.parent,
        "edges": [[end for edge in edges for end in edge] for edges in drawing.edges],
    }


def _plans(content: Content, tick: float, methods: list[Data], room: int) -> list[Data]:
    """The steps that are drawn: the answer's and as many others as there is room for.

    Each method whose step is among them is told where.
    """
    first = [content.answer, content.default, content.single]
    rest = sorted(range(len(content.results)), key=lambda at: content.results[at].key)
    plans: list[Data] = []
    used = 0
    for at in dict.fromkeys(each for each in (*first, *rest) if each is not None):
        plan = _Step(content, at, tick).data()
        size = _length(plan)
        if plans and used + size > room:
            continue
        used += size
        methods[at]["plan"] = len(plans)
        plans.append(plan)
    return plans


def _length(data: Data) -> int:
    """How many characters it is as JSON."""
    return len(json.dumps(data, separators=(",", ":")))


@dataclass(frozen=True, eq=False)
class _Step:
    """One plan's step on its way into lists."""

    content: Content
    at: int
    tick: float

    def data(self) -> Data:
        shown = self.content.step(self.at)
        plan = self.content.results[self.at].plan
        order = _send_order(shown)
        row = {old: new for new, old in enumerate(order)}
        tensors, streamed = shown.sent
        return {
            "method": self.at,
            "device": plan.device.tolist(),
            "staging": None if plan.staging is None else plan.staging.tolist(),
            "priority": None if plan.priority is None else _ranks(plan.priority),
            "group": None if plan.fusion is None else shown.member[shown.group].tolist(),
            "step": self._ticks(np.array([shown.timeline.step_time]))[0],
            "sent": tensors,
            "streamed": streamed,
            "lanes": self._lanes(shown),
            "waits": self._waits(shown, row),
            "sends": self._sends(shown, order),
            "path": [
                int(shown.member[at]) if what == "op" else -1 - row[at]
                for what, at in shown.waits.path
            ],
            "memory": self._memory(shown),
        }

    def _ticks(self, seconds: np.ndarray[Any, np.dtype[np.float64]]) -> list[int]:
        return [int(each) for each in np.rint(seconds / self.tick).tolist()]

    def _lanes(self, shown: Shown) -> list[list[int]]:
        """For each device, of each op in turn: the op, ticks since the last, its own ticks."""
        a, timeline = shown.arrays, shown.timeline
        start, end = self._ticks(timeline.start), self._ticks(timeline.end)
        lanes: list[list[int]] = [[] for _ in range(a.devices)]
        latest = [0] * a.devices
        turns = np.flatnonzero(a.turn)
        order = turns[np.lexsort((turns, timeline.end[turns], timeline.start[turns]))]
        device, member = timeline.plan.device.tolist(), shown.member.tolist()
        for op in order.tolist():
            place = device[op]
            lanes[place] += (member[op], start[op] - latest[place], end[op] - start[op])
            latest[place] = end[op]
        return lanes

    def _waits(self, shown: Shown, row: dict[int, int]) -> list[list[int]]:
        """What each op in each lane waited for, in the order of the lanes; see `_coded`."""
        member, a = shown.member.tolist(), shown.arrays
        timeline = shown.timeline
        turns = np.flatnonzero(a.turn)
        order = turns[np.lexsort((turns, timeline.end[turns], timeline.start[turns]))]
        lanes: list[list[int]] = [[] for _ in range(a.devices)]
        device = timeline.plan.device.tolist()
        for op in order.tolist():
            lanes[device[op]].append(_coded(shown.waits.ops[op], member, row))
        return lanes

    def _sends(self, shown: Shown, order: list[int]) -> list[list[int]]:
        """For each channel, of each transfer: tensor, target, reader + 1, gap, ticks, wait."""
        moved, member = shown.timeline.transfers, shown.member.tolist()
        row = {old: new for new, old in enumerate(order)}
        start, end = self._ticks(moved.start), self._ticks(moved.end)
        lanes: list[list[int]] = [[] for _ in self.content.problem.cluster.channels]
        latest = [0] * len(lanes)
        tensor, channel = shown.tensor[moved.tensor].tolist(), moved.channel.tolist()
        target, reader = moved.target.tolist(), moved.reader.tolist()
        for at in order:
            lane = channel[at]
            lanes[lane] += (
                tensor[at],
                target[at],
                0 if reader[at] < 0 else member[reader[at]] + 1,
                start[at] - latest[lane],
                end[at] - start[at],
                _coded(shown.waits.sends[at], member, row),
            )
            latest[lane] = end[at]
        return lanes

    def _memory(self, shown: Shown) -> list[Data]:
        split = shown.memory
        return [
            {
                "weights": int(split.weights[place]),
                "staging": int(split.staging[place]),
                "over": self._over(over),
            }
            for place, over in enumerate(split.over)
        ]

    def _over(self, over: Over) -> list[int]:
        """Ticks since the last change, bytes of activations, bytes of copies, over and over."""
        keep = thinned(over)
        ticks = np.diff(np.array(self._ticks(over.time[keep])), prepend=0).tolist()
        columns = ticks, over.activations[keep].tolist(), over.copies[keep].tolist()
        return [value for row in zip(*columns, strict=True) for value in row]


def thinned(over: Over, most: int = POINTS) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The changes that are drawn: all, or of each of many stretches the highest and the lowest."""
    count = len(over.time)
    if count <= most:
        return np.arange(count)
    total = over.activations + over.copies
    edges = np.linspace(0, count, most // 2 + 1).astype(np.int64)
    kept = {0, count - 1}
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        kept |= {low + int(total[low:high].argmax()), low + int(total[low:high].argmin())}
    return np.array(sorted(kept), dtype=np.int64)


def _send_order(shown: Shown) -> list[int]:
    """The rows of the transfers, channel by channel and then by time: how the page numbers them."""
    moved = shown.timeline.transfers
    return [int(row) for row in np.lexsort((moved.end, moved.start, moved.channel))]


def _coded(wait: w.Wait, member: list[int], row: dict[int, int]) -> int:
    """0: nothing; 1: the thing before it in its lane; else 8 × the op or transfer + the kind."""
    kind, at = wait
    if kind in (w.NOTHING, w.TURN):
        return kind
    return 8 * (member[at] if kind in w.OF_OPS else row[at]) + kind


def _ranks(priority: np.ndarray[Any, np.dtype[np.float64]]) -> list[int]:
    """Priorities as whole numbers in the same order, which are shorter."""
    return [int(rank) for rank in np.unique(priority, return_inverse=True)[1].tolist()]


def _rounded(value: float) -> float | int:
    """Four significant digits, whole where that is all there is."""
    shown = float(f"{value:.4g}")
    return int(shown) if shown.is_integer() and abs(shown) < 1e15 else shown
