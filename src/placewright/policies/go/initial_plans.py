"""GO's first plans: a problem in, devices out; and which devices are alike.

A refinement needs something to refine, and from no plan at all equal devices stay equal for ever.
The list schedule is HEFT's order with the first finish (Topcuoglu et al. 2002), channels and memory
counted, in plain lists, so that 50,000 ops take about a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from placewright.transforms import by_forward, layer_places

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.arrays import Arrays
    from placewright.problem import Problem


def ways(a: Arrays) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Each op's mean way to the end of the graph, itself included, and from its beginning."""
    mean = np.where(a.allowed, a.compute, 0.0).sum(axis=1) / a.allowed.sum(axis=1)
    seconds = np.where(a.turn, mean, 0.0).tolist()
    sent = mean_transfer(a).tolist()
    inputs, first, producer = a.inputs.tolist(), a.first_input.tolist(), a.producer.tolist()
    after, before = [0.0] * a.ops, [0.0] * a.ops
    for op in range(a.ops):
        longest = 0.0
        for tensor in inputs[first[op] : first[op + 1]]:
            source = producer[tensor]
            longest = max(longest, before[source] + seconds[source] + sent[tensor])
        before[op] = longest
    for op in range(a.ops - 1, -1, -1):
        after[op] += seconds[op]
        for tensor in inputs[first[op] : first[op + 1]]:
            source = producer[tensor]
            after[source] = max(after[source], sent[tensor] + after[op])
    return np.array(after), np.array(before)


def mean_transfer(a: Arrays) -> NDArray[np.float64]:
    """Each tensor's seconds over a link, the mean over all ordered pairs of devices."""
    classes = a.link_class[a.link_class >= 0]
    if not len(classes):
        return np.zeros(len(a.sizes))
    share = np.bincount(classes, minlength=len(a.transfer)) / len(classes)
    mean: NDArray[np.float64] = share @ a.transfer
    return mean


def listed(
    problem: Problem, rank: NDArray[np.float64], given: NDArray[np.integer] | None = None
) -> tuple[NDArray[np.int32], tuple[float, float]]:
    """A list schedule's devices, or those given; bytes that it lacks, and when it ends.

    Ops go by falling rank where each ends first among devices with room; what must be together goes
    where the first of it was put. Bytes are let go when their last reader has been added, so they
    are an estimate; where nothing has room the emptiest device is taken.
    """
    a = problem.arrays
    devices = range(a.devices)
    leader, compute, allowed = a.leader.tolist(), a.compute.tolist(), a.allowed.tolist()
    first_input, inputs, producer = a.first_input.tolist(), a.inputs.tolist(), a.producer.tolist()
    first_tensor, sizes = a.first_tensor.tolist(), a.sizes.tolist()
    link, channel = a.link_class.tolist(), a.channel.tolist()
    transfer = a.transfer.tolist()
    stored, turn, workspace = a.stored.tolist(), a.turn, a.workspace.tolist()
    resident = np.bincount(a.leader, a.resident, a.ops).tolist()
    left = (np.diff(a.first_reader) + a.kept).tolist()
    room = a.capacity.astype(float).tolist()
    free, wire = [0.0] * a.devices, [0.0] * (a.channels + 1)
    end = [0.0] * a.ops
    place = [-1] * a.ops if given is None else given.tolist()  # of leaders
    if given is not None:
        for op in np.flatnonzero(a.leader == np.arange(a.ops)).tolist():
            room[place[op]] -= resident[op]
    there: dict[tuple[int, int], float] = {}
    copies: dict[int, list[int]] = {}

    def arrival(tensor: int, device: int, send: bool) -> float:
        source = producer[tensor]
        home = place[leader[source]]
        if home in (device, -1):
            return end[source]
        known = there.get((tensor, device))
        if known is None:
            wait = max(end[source], wire[channel[home][device]])
            known = wait + transfer[link[home][device]][tensor]
            if send:
                wire[channel[home][device]] = there[tensor, device] = known
                room[device] -= sizes[tensor]
                copies.setdefault(tensor, []).append(device)
        return known

    pinned = np.flatnonzero(a.allowed.sum(axis=1) == 1)  # known from the start
    for op in pinned.tolist() if given is None else ():
        if leader[op] == op:
            place[op] = allowed[op].index(True)
            room[place[op]] -= resident[op]
    order, least = np.argsort(-rank, kind="stable"), 0.0
    for op in order[turn[order]].tolist():
        reads = inputs[first_input[op] : first_input[op + 1]]
        lead = leader[op]
        if place[lead] < 0:
            need = resident[lead] + workspace[op]
            need += sum(sizes[first_tensor[op] : first_tensor[op + 1]])
            fetched = [0] * a.devices  # bytes of inputs that would have to be brought
            for tensor in reads:
                home = place[leader[producer[tensor]]]
                for device in devices:
                    if home not in (device, -1) and (tensor, device) not in there:
                        fetched[device] += sizes[tensor]
            choices = [d for d in devices if allowed[lead][d]]
            roomy = [d for d in choices if room[d] >= need + fetched[d]]
            if not roomy:
                roomy = [max(choices, key=lambda d: room[d] - fetched[d])]
            place[lead] = min(
                roomy,
                key=lambda d: (
                    max([free[d], *(arrival(t, d, False) for t in reads)]) + compute[op][d]
                ),
            )
            room[place[lead]] -= resident[lead]
        device = place[lead]
        start = max([free[device], *(arrival(t, device, True) for t in reads)])
        end[op] = free[device] = start + compute[op][device]
        for tensor in range(first_tensor[op], first_tensor[op + 1]):
            room[device] -= sizes[tensor]
        least = min(least, room[device])
        for tensor in reads:
            left[tensor] -= 1
            home = place[leader[producer[tensor]]]
            if not left[tensor]:
                if home >= 0 and not stored[producer[tensor]]:
                    room[home] += sizes[tensor]
                for device in copies.get(tensor, ()):
                    room[device] += sizes[tensor]
    found = np.maximum(np.array(place, dtype=np.int32), 0)
    return problem.settle(found[a.leader]), (-least, max(end, default=0.0))


STARTS = 3
"""How many first plans there are: layers, in stretches of equal work; one device, or where that may
be too small stretches of equal bytes; and a list schedule."""


def first_plans(problem: Problem, rank: NDArray[np.float64], count: int) -> NDArray[np.int32]:
    """Plans × ops: what a first pass may read, best first as a list schedule reckons them.

    Layers in order are 1.0 to 1.7 times as slow as the best known plan on unrolled networks; a list
    schedule, which spreads ops as far as it can, 2 to 6 times where links are slow.
    """
    a = problem.arrays
    total = np.where(a.turn[:, None], a.compute, 0.0).sum(axis=0)
    near = np.flatnonzero(~a.host) if (~a.host).any() else np.arange(a.devices)
    fastest = near[total[near] <= total[near].min() * 1.01]
    work = np.where(a.turn, a.compute[:, fastest[0]], 0.0)
    kept = np.bincount(a.producer, np.where(a.alias < 0, a.sizes, 0), a.ops) * ~a.stored
    place = layer_order(problem)
    made = [_stretches(problem, place, work, fastest)]
    if a.resident.sum() + kept.sum() <= a.capacity[fastest[0]]:
        made.append(problem.settle(np.full(a.ops, fastest[0])))
    else:
        made.append(_stretches(problem, place, a.resident + kept, near))
    made.append(listed(problem, rank)[0])
    # The list schedule too: what it lacks is only known once all of it is there.
    made.sort(key=lambda device: listed(problem, rank, device)[1])
    return np.stack(made[:count])


def layer_order(problem: Problem) -> NDArray[np.int64]:
    """Ops: where each stands among layers; by the forward pass where the graph knows no modules."""
    if problem not in _places:
        layers = layer_places(problem)
        found = by_forward(problem).group.astype(np.int64) if layers is None else layers
        _places[problem] = found
    return _places[problem]


_places: WeakKeyDictionary[Problem, NDArray[np.int64]] = WeakKeyDictionary()


def _stretches(
    problem: Problem,
    place: NDArray[np.integer],
    weight: NDArray[Any],
    devices: NDArray[np.integer],
) -> NDArray[np.int32]:
    """Ops: one stretch of places for each device, of about equal weight."""
    _, group = np.unique(place, return_inverse=True)
    heavy = np.bincount(group, weight) + 1e-12
    done = (np.cumsum(heavy) - heavy / 2) / heavy.sum()
    return problem.settle(devices[(done * len(devices)).astype(int)][group])


def alike(a: Arrays) -> list[list[int]]:
    """Devices in classes: any two of a class may change places in every plan.

    Both must have the same memory and run every op in the same time, and exchanging them must leave
    every link as it was.
    """
    classes: list[list[int]] = []
    for device in range(a.devices):
        home = next((each for each in classes if _exchangeable(a, each[0], device)), None)
        if home is None:
            classes.append([device])
        else:
            home.append(device)
    return classes


def _exchangeable(a: Arrays, one: int, other: int) -> bool:
    swap = np.arange(a.devices)
    swap[[one, other]] = other, one
    issued = (a.issuer[one] < 0) == (a.issuer[other] < 0)
    return bool(
        a.capacity[one] == a.capacity[other]
        and a.host[one] == a.host[other]
        and issued
        and (a.allowed[:, one] == a.allowed[:, other]).all()
        and (a.compute[:, one] == a.compute[:, other]).all()
        and (a.link_class[swap][:, swap] == a.link_class).all()
        and (_sharing(a.channel[swap][:, swap]) == _sharing(a.channel)).all()
    )


def _sharing(channel: NDArray[np.integer]) -> NDArray[np.int64]:
    """Which pairs of devices share a channel, whatever channels are called: the first such pair."""
    _, first, at = np.unique(channel, return_index=True, return_inverse=True)
    return first[at.reshape(-1)]


def by_first_use(
    plan: NDArray[np.integer], classes: list[list[int]], order: NDArray[np.integer]
) -> NDArray[np.int32]:
    """A plan with the devices of each class numbered by their first use in an order of ops."""
    to = np.arange(max(map(max, classes)) + 1, dtype=np.int32)
    used, first = np.unique(plan[order], return_index=True)
    met = used[np.argsort(first)].tolist()
    for members in classes:
        now = [device for device in met if device in members]
        now += [device for device in members if device not in now]
        to[now] = members
    return to[plan]


def nearest_to(
    plan: NDArray[np.integer],
    other: NDArray[np.integer],
    classes: list[list[int]],
    weight: NDArray[np.float64],
) -> NDArray[np.int32]:
    """A plan with the devices of each class renamed so that it agrees best with another plan.

    By the work on which both agree, the largest agreement first.
    """
    size = max(map(max, classes)) + 1
    shared = np.zeros((size, size))
    np.add.at(shared, (plan, other), weight)
    to = np.arange(size, dtype=np.int32)
    for members in classes:
        rows, columns = list(members), list(members)
        while rows:
            block = shared[np.ix_(rows, columns)]
            at, into = np.unravel_index(int(block.argmax()), block.shape)
            to[rows.pop(at)] = columns.pop(into)
    return to[plan]
