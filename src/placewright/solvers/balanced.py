"""Contiguous splits of the graph that minimise the load of the busiest device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.transforms import layer_positions
from placewright.transforms.bundles import (
    Bundles,
    accelerators,
    accelerators_first,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.solvers.search import Search

_HALVINGS = 50  # of the interval that holds the smallest load: down to a share of 1e-15
_TRY_EVERY_COUNT = (
    16  # accelerators up to which every number is tried; beyond, powers of two and all
)


@dataclass(frozen=True)
class Balanced:
    """The graph cut into one contiguous segment per device, by cost.

    It tries the first 2, 3, … accelerators (of many, powers of two), and all of them with the
    hosts (in proportion to their speed), each with and without memory limits. The graph is cut in
    several orders: its own; one where ops come just before they are needed; one where a layer comes
    as a whole, with all its time steps and its backward pass; and, for a training graph, one where
    a backward op comes with the forward op whose tensor it reads.
    """

    name = "balanced"

    def run(self, search: Search) -> None:
        search.judge(balanced_placements(search))


def balanced_placements(search: Search) -> NDArray[np.int32]:
    """Plans × ops: all distinct splits that `Balanced` evaluates; fewer if time runs out."""
    problem = search.problem
    bundles = Bundles.of(problem)
    fast_devices = accelerators(problem)
    device_sets = [
        fast_devices[:count] for count in _accelerator_counts(len(fast_devices), len(bundles))
    ] or [fast_devices]
    if len(all_devices := accelerators_first(problem)) > len(fast_devices):
        device_sets.append(np.concatenate([device_sets[-1], all_devices[len(fast_devices) :]]))
    positions = [np.arange(len(problem.graph)), demand_positions(problem)]
    if any(op.phase != "forward" for op in problem.graph.ops):
        positions.append(folded_positions(problem))
    if (layers := layer_positions(problem)) is not None:
        positions.append(layers)
    orders = [op_positions[bundles.leader].argsort(kind="stable") for op_positions in positions]
    capacity = problem.arrays.capacity.astype(np.float64)
    plans: list[NDArray[np.int32]] = []
    for devices in device_sets:
        if plans and search.over:
            break
        for order in orders:
            for memory in (capacity[devices], np.full(len(devices), np.inf)):
                cuts = balanced_split(
                    bundles.seconds[order][:, devices], bundles.bytes[order], memory
                )
                bundle_device = np.empty(len(bundles), dtype=np.int32)
                bundle_device[order] = devices[cuts]
                plans.append(bundles.placement(bundle_device))
    return np.unique(np.stack(plans), axis=0)


def _accelerator_counts(devices: int, bundles: int) -> list[int]:
    """The numbers of accelerators to try, no more than there are bundles."""
    if devices <= _TRY_EVERY_COUNT:
        return list(range(2, devices + 1))
    powers = [2**power for power in range(5, devices.bit_length())]
    max_count = max(2, min(devices, bundles))
    return sorted(
        {min(count, max_count) for count in (*range(2, _TRY_EVERY_COUNT + 1), *powers, devices)}
    )


def balanced_split(
    seconds: NDArray[np.float64], sizes: NDArray[np.int64], capacity: NDArray[np.float64]
) -> NDArray[np.int64]:
    """The device (column) of each item (row), in contiguous segments of the smallest maximum load.

    For a given load each device in turn takes as many items as load and memory allow, which no
    other split can beat; so the smallest load at which all items are taken is found by bisection.
    Items that never fit go to the last device.
    """
    load_sums = np.vstack([np.zeros(seconds.shape[1]), seconds.cumsum(axis=0)])
    byte_sums = np.concatenate([[0], sizes.cumsum()])

    def cuts(load: float) -> list[int]:
        ends = [0]
        for device, free_bytes in enumerate(capacity):
            if (start := ends[-1]) == len(seconds):
                break
            by_load = (
                np.searchsorted(load_sums[:, device], load_sums[start, device] + load, side="right")
                - 1
            )
            by_memory = np.searchsorted(byte_sums, byte_sums[start] + free_bytes, side="right") - 1
            ends.append(max(start, int(min(by_load, by_memory))))
        return ends

    low, high = 0.0, float(load_sums[-1].max())
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if cuts(middle)[-1] == len(seconds) else (middle, high)
    ends = cuts(high * (1 + 1e-12))[1:]
    return np.minimum(
        np.searchsorted(ends, np.arange(len(seconds)), side="right"), len(capacity) - 1
    )


def demand_positions(problem: Problem) -> NDArray[np.int64]:
    """The positions of ops if each comes just before the first op that needs it.

    Graphs of other tools often begin with all their constants, which would all be part of the
    first segment.
    """
    a = problem.arrays
    first_input, sources = a.first_input.tolist(), a.producer[a.inputs].tolist()
    position = np.full(a.ops, -1, dtype=np.int64)
    is_read = np.zeros(a.ops, dtype=bool)
    is_read[sources] = True
    next_position = 0
    for sink in np.flatnonzero(~is_read).tolist():
        stack = [
            (sink, first_input[sink])
        ]  # ops that wait for their inputs, and the next input of each
        while stack:
            op, edge = stack.pop()
            if edge < first_input[op + 1]:
                stack.append((op, edge + 1))
                if position[sources[edge]] < 0:
                    stack.append((sources[edge], first_input[sources[edge]]))
            elif position[op] < 0:
                position[op], next_position = next_position, next_position + 1
    return position


def folded_positions(problem: Problem) -> NDArray[np.int64]:
    """The positions of ops with the backward half of a training graph folded onto the forward half.

    A forward op keeps its position, and a weight has that of its first reader. Another op has that
    of the last forward op whose tensor it reads; if it reads none, that of its first input.
    """
    a, ops = problem.arrays, problem.graph.ops
    position = np.zeros(a.ops, dtype=np.int64)
    for op in range(a.ops):
        if ops[op].phase == "forward":
            position[op] = a.leader[op]
            continue
        sources = a.producer[a.inputs[a.first_input[op] : a.first_input[op + 1]]]
        forward = [position[source] for source in sources if ops[source].phase == "forward"]
        inputs = [position[source] for source in sources]
        position[op] = max(forward) if forward else min(inputs, default=op)
    return position
