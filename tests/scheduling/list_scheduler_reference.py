"""List scheduling in plain Python: what the compiled one is held to, op by op."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np


class ListSchedule:
    """A schedule under construction.

    Ops must be added in a topological order. An op fixes the device of its whole unit; a weight
    that has no device yet goes with the first op added that reads it.

    Args:
        contended: Whether transfers wait for their channel (as in the simulator) or not (as in the
            papers on list scheduling).
        memory_margin: Bytes of each device's capacity to leave alone.
    """

    def __init__(self, problem, contended=True, memory_margin=None):
        a = problem.arrays
        self.a, self.contended = a, contended
        self.device = np.full(a.ops, -1, dtype=np.int32)
        self.start, self.end = np.zeros(a.ops), np.zeros(a.ops)
        self.free = np.zeros(a.devices)  # when each device has done all it was given
        self.ledger = Ledger(a, a.capacity if memory_margin is None else a.capacity - memory_margin)
        self._members = _members(a.unit)
        # Row -1 is a device's way to itself: no time, and a channel that is always free.
        self._seconds = np.vstack([a.transfer, np.zeros((1, len(a.sizes)))])
        self._channel_free = np.zeros(a.channels + 1)
        self._arrival = np.full((len(a.sizes), a.devices), np.inf)  # of what is sent already
        self._gaps = [[(0.0, np.inf)] for _ in range(a.devices)]
        for unit, members in enumerate(self._members):
            if a.allowed[members[0]].sum() == 1:  # such as graph inputs, which are on the host
                self._settle(unit, int(a.allowed[members[0]].argmax()))

    @property
    def step_time(self):
        return float(self.end.max())

    def allowed(self, op):
        """The devices that this op may still be put on."""
        legal = self.a.allowed[op]
        placed = int(self.device[op])
        return legal if placed < 0 else np.arange(len(legal)) == placed

    def ready(self, op):
        """When everything this op reads could be on each device."""
        tensors = self._placed_inputs(op)
        return self._arrivals(tensors).max(axis=0, initial=0.0)

    def choices(self, op):
        """The allowed devices with memory for this op; if none has, where least is lacking."""
        tensors = self._placed_inputs(op)
        missing = np.isinf(self._arrival[tensors])
        missing[np.arange(len(tensors)), self.device[self.a.producer[tensors]]] = False
        spare = self.ledger.spare(op, self._unplaced(op)) - self.a.sizes[tensors] @ missing
        spare = np.where(self.allowed(op), spare, np.iinfo(np.int64).min)
        return np.asarray(spare >= min(0, spare.max()))

    def add(self, op, device, insert=False):
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

    def earliest_first(self, late, rank, favourite=None):
        a = self.a
        ready = _Ready(a, late, rank)
        waiting = np.bincount(
            _reader_of(a.first_input)[a.scheduled[a.producer[a.inputs]]], minlength=a.ops
        )
        for op in np.flatnonzero(a.scheduled & (waiting == 0)).tolist():
            ready.put(op, self)
        kept_for = np.full(a.devices, -1)  # the favourite child that each device waits for
        while ready.count:
            op, device = ready.pick(self, kept_for)
            self.add(op, device)
            ready.remove(op)
            kept_for[kept_for == op] = -1
            if favourite is not None:
                child = favourite[op]
                kept_for[device] = child if child >= 0 and self.allowed(child)[device] else -1
            for tensor in range(a.first_tensor[op], a.first_tensor[op + 1]):
                for reader in a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]]:
                    waiting[reader] -= 1
                    if not waiting[reader]:
                        ready.put(int(reader), self)

    def place(self, op, preferred=-1):
        choices = self.choices(op)
        free = preferred >= 0 and choices[preferred]
        self.add(op, preferred if free else self.first_to_finish(op, choices), insert=True)

    @property
    def used(self):
        return self.ledger.used

    def slot(self, device, ready, seconds):
        """The earliest start on a device for an op of this length: in a gap, or last."""
        gaps = self._gaps[device]
        at = max(0, bisect_right(gaps, (ready, np.inf)) - 1)
        while max(ready, gaps[at][0]) + seconds > gaps[at][1]:
            at += 1
        return max(ready, gaps[at][0])

    def first_to_finish(self, op, choices):
        """Of these devices the one on which this op would end first, in a gap or last."""
        ready, best, finish = self.ready(op), -1, np.inf
        for device in np.flatnonzero(choices).tolist():
            seconds = self.a.compute[op, device]
            end = self.slot(device, ready[device], seconds) + seconds
            if end < finish:
                best, finish = device, end
        return best

    def _fill(self, device, start, end):
        gaps = self._gaps[device]
        at = bisect_right(gaps, (start, np.inf)) - 1
        begin, until = gaps.pop(at)
        gaps[at:at] = [gap for gap in ((begin, start), (end, until)) if gap[0] < gap[1]]

    def placement(self, problem):
        """The devices of all ops; what nothing added reads goes where the problem settles it."""
        rest = problem.legalize(np.maximum(self.device, 0))
        return np.where(self.device < 0, rest, self.device)

    def _placed_inputs(self, op):
        tensors = self.a.inputs[self.a.first_input[op] : self.a.first_input[op + 1]]
        return tensors[self.device[self.a.producer[tensors]] >= 0]

    def _unplaced(self, op):
        """The units that get a device with this op: its own, and those of weights it reads."""
        a = self.a
        tensors = a.inputs[a.first_input[op] : a.first_input[op + 1]]
        ops = [op, *a.producer[tensors].tolist()]
        return list(dict.fromkeys(int(a.unit[other]) for other in ops if self.device[other] < 0))

    def _settle(self, unit, device):
        self.device[self._members[unit]] = device
        self.ledger.settle(self._members[unit], device)

    def _arrivals(self, tensors):
        """Tensors × devices: when each is there, or could be if it were sent now."""
        a = self.a
        sources = a.producer[tensors]
        places = self.device[sources]
        begin = self.end[sources][:, None]
        if self.contended:
            begin = np.maximum(begin, self._channel_free[a.channel[places]])
        fresh = begin + self._seconds[a.link_class[places], tensors[:, None]]
        return np.minimum(self._arrival[tensors], fresh)

    def _send(self, op, device):
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

    def __init__(self, a, capacity):
        self.a, self.capacity = a, capacity
        self.used = np.zeros(a.devices, dtype=np.int64)
        self._unit_bytes = np.bincount(a.unit, weights=a.resident, minlength=int(a.unit.max()) + 1)
        self._family = a.storage_root
        self._held = np.zeros((len(a.sizes), a.devices), dtype=np.int64)
        readers = np.diff(a.first_reader)
        # Outputs of the graph have one reader more, which never comes.
        self._left = np.bincount(
            self._family, weights=readers + a.is_output, minlength=len(a.sizes)
        )

    def spare(self, op, units):
        """Bytes each device would have left with this op and these units, or lack if negative."""
        a = self.a
        outputs = slice(a.first_tensor[op], a.first_tensor[op + 1])
        need = a.workspace[op] + a.sizes[outputs][a.alias[outputs] < 0].sum()
        need += int(sum(self._unit_bytes[unit] for unit in units))
        return self.capacity - self.used - need

    def settle(self, members, device):
        """A unit has its device: its resident bytes are there, and graph inputs."""
        a = self.a
        self.used[device] += int(a.resident[members].sum())
        for op in members[~a.scheduled[members] & ~a.is_resident[members]]:
            for tensor in range(a.first_tensor[op], a.first_tensor[op + 1]):
                self.hold(tensor, device)

    def hold(self, tensor, device):
        size = self.a.sizes[tensor]
        self._held[self._family[tensor], device] += size
        self.used[device] += size

    def ran(self, op, device):
        """An op has been added: its outputs are held, what it was the last to read is let go."""
        a = self.a
        for tensor in range(a.first_tensor[op], a.first_tensor[op + 1]):
            if a.alias[tensor] < 0:
                self.hold(tensor, device)
            self._let_go(self._family[tensor], 0)
        for tensor in a.inputs[a.first_input[op] : a.first_input[op + 1]]:
            self._let_go(self._family[tensor], 1)

    def _let_go(self, family, readers):
        self._left[family] -= readers
        if not self._left[family]:
            self.used -= self._held[family]
            self._held[family] = 0


def _members(unit):
    order = np.argsort(unit, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(unit[order])) + 1)


class _Ready:
    """The ready ops, in rows of arrays that are kept gapless, with when each could start where."""

    def __init__(self, a, late, rank):
        self.late, self.turn = late, rank
        self.count = 0
        self.row = np.full(a.ops, -1)
        self.op = np.empty(a.ops, dtype=np.int64)
        self.start = np.empty((a.ops, a.devices))  # when its inputs can be there; inf: never
        self.anywhere = np.empty(a.ops)  # when they can be on any of its devices
        self.lost = np.empty((a.ops, a.devices))

    def put(self, op, listing):
        self.row[op], self.op[self.count] = self.count, op
        self.lost[self.count] = self.late[op]
        self.count += 1
        self._look(op, listing)

    def remove(self, op):
        """The last row moves into the gap."""
        self.count -= 1
        gap, last = self.row[op], self.count
        for column in (self.op, self.start, self.anywhere, self.lost):
            column[gap] = column[last]
        self.row[self.op[gap]], self.row[op] = gap, -1

    def pick(self, listing, kept_for):
        """The pair that starts first.

        What a row says can only be too early, since channels and memory fill up; so the row of the
        pair that seems best is looked at again until it holds.
        """
        while True:
            op, device = self._best(listing.free, kept_for)
            seen = self.start[self.row[op], device]
            self._look(op, listing)
            if self.start[self.row[op], device] <= seen:
                return op, device

    def _look(self, op, listing):
        row = self.row[op]
        self.start[row] = np.where(listing.choices(op), listing.ready(op), np.inf)
        starts = self.start[row]
        self.anywhere[row] = starts[starts < np.inf].max()

    def _best(self, free, kept_for):
        start = np.maximum(self.start[: self.count], free)
        for device in np.flatnonzero(kept_for >= 0).tolist():
            row = self.row[kept_for[device]]
            own = start[row, device]
            start[:, device] = np.maximum(start[:, device], self.anywhere[: self.count])
            if row >= 0:
                start[row, device] = own
        key = (start + self.lost[: self.count]).ravel()
        ties = np.flatnonzero(key == key.min())
        devices = len(free)
        pair = ties[self.turn[self.op[ties // devices]].argmin()] if len(ties) > 1 else ties[0]
        return int(self.op[pair // devices]), int(pair % devices)


def _reader_of(first_input):
    return np.repeat(np.arange(len(first_input) - 1), np.diff(first_input))
