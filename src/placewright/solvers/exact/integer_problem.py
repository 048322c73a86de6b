"""The problem in integers, as plain lists for the CP-SAT model.

CP-SAT counts in integers, so seconds become ticks, rounded down. A tick is a power of two of a
second, so that dividing by it is exact. If every duration is a whole number of ticks (toys, tables
of whole milliseconds …) nothing is rounded. Otherwise `slack` is the most ticks by which the time
of an event in a step can be too small: one for each rounded duration that could lie on a path to
it. The tick is so small that the slack is below a millionth of the step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.simulator import simulate
from placewright.transforms.grouping import number_labels, topological_positions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.problem_arrays import Arrays
    from placewright.transforms import Grouping

_MIN_TICKS = 2**28  # ticks in a step, at least, where durations are rounded
_MAX_TICKS = 2**40  # ticks in a step, at most, where they are not
_TICKS_PER_SLACK = 2**23  # ticks in a step for each tick of slack


@dataclass(frozen=True, eq=False)
class IntegerProblem:
    """A problem in ticks and bytes.

    An *item* is an op or, for a grouped problem, a group of ops that runs as one; an unscheduled op
    is an item of its own. Items of one unit share a device.
    """

    problem: Problem
    tick: float  # seconds
    slack: int  # ticks
    item: NDArray[np.int32]  # ops: their item
    unit: NDArray[np.int32]  # ops: their unit
    payload: dict[str, Any]

    @classmethod
    def of(
        cls,
        problem: Problem,
        max_seconds: float,
        grouping: Grouping | None = None,
        streaming: bool = False,
        with_schedule: bool = False,
        strict: bool = False,
    ) -> IntegerProblem:
        """The whole problem.

        Args:
            max_seconds: Seconds of a known plan; only plans that are no worse are searched.
                Infinite if none is known.
            grouping: Groups to be placed whole, and to run as one where that makes no cycle.
            streaming: Whether the bound must cover plans that stream weights.
            with_schedule: Whether a model of the period also has a step, for memory over time.
            strict: Whether the model has all constraints on the order of events.
        """
        a = problem.arrays
        unit = _units(a, grouping)
        item = _items(problem, unit, grouping)
        item_seconds = _item_seconds(problem, item)
        serial = _serial_seconds(a, item_seconds)
        max_seconds = min(max_seconds, serial)
        horizon = max_seconds if problem.objective == "step" else serial
        durations = [item_seconds.ravel(), a.transfer.ravel(), a.launch_overhead]
        transfers = len(a.sizes) * max(0, a.devices - 1)
        tick, slack = _tick(horizon, durations, len(item_seconds) + transfers)
        first_op = np.unique(item, return_index=True)[1]
        tensors = _tensors(a, item, tick)
        payload = {
            "objective": problem.objective,
            "overlap": problem.overlap,
            "ready": problem.discipline == "ready",
            "slack": slack,
            "max_ticks": int(max_seconds // tick) + 1,
            "horizon": int(horizon // tick) + 1,
            "unit": unit[first_op].tolist(),
            "allowed": a.allowed[np.unique(unit, return_index=True)[1]].tolist(),
            "is_scheduled": a.scheduled[first_op].tolist(),
            "op_ticks": np.floor(item_seconds / tick).astype(np.int64).tolist(),
            "may_take_no_time": (
                np.where(a.allowed[first_op], item_seconds, np.inf).min(axis=1) <= 0
            ).tolist(),
            "tensors": tensors,
            "link_class": a.link_class.tolist(),
            "channel": a.channel.tolist(),
            "is_host": a.is_host.tolist(),
            "issuer": a.issuer.tolist(),
            "launch_ticks": np.floor(a.launch_overhead / tick).astype(np.int64).tolist(),
            "capacity": a.capacity.tolist(),
            "resident": _sum_bytes(a.resident, unit).tolist(),
            "required_bytes": _needs(a, item).tolist(),
            "workspace": _max_per_item(a.workspace, item).tolist(),
            "grouped": grouping is not None,
            "streaming": streaming,
            "with_schedule": with_schedule,
            "strict": strict,
            "hint": None,
            "free": None,
        }
        return cls(problem, tick, slack, item, unit, payload)

    def with_hint(self, plan: Plan, free: NDArray[np.bool_] | None = None) -> IntegerProblem:
        """The same problem with a plan to start from.

        Args:
            free: Ops that may change; the others keep their devices and their relative order.
                None if all may change.
        """
        payload = dict(self.payload)
        first_op = np.unique(self.unit, return_index=True)[1]
        timeline = simulate(self.problem, plan)
        begin = np.full(len(payload["unit"]), np.inf)
        np.minimum.at(begin, self.item, timeline.start)
        order = np.lexsort((np.arange(len(self.item)), timeline.end, timeline.start))
        transfers = timeline.transfers
        payload["hint"] = {
            "device": plan.placement[first_op].tolist(),
            "order": list(dict.fromkeys(self.item[order].tolist())),
            "begin": np.floor(begin / self.tick).astype(np.int64).tolist(),
            "sent": [
                [int(tensor), int(target), int(start // self.tick)]
                for tensor, target, start in zip(
                    transfers.tensor, transfers.target, transfers.start, strict=True
                )
            ],
        }
        if free is not None:
            is_free = np.zeros(len(first_op), dtype=bool)
            is_free[self.unit[free]] = True
            payload["free"] = is_free.tolist()
        return IntegerProblem(self.problem, self.tick, self.slack, self.item, self.unit, payload)

    def seconds(self, ticks: float) -> float:
        """Ticks as seconds, less the rounding error of the simulator's sums."""
        return ticks * self.tick * (1 - 4 * self.problem.arrays.ops * float(np.finfo(float).eps))

    def placement(self, unit_device: list[int]) -> NDArray[np.int32]:
        """Devices of ops from those of units."""
        return np.array(unit_device, dtype=np.int32)[self.unit]

    def priority(self, begin: list[int], end: list[int]) -> NDArray[np.float64]:
        """The order in which items began, as priorities of their ops.

        Ops sorted by (start, end, position) are in a topological order: a reader starts when its
        producer has ended or later, and if that is the same instant as the producer's start then
        the producer took no time, and ends before the reader or has an earlier position. Rule 2
        takes a topological order as it stands. On each device it is the order of the starts. So
        the simulator reproduces any schedule in which ops start as early as the order on each
        device allows, as far as channels serve their transfers in the schedule's order.
        """
        item_of = self.item
        order = np.lexsort(
            (np.arange(len(item_of)), np.array(end)[item_of], np.array(begin)[item_of])
        )
        priority = np.empty(len(item_of))
        priority[order] = np.arange(len(item_of))
        return priority


def _units(a: Arrays, grouping: Grouping | None) -> NDArray[np.int32]:
    """Ops that share a device: units, or groups, split where their allowed devices differ."""
    if grouping is None:
        return a.unit
    labels = zip(grouping.group.tolist(), map(bytes, a.allowed), strict=True)
    return number_labels(list(labels))


def _items(
    problem: Problem, unit: NDArray[np.int32], grouping: Grouping | None
) -> NDArray[np.int32]:
    """Ops that run as one: single ops, or whole groups if these make no cycle."""
    a = problem.arrays
    ops = np.arange(a.ops, dtype=np.int32)
    if grouping is None:
        return ops
    item = number_labels([("one", op) if not a.scheduled[op] else ("all", unit[op]) for op in ops])
    reader = item[a.reader]
    source = item[a.producer[a.inputs]]
    is_edge = (source != reader) & a.scheduled[a.producer[a.inputs]]
    edges = set(zip(source[is_edge].tolist(), reader[is_edge].tolist(), strict=True))
    has_cycle = topological_positions(int(item.max()) + 1, edges) is None
    return ops if has_cycle and problem.objective == "step" else item


def _item_seconds(problem: Problem, item: NDArray[np.int32]) -> NDArray[np.float64]:
    """Items × devices: seconds of each item."""
    a = problem.arrays
    if problem.objective == "period":
        return _sum_seconds(a.compute, item)
    return _sum_seconds(np.where(a.scheduled[:, None], a.compute, 0.0), item)


def _serial_seconds(a: Arrays, item_seconds: NDArray[np.float64]) -> float:
    """All durations in sequence. No step takes longer: there is always some activity."""
    serial = float(item_seconds.max(axis=1).sum() + len(item_seconds) * a.launch_overhead.max())
    return serial + a.devices * float(a.transfer.max(axis=0, initial=0.0).sum())


def _tick(
    max_seconds: float, durations: list[NDArray[np.float64]], count: int
) -> tuple[float, int]:
    """Seconds per tick and the slack, for steps of at most this many seconds."""
    if not max_seconds > 0:
        return 1.0, 0
    values = np.concatenate(durations)
    values = values[values > 0]
    mantissa, exponent = np.frexp(values)
    integers = (mantissa * 2**53).astype(np.int64)
    trailing_zeros = np.log2(integers & -integers).astype(np.int64)
    exact_tick = (
        float(np.ldexp(1.0, int((exponent - 53 + trailing_zeros).min()))) if len(values) else 1.0
    )
    if max_seconds / exact_tick <= _MAX_TICKS:
        return exact_tick, 0
    slack = count
    return 2.0 ** math.floor(
        math.log2(max_seconds / max(_MIN_TICKS, slack * _TICKS_PER_SLACK))
    ), slack


def _tensors(a: Arrays, item: NDArray[np.int32], tick: float) -> list[dict[str, Any]]:
    """All tensors, with those of their readers that can be on another device."""
    ticks = np.floor(a.transfer / tick).astype(np.int64)
    rows = []
    for tensor in range(len(a.sizes)):
        source = int(a.producer[tensor])
        readers = a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]]
        readers = readers[a.scheduled[readers]]
        rows.append(
            {
                "producer": int(item[source]),
                "readers": sorted(set(item[readers].tolist()) - {int(item[source])}),
                "ticks": ticks[:, tensor].tolist(),
                "bytes": int(a.sizes[tensor]),
                "weight": bool(a.is_weight[source]),
                "stored": bool(a.is_resident[source]),
                "kept": bool(a.is_output[tensor]),
                "alias": int(a.alias[tensor]) if a.scheduled[source] else -1,
            }
        )
    return rows


def _needs(a: Arrays, item: NDArray[np.int32]) -> NDArray[np.int64]:
    """Bytes that must be on an item's device while it runs (rule 8), besides resident ones.

    Its workspace, outputs and inputs, except tensors that alias other memory or may be resident.
    For a group, the most that one of its ops needs.
    """
    output_bytes = np.where((a.alias < 0) & ~a.is_resident[a.producer], a.sizes, 0)
    required_bytes = a.workspace + np.bincount(
        a.producer, weights=output_bytes, minlength=a.ops
    ).astype(np.int64)
    required_bytes += np.bincount(a.reader, weights=output_bytes[a.inputs], minlength=a.ops).astype(
        np.int64
    )
    return _max_per_item(np.where(a.scheduled, required_bytes, 0), item)


def _max_per_item(values: NDArray[np.int64], index: NDArray[np.int32]) -> NDArray[np.int64]:
    maxima = np.zeros(int(index.max()) + 1, dtype=np.int64)
    np.maximum.at(maxima, index, values)
    return maxima


def _sum_seconds(values: NDArray[np.float64], index: NDArray[np.int32]) -> NDArray[np.float64]:
    total = np.zeros((int(index.max()) + 1, values.shape[1]))
    np.add.at(total, index, values)
    return total


def _sum_bytes(values: NDArray[np.int64], index: NDArray[np.int32]) -> NDArray[np.int64]:
    total = np.zeros(int(index.max()) + 1, dtype=np.int64)
    np.add.at(total, index, values)
    return total
