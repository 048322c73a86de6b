"""Priority rules: heuristic issue orders for a given placement.

A plan without priorities follows the graph's order, which ignores the placement. These rules use
it. They are cheap compared with a search; `OrderSearch` tries them and goes on from the best.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.simulator.evaluation import step_columns
from placewright.solvers.balanced import demand_positions
from placewright.solvers.ordering.latest_start import latest_starts
from placewright.transforms.path_lengths import PathLengths

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.problem_arrays import Arrays

Seconds = NDArray[np.float64]
Devices = NDArray[np.int32]
Staging = NDArray[np.int64]


def critical_path_first(flow: PathLengths, device: Devices) -> Seconds:
    """Plans × ops: the longest path to the end first, with the plan's devices and links.

    The upward rank of Topcuoglu et al. 2002 for a known placement.
    """
    return -flow.bottom_levels(device)


def senders_first(flow: PathLengths, device: Devices) -> Seconds:
    """Plans × ops: ops with the shortest path to a send to another device first.

    Ops that lead to none come last, the longest path to the end first.
    """
    until_send = flow.time_to_send(device)
    levels = flow.bottom_levels(device)
    never_sends = np.isinf(until_send)
    farthest = np.where(never_sends, 0.0, until_send).max(axis=1, keepdims=True)
    longest = levels.max(axis=1, keepdims=True)
    return np.where(never_sends, farthest + 2 * longest - levels, until_send)


def non_delay_times(
    problem: Problem, device: Devices, priority: Seconds | None, staging: Staging | None = None
) -> tuple[Seconds, Seconds]:
    """When one plan's ops start and end if no device ever waits while it has a ready op.

    With the discipline *in order* a device waits for the next op of its order; *ready* shows which
    ops it could run meanwhile, and its start times as priorities make it do so. Unscheduled ops
    start and end at 0.
    """
    columns = step_columns(problem, device, priority, staging, in_order=False)
    return columns["start"], columns["end"]


def memory_lean_order(problem: Problem) -> Seconds:
    """Ops in an order with low memory use: what frees most and allocates least goes first.

    Of the ready ops, always the one that adds least to the bytes in use, on all devices together; a
    tensor is freed with its last reader. Ties go by how soon the op is needed.
    """
    a = problem.arrays
    tensor_bytes = np.where((a.alias < 0) & ~a.is_resident[a.producer], a.sizes, 0).tolist()
    first_tensor, first_reader = a.first_tensor.tolist(), a.first_reader.tolist()
    readers, first_input = a.readers.tolist(), a.first_input.tolist()
    inputs, scheduled, is_output = a.inputs.tolist(), a.scheduled.tolist(), a.is_output.tolist()
    readers_left = np.diff(a.first_reader).tolist()  # readers still to come
    waiting = _input_counts(a).tolist()
    output_bytes: list[int] = [
        sum(tensor_bytes[first_tensor[op] : first_tensor[op + 1]]) for op in range(a.ops)
    ]
    needed = demand_positions(problem).tolist()

    def adds(op: int) -> int:
        tensors = inputs[first_input[op] : first_input[op + 1]]
        freed_bytes: int = sum(
            tensor_bytes[tensor]
            for tensor in tensors
            if readers_left[tensor] == 1 and not is_output[tensor]
        )
        return output_bytes[op] - freed_bytes

    ready = [(adds(op), needed[op], op) for op in range(a.ops) if scheduled[op] and not waiting[op]]
    heapq.heapify(ready)
    position, count = np.zeros(a.ops), 0
    while ready:
        queued_bytes, _, op = heapq.heappop(ready)
        if (
            current_bytes := adds(op)
        ) < queued_bytes:  # another reader has run since: it frees more than before
            heapq.heappush(ready, (current_bytes, needed[op], op))
            continue
        count += 1
        position[op] = count
        for tensor in inputs[first_input[op] : first_input[op + 1]]:
            readers_left[tensor] -= 1
        for tensor in range(first_tensor[op], first_tensor[op + 1]):
            for reader in readers[first_reader[tensor] : first_reader[tensor + 1]]:
                waiting[reader] -= 1
                if not waiting[reader] and scheduled[reader]:
                    heapq.heappush(ready, (adds(reader), needed[reader], reader))
    return position


def rule_priorities(
    problem: Problem,
    device: Devices,
    staging: Staging | None = None,
    flow: PathLengths | None = None,
) -> dict[str, Seconds]:
    """The priorities of one placement by every rule, the rules that help most first.

    Args:
        flow: The problem's path lengths, if the caller has them.
    """
    flow = PathLengths(problem.arrays) if flow is None else flow
    row = device[None]
    longest, feeds = critical_path_first(flow, row)[0], senders_first(flow, row)[0]
    start, end = non_delay_times(problem, device, longest, staging)
    latest = latest_starts(problem, device, end)
    non_delay, end = non_delay_times(problem, device, latest, staging)
    return {
        "latest start": latest,
        "latest start, never idle": non_delay,
        "latest start, twice": latest_starts(problem, device, end),
        "critical path, never idle": start,
        "critical path": longest,
        "feeds others, never idle": non_delay_times(problem, device, feeds, staging)[0],
        "feeds others": feeds,
        "first ready": non_delay_times(problem, device, None, staging)[0],
        "graph order": np.arange(problem.arrays.ops, dtype=np.float64),
        "memory lean": memory_lean_order(problem),
        "as needed": demand_positions(problem).astype(np.float64),
    }


def _input_counts(a: Arrays) -> NDArray[np.int64]:
    """The number of tensors that each op reads from scheduled ops."""
    return np.bincount(a.reader[a.scheduled[a.producer[a.inputs]]], minlength=a.ops)
