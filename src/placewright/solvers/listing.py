"""List scheduling: ops in one by one with their devices, estimated times and bytes out.

HEFT, CPoP, m-ETF and m-SCT share this arithmetic. It is an estimate: the simulator has the last
word.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.arrays import Arrays
    from placewright.problem import Problem
    from placewright.solvers.search import Search

Seconds = NDArray[np.float64]
Flags = NDArray[np.bool_]
Bytes = NDArray[np.int64]

_TRIES = 4  # to make a schedule fit whose estimate of memory was too low


class Listing:
    """A schedule under construction.

    Ops must be added in a topological order. An op fixes the device of its whole unit; a weight
    that has no device yet goes with the first op added that reads it.

    Args:
        contended: Whether transfers wait for their channel (as in the simulator) or not (as in the
            papers on list scheduling).
        kept_back: Bytes of each device's capacity to leave alone.
    """

    def __init__(
        self, problem: Problem, contended: bool = True, kept_back: Bytes | None = None
    ) -> None:
        a = problem.arrays
        self.a, self.contended = a, contended
        self.device = np.full(a.ops, -1, dtype=np.int32)
        self.start, self.end = np.zeros(a.ops), np.zeros(a.ops)
        self.free = np.zeros(a.devices)  # when each device has done all it was given
        self.ledger = Ledger(a, a.capacity if kept_back is None else a.capacity - kept_back)
        self._members = _members(a.unit)
        # Row -1 is a device's way to itself: no time, and a channel that is always free.
        self._seconds = np.vstack([a.transfer, np.zeros((1, len(a.sizes)))])
        self._channel_free = np.zeros(a.channels + 1)
        self._arrival = np.full((len(a.sizes), a.devices), np.inf)  # of what is sent already
        self._gaps: list[list[tuple[float, float]]] = [[(0.0, np.inf)] for _ in range(a.devices)]
        for unit, members in enumerate(self._members):
            if a.allowed[members[0]].sum() == 1:  # such as graph inputs, which are on the host
                self._settle(unit, int(a.allowed[members[0]].argmax()))

    @property
    def step_time(self) -> float:
        return float(self.end.max())

    def allowed(self, op: int) -> Flags:
        """The devices that this op may still be put on."""
        legal: Flags = self.a.allowed[op]
        placed = int(self.device[op])
        return legal if placed < 0 else np.arange(len(legal)) == placed

    def ready(self, op: int) -> Seconds:
        """When everything this op reads could be on each device."""
        tensors = self._placed_inputs(op)
        ready: Seconds = self._arrivals(tensors).max(axis=0, initial=0.0)
        return ready

    def choices(self, op: int) -> Flags:
        """The allowed devices with memory for this op; if none has, where least is lacking."""
        tensors = self._placed_inputs(op)
        missing = np.isinf(self._arrival[tensors])
        missing[np.arange(len(tensors)), self.device[self.a.producer[tensors]]] = False
        spare = self.ledger.spare(op, self._unplaced(op)) - self.a.sizes[tensors] @ missing
        spare = np.where(self.allowed(op), spare, np.iinfo(np.int64).min)
        return np.asarray(spare >= min(0, spare.max()))

    def add(self, op: int, device: int, insert: bool = False) -> None:
        """Put an op on a device: after all that is there, or in the first gap that holds it."""
        a = self.a
        for unit in self._unplaced(op):
            legal = a.allowed[self._members[unit][0]]
            self._settle(unit, device if legal[device] else int(legal.argmax()))
        begin, seconds = self._send(op, device), float(a.compute[op, device])
        begin = (
            self.slot(device, begin, seconds) if insert else max(begin, float(self.free[device]))
        )
        self.start[op], self.end[op] = begin, begin + seconds
        self.free[device] = max(self.free[device], begin + seconds)
        if insert and seconds > 0:
            self._fill(device, begin, begin + seconds)
        self.ledger.ran(op, device)

    def slot(self, device: int, ready: float, seconds: float) -> float:
        """The earliest start on a device for an op of this length: in a gap, or last."""
        gaps = self._gaps[device]
        at = max(0, bisect_right(gaps, (ready, np.inf)) - 1)
        while max(ready, gaps[at][0]) + seconds > gaps[at][1]:
            at += 1
        return max(ready, gaps[at][0])

    def first_to_finish(self, op: int, choices: Flags) -> int:
        """Of these devices the one on which this op would end first, in a gap or last."""
        ready, best, finish = self.ready(op), -1, np.inf
        for device in np.flatnonzero(choices).tolist():
            seconds = self.a.compute[op, device]
            end = self.slot(device, ready[device], seconds) + seconds
            if end < finish:
                best, finish = device, end
        return best

    def _fill(self, device: int, start: float, end: float) -> None:
        gaps = self._gaps[device]
        at = bisect_right(gaps, (start, np.inf)) - 1
        begin, until = gaps.pop(at)
        gaps[at:at] = [gap for gap in ((begin, start), (end, until)) if gap[0] < gap[1]]

    def placement(self, problem: Problem) -> NDArray[np.int32]:
        """The devices of all ops; what nothing added reads goes where the problem settles it."""
        rest = problem.settle(np.maximum(self.device, 0))
        return np.where(self.device < 0, rest, self.device)

    def _placed_inputs(self, op: int) -> NDArray[np.int32]:
        tensors = self.a.inputs[self.a.first_input[op] : self.a.first_input[op + 1]]
        return tensors[self.device[self.a.producer[tensors]] >= 0]

    def _unplaced(self, op: int) -> list[int]:
        """The units that get a device with this op: its own, and those of weights it reads."""
        a = self.a
        tensors = a.inputs[a.first_input[op] : a.first_input[op + 1]]
        ops = [op, *a.producer[tensors].tolist()]
        return list(dict.fromkeys(int(a.unit[other]) for other in ops if self.device[other] < 0))

    def _settle(self, unit: int, device: int) -> None:
        self.device[self._members[unit]] = device
        self.ledger.settle(self._members[unit], device)

    def _arrivals(self, tensors: NDArray[np.int32]) -> Seconds:
        """Tensors × devices: when each is there, or could be if it were sent now."""
        a = self.a
        sources = a.producer[tensors]
        places = self.device[sources]
        begin = self.end[sources][:, None]
        if self.contended:
            begin = np.maximum(begin, self._channel_free[a.channel[places]])
        fresh = begin + self._seconds[a.link_class[places], tensors[:, None]]
        arrivals: Seconds = np.minimum(self._arrival[tensors], fresh)
        return arrivals

    def _send(self, op: int, device: int) -> float:
        """Send an op what it reads from elsewhere; when the last of it is there."""
        a, last = self.a, 0.0
        for tensor in self._placed_inputs(op).tolist():
            source = a.producer[tensor]
            place = self.device[source]
            if self._arrival[tensor, device] == np.inf:
                begin, channel = self.end[source], a.channel[place, device]
                if self.contended:
                    begin = max(begin, self._channel_free[channel])
                arrival = begin + self._seconds[a.link_class[place, device], tensor]
                self._arrival[tensor, device] = arrival
                if place != device:
                    self._channel_free[channel] = arrival
                    self.ledger.hold(tensor, device)
            last = max(last, self._arrival[tensor, device])
        return last


class Ledger:
    """Bytes in use on each device, as ops are added.

    Outputs and copies are held until every reader has been added: a little longer than rule 8 says,
    since a copy could go once its last reader on that device has ended.
    """

    def __init__(self, a: Arrays, capacity: Bytes) -> None:
        self.a, self.capacity = a, capacity
        self.used = np.zeros(a.devices, dtype=np.int64)
        self._unit_bytes = np.bincount(a.unit, weights=a.resident, minlength=int(a.unit.max()) + 1)
        self._family = families(a)
        self._held = np.zeros((len(a.sizes), a.devices), dtype=np.int64)
        readers = np.diff(a.first_reader)
        # Outputs of the graph have one reader more, which never comes.
        self._left = np.bincount(self._family, weights=readers + a.kept, minlength=len(a.sizes))

    def spare(self, op: int, units: list[int]) -> NDArray[np.int64]:
        """Bytes each device would have left with this op and these units, or lack if negative."""
        a = self.a
        outputs = slice(a.first_tensor[op], a.first_tensor[op + 1])
        need = a.workspace[op] + a.sizes[outputs][a.alias[outputs] < 0].sum()
        need += int(sum(self._unit_bytes[unit] for unit in units))
        spare: NDArray[np.int64] = self.capacity - self.used - need
        return spare

    def settle(self, members: NDArray[np.int64], device: int) -> None:
        """A unit has its device: its resident bytes are there, and graph inputs."""
        a = self.a
        self.used[device] += int(a.resident[members].sum())
        for op in members[~a.turn[members] & ~a.stored[members]]:
            for tensor in range(a.first_tensor[op], a.first_tensor[op + 1]):
                self.hold(tensor, device)

    def hold(self, tensor: int, device: int) -> None:
        size = self.a.sizes[tensor]
        self._held[self._family[tensor], device] += size
        self.used[device] += size

    def ran(self, op: int, device: int) -> None:
        """An op has been added: its outputs are held, what it was the last to read is let go."""
        a = self.a
        for tensor in range(a.first_tensor[op], a.first_tensor[op + 1]):
            if a.alias[tensor] < 0:
                self.hold(tensor, device)
            self._let_go(self._family[tensor], 0)
        for tensor in a.inputs[a.first_input[op] : a.first_input[op + 1]]:
            self._let_go(self._family[tensor], 1)

    def _let_go(self, family: int, readers: int) -> None:
        self._left[family] -= readers
        if not self._left[family]:
            self.used -= self._held[family]
            self._held[family] = 0


def upward_ranks(problem: Problem) -> Seconds:
    """Each op's mean way to the end of the graph in seconds (Topcuoglu et al. 2002, Eq. 8)."""
    a = problem.arrays
    seconds, transfer = mean_seconds(problem), mean_transfer(problem)
    first, readers = a.first_reader.tolist(), a.readers.tolist()
    first_tensor = a.first_tensor.tolist()
    ranks = [0.0] * a.ops
    for op in range(a.ops - 1, -1, -1):
        longest = 0.0
        for tensor in range(first_tensor[op], first_tensor[op + 1]):
            for reader in readers[first[tensor] : first[tensor + 1]]:
                longest = max(longest, transfer[tensor] + ranks[reader])
        ranks[op] = seconds[op] + longest
    return np.array(ranks)


def mean_seconds(problem: Problem) -> list[float]:
    """Each op's seconds, the mean over the devices it may be on; nothing for what takes no turn."""
    a = problem.arrays
    mean = np.where(a.allowed, a.compute, 0.0).sum(axis=1) / a.allowed.sum(axis=1)
    return list(np.where(a.turn, mean, 0.0).tolist())


def mean_transfer(problem: Problem) -> list[float]:
    """Each tensor's seconds over a link, the mean over all ordered pairs of devices."""
    a = problem.arrays
    classes = a.link_class[a.link_class >= 0]
    if not len(classes):
        return [0.0] * len(a.sizes)
    share = np.bincount(classes, minlength=len(a.transfer)) / len(classes)
    return list((share @ a.transfer).tolist())


def judge_schedule(search: Search, schedule: Callable[[Bytes], Listing]) -> None:
    """Judge a schedule's placement, with its own order and with none.

    Args:
        schedule: Makes one that keeps these bytes of each device back. The ledger only estimates
            memory: where the simulator finds too much, we try again with that much kept back.
    """
    a = search.problem.arrays
    kept_back = np.zeros(a.devices, dtype=np.int64)
    for _ in range(_TRIES):
        listing = schedule(kept_back)
        placement = listing.placement(search.problem)
        verdict = search.judge(
            np.stack([placement, placement]), np.stack([listing.start, np.arange(a.ops)])
        )
        if search.over:
            return
        over = np.maximum(verdict.peak[verdict.best()] - a.capacity, 0)
        if not over.any():
            return
        # Weights are large steps: keep back a share worth having, and more each time.
        kept_back = 2 * kept_back + np.where(over, np.maximum(over, a.capacity // 64), 0)


def _members(unit: NDArray[np.int32]) -> list[NDArray[np.int64]]:
    order = np.argsort(unit, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(unit[order])) + 1)


def families(a: Arrays) -> NDArray[np.int64]:
    """For each tensor the one whose memory it is in the end."""
    family = np.where(a.alias >= 0, a.alias, np.arange(len(a.sizes))).astype(np.int64)
    while (further := family[family]).tobytes() != family.tobytes():
        family = further
    return family
