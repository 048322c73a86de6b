"""GO's initial plans from heuristics, and which devices are interchangeable.

GO refines plans, so it needs initial ones: without a plan, equal devices look equal and stay so.
The list schedule is HEFT's order with the earliest finish (Topcuoglu et al. 2002), with channels
and memory, in plain lists, so that 50,000 ops take about a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from placewright.scheduling.ranks import downward_ranks, upward_ranks
from placewright.transforms import by_forward, layer_positions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.problem_arrays import Arrays


def path_lengths(a: Arrays) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ops: the mean longest path to the end of the graph, the op included, and from its start."""
    return upward_ranks(a), downward_ranks(a, from_unscheduled=True)


def list_schedule(
    problem: Problem, rank: NDArray[np.float64], placement: NDArray[np.integer] | None = None
) -> tuple[NDArray[np.int32], tuple[float, float]]:
    """A list schedule, or that of a placement: devices, overflow in bytes, and its end.

    Ops are placed by falling rank where each ends first among devices with enough memory; a unit
    follows its first op. Bytes are freed when their last reader is scheduled, so memory is an
    estimate; where no device has enough, the one with most free memory is taken.
    """
    a = problem.arrays
    devices = range(a.devices)
    leader, compute, allowed = a.leader.tolist(), a.compute.tolist(), a.allowed.tolist()
    first_input, inputs, producer = a.first_input.tolist(), a.inputs.tolist(), a.producer.tolist()
    first_tensor, sizes = a.first_tensor.tolist(), a.sizes.tolist()
    link, channel = a.link_class.tolist(), a.channel.tolist()
    transfer = a.transfer.tolist()
    stored, scheduled, workspace = a.is_resident.tolist(), a.scheduled, a.workspace.tolist()
    resident = np.bincount(a.leader, a.resident, a.ops).tolist()
    readers_left = (np.diff(a.first_reader) + a.is_output).tolist()
    free_bytes = a.capacity.astype(float).tolist()
    device_free, channel_free = [0.0] * a.devices, [0.0] * (a.channels + 1)
    end = [0.0] * a.ops
    unit_device = [-1] * a.ops if placement is None else placement.tolist()  # of leaders
    if placement is not None:
        for op in np.flatnonzero(a.leader == np.arange(a.ops)).tolist():
            free_bytes[unit_device[op]] -= resident[op]
    arrivals: dict[tuple[int, int], float] = {}
    copies: dict[int, list[int]] = {}

    def arrival(tensor: int, device: int, commit: bool) -> float:
        source = producer[tensor]
        source_device = unit_device[leader[source]]
        if source_device in (device, -1):
            return end[source]
        arrival_time = arrivals.get((tensor, device))
        if arrival_time is None:
            sent_at = max(end[source], channel_free[channel[source_device][device]])
            arrival_time = sent_at + transfer[link[source_device][device]][tensor]
            if commit:
                channel_free[channel[source_device][device]] = arrivals[tensor, device] = (
                    arrival_time
                )
                free_bytes[device] -= sizes[tensor]
                copies.setdefault(tensor, []).append(device)
        return arrival_time

    pinned = np.flatnonzero(a.allowed.sum(axis=1) == 1)  # known from the start
    for op in pinned.tolist() if placement is None else ():
        if leader[op] == op:
            unit_device[op] = allowed[op].index(True)
            free_bytes[unit_device[op]] -= resident[op]
    order, min_free_bytes = np.argsort(-rank, kind="stable"), 0.0
    for op in order[scheduled[order]].tolist():
        tensors = inputs[first_input[op] : first_input[op + 1]]
        unit_leader = leader[op]
        if unit_device[unit_leader] < 0:
            needed_bytes = resident[unit_leader] + workspace[op]
            needed_bytes += sum(sizes[first_tensor[op] : first_tensor[op + 1]])
            fetched_bytes = [0] * a.devices  # bytes of inputs that are on other devices
            for tensor in tensors:
                source_device = unit_device[leader[producer[tensor]]]
                for device in devices:
                    if source_device not in (device, -1) and (tensor, device) not in arrivals:
                        fetched_bytes[device] += sizes[tensor]
            choices = [d for d in devices if allowed[unit_leader][d]]
            fitting = [d for d in choices if free_bytes[d] >= needed_bytes + fetched_bytes[d]]
            if not fitting:
                fitting = [max(choices, key=lambda d: free_bytes[d] - fetched_bytes[d])]
            unit_device[unit_leader] = min(
                fitting,
                key=lambda d: (
                    max([device_free[d], *(arrival(t, d, False) for t in tensors)]) + compute[op][d]
                ),
            )
            free_bytes[unit_device[unit_leader]] -= resident[unit_leader]
        device = unit_device[unit_leader]
        start = max([device_free[device], *(arrival(t, device, True) for t in tensors)])
        end[op] = device_free[device] = start + compute[op][device]
        for tensor in range(first_tensor[op], first_tensor[op + 1]):
            free_bytes[device] -= sizes[tensor]
        min_free_bytes = min(min_free_bytes, free_bytes[device])
        for tensor in tensors:
            readers_left[tensor] -= 1
            source_device = unit_device[leader[producer[tensor]]]
            if not readers_left[tensor]:
                if source_device >= 0 and not stored[producer[tensor]]:
                    free_bytes[source_device] += sizes[tensor]
                for device in copies.get(tensor, ()):
                    free_bytes[device] += sizes[tensor]
    leader_device = np.maximum(np.array(unit_device, dtype=np.int32), 0)
    return problem.legalize(leader_device[a.leader]), (-min_free_bytes, max(end, default=0.0))


INITIAL_PLAN_COUNT = 3
"""The number of initial plans: layers in segments of equal work; one device, or, where that may be
too small, segments of equal bytes; and a list schedule."""


def heuristic_plans(problem: Problem, rank: NDArray[np.float64], count: int) -> NDArray[np.int32]:
    """Plans × ops: initial plans, the best first by a list schedule's estimate.

    Layers in order take 1.0 to 1.7 times as long as the best known plan on unrolled networks; a
    list schedule, which spreads ops as far as it can, 2 to 6 times where links are slow.
    """
    a = problem.arrays
    total = np.where(a.scheduled[:, None], a.compute, 0.0).sum(axis=0)
    accelerators = np.flatnonzero(~a.is_host) if (~a.is_host).any() else np.arange(a.devices)
    fastest = accelerators[total[accelerators] <= total[accelerators].min() * 1.01]
    work = np.where(a.scheduled, a.compute[:, fastest[0]], 0.0)
    output_bytes = (
        np.bincount(a.producer, np.where(a.alias < 0, a.sizes, 0), a.ops) * ~a.is_resident
    )
    position = layer_index(problem)
    plans = [_balanced_segments(problem, position, work, fastest)]
    if a.resident.sum() + output_bytes.sum() <= a.capacity[fastest[0]]:
        plans.append(problem.legalize(np.full(a.ops, fastest[0])))
    else:
        plans.append(_balanced_segments(problem, position, a.resident + output_bytes, accelerators))
    plans.append(list_schedule(problem, rank)[0])
    # The list schedule again: its overflow is only known once all of it is placed.
    plans.sort(key=lambda placement: list_schedule(problem, rank, placement)[1])
    return np.stack(plans[:count])


def layer_index(problem: Problem) -> NDArray[np.int64]:
    """Ops: the position of each among layers; by the forward pass where a graph has no modules."""
    if problem not in _layer_index_cache:
        layers = layer_positions(problem)
        index = by_forward(problem).group.astype(np.int64) if layers is None else layers
        _layer_index_cache[problem] = index
    return _layer_index_cache[problem]


_layer_index_cache: WeakKeyDictionary[Problem, NDArray[np.int64]] = WeakKeyDictionary()


def _balanced_segments(
    problem: Problem,
    position: NDArray[np.integer],
    weight: NDArray[Any],
    devices: NDArray[np.integer],
) -> NDArray[np.int32]:
    """Ops: one segment of positions for each device, of about equal weight."""
    _, group = np.unique(position, return_inverse=True)
    group_weight = np.bincount(group, weight) + 1e-12
    progress = (np.cumsum(group_weight) - group_weight / 2) / group_weight.sum()
    return problem.legalize(devices[(progress * len(devices)).astype(int)][group])


def equal_devices(a: Arrays) -> list[list[int]]:
    """Classes of devices: any two of a class can be exchanged in every plan.

    Both must have the same memory and run every op in the same time, and exchanging them must leave
    every link the same.
    """
    classes: list[list[int]] = []
    for device in range(a.devices):
        device_class = next(
            (members for members in classes if _exchangeable(a, members[0], device)), None
        )
        if device_class is None:
            classes.append([device])
        else:
            device_class.append(device)
    return classes


def _exchangeable(a: Arrays, first: int, second: int) -> bool:
    swap = np.arange(a.devices)
    swap[[first, second]] = second, first
    same_issuing = (a.issuer[first] < 0) == (a.issuer[second] < 0)
    return bool(
        a.capacity[first] == a.capacity[second]
        and a.is_host[first] == a.is_host[second]
        and same_issuing
        and (a.allowed[:, first] == a.allowed[:, second]).all()
        and (a.compute[:, first] == a.compute[:, second]).all()
        and (a.link_class[swap][:, swap] == a.link_class).all()
        and (_channel_sharing(a.channel[swap][:, swap]) == _channel_sharing(a.channel)).all()
    )


def _channel_sharing(channel: NDArray[np.integer]) -> NDArray[np.int64]:
    """For each pair of devices the first pair that shares its channel."""
    _, first_pair, channel_index = np.unique(channel, return_index=True, return_inverse=True)
    return first_pair[channel_index.reshape(-1)]


def canonical_devices(
    plan: NDArray[np.integer], classes: list[list[int]], order: NDArray[np.integer]
) -> NDArray[np.int32]:
    """A plan with the devices of each class numbered by their first use in an order of ops."""
    new_device = np.arange(max(map(max, classes)) + 1, dtype=np.int32)
    used_devices, first_use = np.unique(plan[order], return_index=True)
    by_use = used_devices[np.argsort(first_use)].tolist()
    for members in classes:
        renamed = [device for device in by_use if device in members]
        renamed += [device for device in members if device not in renamed]
        new_device[renamed] = members
    return new_device[plan]


def align_devices(
    plan: NDArray[np.integer],
    other: NDArray[np.integer],
    classes: list[list[int]],
    weight: NDArray[np.float64],
) -> NDArray[np.int32]:
    """A plan with the devices of each class renamed so that it agrees best with another plan.

    By the work on which both agree, the largest agreement first.
    """
    size = max(map(max, classes)) + 1
    agreement = np.zeros((size, size))
    np.add.at(agreement, (plan, other), weight)
    new_device = np.arange(size, dtype=np.int32)
    for members in classes:
        rows, columns = list(members), list(members)
        while rows:
            block = agreement[np.ix_(rows, columns)]
            row, column = np.unravel_index(int(block.argmax()), block.shape)
            new_device[rows.pop(row)] = columns.pop(column)
    return new_device[plan]
