"""Priority rules: a problem and placements in, priorities that say who goes first out.

A plan without priorities follows the graph's order, which knows nothing of the placement. These
rules do. All of them are cheap next to a search; `Schedule` tries them and goes on from the best.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.simulator.evaluation import kernel
from placewright.solvers.balanced import as_needed
from placewright.solvers.ordering.latest_start import latest_start
from placewright.transforms.path_lengths import Flow

if TYPE_CHECKING:
    from placewright.arrays import Arrays
    from placewright.problem import Problem

Seconds = NDArray[np.float64]
Devices = NDArray[np.int32]
Staging = NDArray[np.int64]


def critical_path(flow: Flow, device: Devices) -> Seconds:
    """Plans × ops: the longest way to the end first, with the real devices and links.

    The upward rank of Topcuoglu et al. 2002 once the placement is known.
    """
    return -flow.bottom_levels(device)


def feeds_others(flow: Flow, device: Devices) -> Seconds:
    """Plans × ops: what leads to a send to another device soonest first.

    What leads to none comes last, the longest way to the end first.
    """
    ahead = flow.until_sent(device)
    levels = flow.bottom_levels(device)
    never = np.isinf(ahead)
    far = np.where(never, 0.0, ahead).max(axis=1, keepdims=True)
    longest = levels.max(axis=1, keepdims=True)
    return np.where(never, far + 2 * longest - levels, ahead)


def never_idle(
    problem: Problem, device: Devices, priority: Seconds | None, staging: Staging | None = None
) -> tuple[Seconds, Seconds]:
    """When one plan's ops start and end if no device ever waits while it has a ready op.

    In order a device waits for the head of its line; a run under the *ready* discipline shows what
    it could do meanwhile, and the starts, taken as priorities, make it do so. Ops that take no turn
    start and end at 0.
    """
    columns = kernel(problem.arrays).timeline(
        np.ascontiguousarray(device[None], dtype=np.int32),
        None if priority is None else np.ascontiguousarray(priority[None], dtype=np.float64),
        None if staging is None else np.ascontiguousarray(staging[None], dtype=np.int64),
        False,
    )
    return columns["start"], columns["end"]


def memory_lean(problem: Problem) -> Seconds:
    """Ops in an order that holds few bytes: what frees most and makes least goes first.

    Of the ops whose inputs are there, always the one that adds least to the bytes held, wherever
    they are; a tensor is freed with its last reader. Ties by how soon the op is needed.
    """
    a = problem.arrays
    own = np.where((a.alias < 0) & ~a.stored[a.producer], a.sizes, 0).tolist()
    first_tensor, first_reader = a.first_tensor.tolist(), a.first_reader.tolist()
    readers, first_input = a.readers.tolist(), a.first_input.tolist()
    inputs, turn, kept = a.inputs.tolist(), a.turn.tolist(), a.kept.tolist()
    left = np.diff(a.first_reader).tolist()  # readers still to come
    waiting = _waiting(a).tolist()
    made: list[int] = [sum(own[first_tensor[op] : first_tensor[op + 1]]) for op in range(a.ops)]
    needed = as_needed(problem).tolist()

    def adds(op: int) -> int:
        read = inputs[first_input[op] : first_input[op + 1]]
        freed: int = sum(own[tensor] for tensor in read if left[tensor] == 1 and not kept[tensor])
        return made[op] - freed

    heads = [(adds(op), needed[op], op) for op in range(a.ops) if turn[op] and not waiting[op]]
    heapq.heapify(heads)
    place, done = np.zeros(a.ops), 0
    while heads:
        known, _, op = heapq.heappop(heads)
        if (now := adds(op)) < known:  # another reader has gone since: it frees more than it did
            heapq.heappush(heads, (now, needed[op], op))
            continue
        done += 1
        place[op] = done
        for tensor in inputs[first_input[op] : first_input[op + 1]]:
            left[tensor] -= 1
        for tensor in range(first_tensor[op], first_tensor[op + 1]):
            for reader in readers[first_reader[tensor] : first_reader[tensor + 1]]:
                waiting[reader] -= 1
                if not waiting[reader] and turn[reader]:
                    heapq.heappush(heads, (adds(reader), needed[reader], reader))
    return place


def priority_rules(
    problem: Problem, device: Devices, staging: Staging | None = None, flow: Flow | None = None
) -> dict[str, Seconds]:
    """The priorities of one placement by every rule, those that help most on the whole first.

    Args:
        flow: The problem's flow, if the caller has made it already.
    """
    flow = Flow(problem.arrays) if flow is None else flow
    row = device[None]
    longest, feeds = critical_path(flow, row)[0], feeds_others(flow, row)[0]
    start, end = never_idle(problem, device, longest, staging)
    latest = latest_start(problem, device, end)
    again, end = never_idle(problem, device, latest, staging)
    return {
        "latest start": latest,
        "latest start, never idle": again,
        "latest start, twice": latest_start(problem, device, end),
        "critical path, never idle": start,
        "critical path": longest,
        "feeds others, never idle": never_idle(problem, device, feeds, staging)[0],
        "feeds others": feeds,
        "first ready": never_idle(problem, device, None, staging)[0],
        "graph order": np.arange(problem.arrays.ops, dtype=np.float64),
        "memory lean": memory_lean(problem),
        "as needed": as_needed(problem).astype(np.float64),
    }


def _waiting(a: Arrays) -> NDArray[np.int64]:
    """How many tensors each op reads from ops that take a turn."""
    reader = np.repeat(np.arange(a.ops), np.diff(a.first_input))
    return np.bincount(reader[a.turn[a.producer[a.inputs]]], minlength=a.ops)
