"""Moves: a plan and its timeline in, what is known of each op on each other device out.

Where a list scheduler reckons with the plan so far, here the rest of the plan is known: who its
neighbours are with, when its inputs would arrive, what the device does at that time, and how much
later the op may end before the step gets longer. Nothing depends on the number of devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.arrays import Arrays
    from placewright.problem import Problem

    Seconds = NDArray[np.float64]
    Ints = NDArray[np.int64]

_FAR = 4.0  # how many times its scale a figure may count
_NEAR = 8  # ops before and behind in the graph that an op is compared with
_WIDE = 0.05  # of the step: how long a wide look at a device's work is

FEATURES = (
    "stay",  # it is there
    "inputs",  # share of what it reads that is made there, by transfer seconds
    "readers",  # share of what reads it
    "near",  # the same of its neighbours and itself, two steps away
    "around",  # and four steps
    "beside",  # share of the ops before and behind it in the graph
    "slow",  # how much longer it takes than on its fastest device, as a logarithm
    "longer",  # than where it is, in terms of a mean op
    "sent, own scale",  # seconds on links that moving it adds
    "sent",  # the same, in terms of a mean op
    "arrival",  # how much later its inputs would be there than it starts now
    "work now",  # share of its time that the device is taken
    "work around",  # the same of a longer time
    "load",  # of the device, as a share of the step
    "busiest",  # of the device, as a share of the busiest device's
    "memory",  # in use at most, with it
    "over",  # more than there is
    "host",
    "slack",  # how much later it may end, as a share of the step
    "critical",  # not at all
    "waits for device",  # it begins when the op before it on its device ends
    "waits for input",  # it begins when an input arrives from elsewhere
    "size",  # its length and transfers in terms of a mean op's, as a logarithm
    "when",  # it starts, as a share of the step
    "too much",  # the plan does not fit
)
"""What is known of an op on a device; all from `slack` on is the same for all its devices."""


@dataclass(frozen=True, eq=False)
class Ties:
    """What of a problem no plan changes: who reads what, op by op.

    Args:
        reader, source, tensor: Of each input that is no weight, in the order of readers.
        first: Ops + 1: where the inputs of each op begin.
        mean: Tensors: mean transfer seconds.
        own: Ops: mean seconds of itself and of bringing its inputs.
        bytes: Ops: what moving it takes along.
    """

    reader: Ints
    source: Ints
    tensor: Ints
    mean: Seconds
    own: Seconds
    scale: float
    bytes: Seconds
    transfer: Seconds  # link classes + 1 × tensors: the last row, of no link, is 0
    link: Ints  # devices × devices: rows of it

    @classmethod
    def of(cls, problem: Problem) -> Ties:
        a = problem.arrays
        reader = np.repeat(np.arange(a.ops), np.diff(a.first_input))
        source = a.producer[a.inputs].astype(np.int64)
        kept = a.turn[reader] & ~a.stored[source]
        reader, source, tensor = reader[kept], source[kept], a.inputs[kept].astype(np.int64)
        classes = a.link_class[a.link_class >= 0]
        share = np.bincount(classes, minlength=len(a.transfer)) / max(len(classes), 1)
        mean = share @ a.transfer if len(a.transfer) else np.zeros(len(a.sizes))
        compute = np.where(a.turn, a.compute.mean(axis=1), 0.0)
        own: Seconds = compute + np.bincount(reader, mean[tensor], a.ops)
        scale = max(float(own[a.turn].mean()) if a.turn.any() else 0.0, 1e-30)
        size = a.resident + np.bincount(a.producer, a.sizes, a.ops)
        held = np.bincount(a.leader, size, a.ops)  # weights go along with their first reader
        link = np.where(a.link_class < 0, len(a.transfer), a.link_class).astype(np.int64)
        transfer = np.concatenate([a.transfer, np.zeros((1, len(a.sizes)))])
        own = np.maximum(own, 0.05 * scale)
        return cls(
            reader, source, tensor, mean, own, scale, held.astype(np.float64), transfer, link
        )


_seen: WeakKeyDictionary[Problem, Ties] = WeakKeyDictionary()


def ties(problem: Problem) -> Ties:
    """The ties of a problem, worked out once."""
    if problem not in _seen:
        _seen[problem] = Ties.of(problem)
    return _seen[problem]


def features(
    problem: Problem,
    placement: NDArray[np.integer],
    start: Seconds,
    end: Seconds,
    peak: NDArray[np.int64],
) -> NDArray[np.float32]:
    """Ops × devices × features of a plan.

    Args:
        placement: Ops: their devices.
        start, end: Ops: when each op runs.
        peak: Devices: the most bytes held at once.
    """
    a, t = problem.arrays, ties(problem)
    device = placement.astype(np.int64)
    ops, devices = a.ops, a.devices
    here = np.eye(devices)[device]
    step = max(float(end.max(initial=0.0)), 1e-30)
    now = np.take_along_axis(a.compute, device[:, None], axis=1)
    scale, own = t.scale, t.own[:, None]
    arrival, sent = _sent(a, t, device, end)
    busy = np.bincount(device[a.turn], (end - start)[a.turn], devices)
    work = _Work(a, device, start, end)
    length = np.where(a.turn, end - start, 0.0)
    reads, read = _shares(t, here, ops)
    both = reads * reads.sum(axis=1, keepdims=True) + read * read.sum(axis=1, keepdims=True)
    near = _smoothed(t, both + here, ops)
    around = _smoothed(t, _smoothed(t, near, ops), ops)
    capacity = np.maximum(a.capacity, 1)
    after = (peak + np.where(here > 0, 0.0, t.bytes[:, None])) / capacity
    late = _late(a, t, device, start, end, step)
    by_device, by_input = _held(a, t, device, start, end)
    wide = _WIDE * step
    over = bool((peak > a.capacity).any())
    fastest = np.maximum(a.compute.min(axis=1, keepdims=True), 1e-3 * scale)
    columns = (
        here,
        reads,
        read,
        near,
        around,
        _beside(here),
        np.log(np.maximum(a.compute, fastest) / fastest),
        np.clip((a.compute - now) / scale, -_FAR, _FAR),
        np.clip(sent / own, -_FAR, _FAR),
        np.clip(sent / scale, -_FAR, _FAR),
        np.clip((arrival - start[:, None]) / own, -_FAR, _FAR),
        work.share(start, np.maximum(length, scale)),
        work.share(start - wide / 2, np.full(ops, wide)),
        (busy / step)[None],
        (busy / max(busy.max(), 1e-30))[None],
        np.minimum(after, 2.0),
        after > 1.0,
        a.host[None],
        np.minimum((late - end) / step, 1.0)[:, None],
        ((late - end) < 1e-3 * step)[:, None],
        by_device[:, None],
        by_input[:, None],
        np.log(own / scale),
        (start / step)[:, None],
        np.full((1, 1), over),
    )
    out = np.empty((ops, devices, len(FEATURES)), dtype=np.float32)
    for at, column in enumerate(columns):
        out[:, :, at] = column
    return out


def _sent(a: Arrays, t: Ties, device: Ints, end: Seconds) -> tuple[Seconds, Seconds]:
    """Ops × devices: when all inputs would be there, and seconds on links that a move adds."""
    ops, devices, tensors = a.ops, a.devices, len(a.sizes)
    place = device[t.source]
    brought = t.transfer[t.link[place], t.tensor[:, None]]  # inputs × devices
    arrival = np.zeros((ops, devices))
    readers = np.zeros((tensors, devices))
    if len(t.reader):
        first = np.flatnonzero(np.diff(t.reader, prepend=-1))
        arrival[t.reader[first]] = np.maximum.reduceat(end[t.source][:, None] + brought, first)
        np.add.at(readers, (t.tensor, device[t.reader]), 1.0)
    # A tensor is sent once to each device: a move pays only where no other op reads it.
    others = readers[t.tensor]
    others[np.arange(len(t.reader)), device[t.reader]] -= 1.0
    pays = np.where(others > 0, 0.0, brought)
    total = np.zeros((ops, devices))
    if len(t.reader):
        total[t.reader[first]] = np.add.reduceat(pays, first)
    read = readers > 0
    out = np.zeros((tensors, devices))
    for target in range(devices):
        marked = np.flatnonzero(read[:, target])
        out[marked] += t.transfer[t.link[:, target]][:, marked].T
    np.add.at(total, a.producer, out)
    mine = np.take_along_axis(total, device[:, None], axis=1)
    return arrival, total - mine


def _shares(t: Ties, here: Seconds, ops: int) -> tuple[Seconds, Seconds]:
    """Ops × devices: shares of what an op reads, and of what reads it, that are there."""
    weight = t.mean[t.tensor]
    return (
        _normal(_gather(t.reader, here[t.source] * weight[:, None], ops)),
        _normal(_gather(t.source, here[t.reader] * weight[:, None], ops)),
    )


def _smoothed(t: Ties, shares: Seconds, ops: int) -> Seconds:
    """Each op's shares become those of its neighbours and its own."""
    both = _gather(t.reader, shares[t.source], ops) + _gather(t.source, shares[t.reader], ops)
    return _normal(both + shares)


def _gather(at: Ints, values: Seconds, ops: int) -> Seconds:
    return np.stack([np.bincount(at, column, ops) for column in values.T], axis=1)


def _normal(values: Seconds) -> Seconds:
    total = values.sum(axis=1, keepdims=True)
    return np.divide(values, total, out=np.zeros_like(values), where=total > 0)


def _beside(here: Seconds) -> Seconds:
    """Shares of the ops within reach in the graph's order."""
    ops = len(here)
    sums = np.concatenate([np.zeros((1, here.shape[1])), np.cumsum(here, axis=0)])
    low = np.maximum(np.arange(ops) - _NEAR, 0)
    high = np.minimum(np.arange(ops) + _NEAR + 1, ops)
    shares: Seconds = (sums[high] - sums[low] - here) / np.maximum(high - low - 1, 1)[:, None]
    return shares


class _Work:
    """When each device works."""

    def __init__(self, a: Arrays, device: Ints, start: Seconds, end: Seconds) -> None:
        self.times, self.sums = [], []
        order = np.argsort(start, kind="stable")
        for each in range(a.devices):
            mine = order[(device[order] == each) & a.turn[order]]
            bounds = np.stack([start[mine], end[mine]], axis=1).ravel()
            taken = np.stack([np.zeros(len(mine)), end[mine] - start[mine]], axis=1).ravel()
            self.times.append(np.concatenate([[0.0], bounds]))
            self.sums.append(np.concatenate([[0.0], np.cumsum(taken)]))

    def share(self, begin: Seconds, length: Seconds) -> Seconds:
        """Ops × devices: the share of a time that each device is taken."""
        columns = [
            np.interp(begin + length, times, sums) - np.interp(begin, times, sums)
            for times, sums in zip(self.times, self.sums, strict=True)
        ]
        return np.stack(columns, axis=1) / np.maximum(length, 1e-30)[:, None]


def _late(a: Arrays, t: Ties, device: Ints, start: Seconds, end: Seconds, step: float) -> Seconds:
    """When each op may end at the latest for the step to end when it does."""
    after = np.full(a.ops, -1)
    order = np.lexsort((np.arange(a.ops), start))
    order = order[a.turn[order]]
    for each in range(a.devices):
        mine = order[device[order] == each]
        after[mine[:-1]] = mine[1:]
    sent = t.transfer[t.link[device[t.source], device[t.reader]], t.tensor].tolist()
    first = np.searchsorted(t.reader, np.arange(a.ops + 1)).tolist()
    sources, following = t.source.tolist(), after.tolist()
    late = [step] * a.ops
    lengths = (end - start).tolist()
    # Backwards in time an op's readers, and what follows it on its device, come before it.
    for op in order[::-1].tolist():
        mine_late = late[op]
        behind = following[op]
        if behind >= 0 and late[behind] - lengths[behind] < mine_late:
            mine_late = late[op] = late[behind] - lengths[behind]
        begin = mine_late - lengths[op]
        for at in range(first[op], first[op + 1]):
            limit = begin - sent[at]
            if limit < late[sources[at]]:
                late[sources[at]] = limit
    return np.array(late)


def _held(
    a: Arrays, t: Ties, device: Ints, start: Seconds, end: Seconds
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Ops: whether each waited for its device, and whether for an input from elsewhere."""
    free = np.zeros(a.ops)
    order = np.argsort(start, kind="stable")
    order = order[a.turn[order]]
    for each in range(a.devices):
        mine = order[device[order] == each]
        free[mine[1:]] = end[mine[:-1]]
    by_device = a.turn & (free > 0) & (start <= free)
    made = np.zeros(a.ops)  # the end of the last op on the same device that it reads
    same = device[t.source] == device[t.reader]
    np.maximum.at(made, t.reader[same], end[t.source[same]])
    by_input = a.turn & ~by_device & (start > made) & (start > 0)
    return by_device, by_input
