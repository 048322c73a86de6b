"""The rules of the simulator in plain code: arrays and one plan in, what happened in one step out.

This file is the specification. The kernels must agree with it bit for bit; it is written to be
read, not to be fast. All durations come ready-made from `Arrays`; here they are only added up.

1.  A device runs one op at a time and does not interrupt it; an op takes its cost on that device.
    Devices that share an issuer also share its time: starting an op takes the issuer for the
    launch overhead of that op's device, and an op that takes time waits until the issuer is free.
    Ops that take no time (views) need no issuer.
2.  The plan's order: of the ops whose inputs are already taken, always take the one of smallest
    (priority, position in the graph); without priorities it is the graph's order. What takes no
    turn (rule 6, graph inputs) counts as taken from the start. Two disciplines:
    *in order*: a device runs its ops in the plan's order and waits for the head of the line;
    *ready*: whenever idle it takes, of its ready ops, the one of smallest priority, or without
    priorities the one that became ready first; ties by position in the graph.
3.  An op is ready once every tensor it reads is on its device.
4.  A tensor is sent once to each other device that reads it. It is handed over to its channel
    when its op finishes (at time 0 for what takes no turn).
5.  A transfer occupies the channel of its link for its whole duration. A channel serves one
    transfer at a time: first handed over first served, then by (tensor, receiving device), where
    tensors are numbered by producer, then output. A tensor goes ahead of waiting streamed weights
    and interrupts one under way, which resumes, before other streamed weights, for the time it
    still had to go. Streamed weights are served by time of hand-over, then by their reader's
    place in the plan's order, then by the reader's own order of inputs.
6.  Weights (and views of nothing but weights) exist at time 0 on their device and take no turn. A
    weight's bytes are resident there, counted once; a view of a weight adds nothing. A weight on
    another device than its reader arrives as the staging of the reader's device says:
    none: like any tensor, sent once and held to its last reader there;
    B bytes: *streamed*, one copy for each reading op. Room is reserved strictly in the plan's
    order of the readers, copy by copy in the reader's order of inputs; a copy that does not fit
    holds up all behind it. A copy is handed to its channel once it has room. All of an op's room
    is given back when the op ends. B must hold the streamed weights of any one op, or the plan is
    malformed. States are resident like weights; their readers are on their device (the problem
    sees to that).
7.  Time goes in rounds. In a round all finishes and releases of one instant come first, then
    devices start ops, by index, then channels start transfers, by index. What that makes finish
    at the same instant finishes in a next round at that instant.
8.  Memory of a device: resident bytes and its staging room for the whole step; an output from its
    op's start (time 0 for a graph input) until its op, its last reader there and its last send
    have ended; a received copy from its send's start until its last reader there has ended;
    workspace while an op runs. Graph outputs live to the end of the step. An output that aliases
    an input takes no memory of its own and keeps the input's memory (the original or the received
    copy) alive as long as itself; sent elsewhere it has its full bytes; if the input is a
    streamed weight, whose room is given back, it takes its own memory. The peak is taken after
    every round's starts.
9.  Fusion is a contraction before simulation (`transforms/contraction.py`): a fused group is one op
    on one device, with the smallest priority of its members. It reads what its members read from
    outside, makes what is needed outside, and holds none of the rest; its workspace is the largest
    of its members'. It takes one launch overhead (or its longest member, if that is less), and the
    larger of its members' work, added up, and of the memory traffic that is left (`FusedParts` in
    `costs.py`); never longer than its members one by one. Kinds that may fuse stand in
    `transforms/fusible.py`; a group holds at most one heavy op; the graph after contracting all
    groups must be acyclic.
10. Constraints are checked before a plan gets here (`Plan.of`).

**No plan can deadlock.** Take the unfinished op that is first in the plan's order. The order is
topological, so all producers of its inputs have finished and its tensors have been handed over;
each channel serves finitely many transfers ahead of them, so they arrive. Readers before it in
the order have ended and given back their room, and room is reserved in that order, so nothing is
reserved but for this op and ops behind it; those behind it hold room only after this op has all
of its own. Its streamed weights fit into B, so they have room, are handed over, and arrive. Hence
the op becomes ready. On its device it is the head of the line (in order), or the device, which
never idles while an op is ready and has finitely many, comes to it (ready). So it runs, and the
argument repeats.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from placewright.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.problem_arrays import Arrays

Storage = tuple[int, int]
"""A tensor's memory on one device: (tensor, device)."""


@dataclass
class Trace:
    """What happened in one step."""

    step_time: float = 0.0
    peak: list[int] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)
    transfers: list[tuple[int, int, int, int, int, float, float]] = field(default_factory=list)
    """(tensor, source, target, channel, reader or -1, start, end), by start, then channel."""
    memory: list[tuple[int, float, int]] = field(default_factory=list)
    """(device, time, bytes in use): after a round in which they changed, by device."""


@dataclass
class _Transfer:
    """One transfer on its way: `key` orders it among those that wait for the same channel."""

    key: tuple[float, int, int]
    tensor: int
    source: int
    target: int
    reader: int
    left: float
    started: float = 0.0
    ends: float = math.inf

    @property
    def streamed(self) -> bool:
        return self.reader >= 0


def plan_order(a: Arrays, priority: Sequence[float] | None = None) -> list[int]:
    """Rule 2: the ops that take a turn, in the plan's order."""
    if priority is None:
        return [op for op in range(a.ops) if a.scheduled[op]]
    waiting = [0] * a.ops
    for op in range(a.ops):
        for tensor in inputs_of(a, op):
            waiting[op] += bool(a.scheduled[a.producer[tensor]])
    heads = [(priority[op], op) for op in range(a.ops) if a.scheduled[op] and not waiting[op]]
    heapq.heapify(heads)
    order = []
    while heads:
        _, op = heapq.heappop(heads)
        order.append(op)
        for tensor in range(a.first_tensor[op], a.first_tensor[op + 1]):
            for reader in readers_of(a, tensor):
                waiting[reader] -= 1
                if not waiting[reader]:
                    heapq.heappush(heads, (priority[reader], reader))
    return order


def run(
    a: Arrays,
    in_order: bool,
    device: Sequence[int],
    priority: Sequence[float] | None = None,
    staging: Sequence[int] | None = None,
) -> Trace:
    """One step of one plan."""
    return _Step(a, in_order, device, priority, staging).run()


class _Step:
    """The state of one step while it is simulated."""

    def __init__(
        self,
        a: Arrays,
        in_order: bool,
        device: Sequence[int],
        priority: Sequence[float] | None,
        staging: Sequence[int] | None,
    ) -> None:
        self.a, self.in_order, self.priority = a, in_order, priority
        self.device = [int(d) for d in device]
        self.staging = [-1] * a.devices if staging is None else [int(b) for b in staging]
        self.now = 0.0
        self.trace = Trace(start=[0.0] * a.ops, end=[0.0] * a.ops)
        self.order = plan_order(a, priority)
        self.rank = {op: at for at, op in enumerate(self.order)}
        # Devices
        self.line: list[deque[int]] = [deque() for _ in range(a.devices)]  # in order
        self.ready: list[list[tuple[float, int]]] = [[] for _ in range(a.devices)]  # ready
        self.running: list[int | None] = [None] * a.devices
        self.issuer_free: dict[int, float] = defaultdict(float)
        # Channels
        self.tensors: list[list[tuple[tuple[float, int, int], _Transfer]]] = [
            [] for _ in range(a.channels)
        ]
        self.streams: list[list[tuple[tuple[float, int, int], _Transfer]]] = [
            [] for _ in range(a.channels)
        ]
        self.sending: list[_Transfer | None] = [None] * a.channels
        self.paused: list[_Transfer | None] = [None] * a.channels
        # Streamed weights that wait for room, and the room each op holds
        self.wanted: list[deque[tuple[int, int, int]]] = [deque() for _ in range(a.devices)]
        self.room = list(self.staging)
        self.held: dict[int, int] = defaultdict(int)
        # Tensors still to come, and memory
        self.missing = [0] * a.ops
        self.here: dict[Storage, list[int]] = defaultdict(list)  # readers of a tensor on a device
        self.uses: dict[Storage, int] = {}  # what still keeps a tensor's memory alive
        self.parent: dict[Storage, Storage | None] = {}  # the memory that an aliasing output is
        self.used = [0] * a.devices
        self.peak = [0] * a.devices
        self.shown = [-1] * a.devices
        self._lay_out()

    # -- before the step ---------------------------------------------------------------------

    def _lay_out(self) -> None:
        a = self.a
        for op in range(a.ops):
            self.used[self.device[op]] += int(a.resident[op])
        for place, room in enumerate(self.staging):
            self.used[place] += max(room, 0)
        for op in self.order:
            place = self.device[op]
            self.line[place].append(op)
            need = 0
            for at, tensor in enumerate(inputs_of(a, op)):
                self.missing[op] += 1
                if self._streams(tensor, place):
                    self.wanted[place].append((op, at, tensor))
                    need += int(a.sizes[tensor])
                else:
                    self.here[tensor, place].append(op)
            if need > max(self.staging[place], 0):
                raise PlanError(
                    f"op {op} streams {need} bytes of weights into a staging room of "
                    f"{self.staging[place]} on device {place}: the room must hold all of them"
                )
        for tensor, place in sorted(self.here):
            self._count_uses(tensor, place)
        for tensor in range(len(a.sizes)):
            self._count_uses(tensor, self.device[a.producer[tensor]])
        for tensor in range(len(a.sizes)):
            place = self.device[a.producer[tensor]]
            if (parent := self.parent[tensor, place]) is not None:
                self.uses[parent] += 1

    def _streams(self, tensor: int, place: int) -> bool:
        """Whether readers of this tensor on this device get copies of their own."""
        source = self.a.producer[tensor]
        return (
            bool(self.a.is_weight[source])
            and self.device[source] != place
            and self.staging[place] >= 0
        )

    def _count_uses(self, tensor: int, place: int) -> None:
        a = self.a
        source = int(a.producer[tensor])
        uses = len(self.here.get((tensor, place), ()))
        self.parent[tensor, place] = None
        if self.device[source] == place:
            uses += sum(
                1
                for target in range(a.devices)
                if target != place and (tensor, target) in self.here
            )
            uses += int(a.is_output[tensor])
            uses += int(a.scheduled[source])  # its own op, until that ends
            viewed = int(a.alias[tensor])
            if viewed >= 0 and a.scheduled[source] and not self._streams(viewed, place):
                self.parent[tensor, place] = (viewed, place)
        self.uses[tensor, place] = uses

    # -- the step ----------------------------------------------------------------------------

    def run(self) -> Trace:
        self._begin()
        while True:
            self._start()
            self._look()
            if not self._advance():
                break
            self._finish()
        self.trace.step_time = max((self.trace.end[op] for op in self.order), default=0.0)
        self.trace.peak = self.peak
        self.trace.transfers.sort(key=lambda row: (row[5], row[3]))
        return self.trace

    def _begin(self) -> None:
        """What exists before the step is handed over or simply there."""
        a = self.a
        for op in self.order:
            if not self.missing[op]:
                self._becomes_ready(op)
        for op in range(a.ops):
            if a.scheduled[op]:
                continue
            for tensor in range(a.first_tensor[op], a.first_tensor[op + 1]):
                if not a.is_resident[op] and self.uses[tensor, self.device[op]]:
                    self.used[self.device[op]] += int(a.sizes[tensor])
                self._made(tensor)
        for place in range(a.devices):
            self._reserve(place)

    def _advance(self) -> bool:
        """To the next instant at which something finishes; false when nothing is under way."""
        ends = [self.trace.end[op] for op in self.running if op is not None]
        ends += [transfer.ends for transfer in self.sending if transfer is not None]
        ends += [free for free in self.issuer_free.values() if free > self.now]
        if not ends:
            return False
        self.now = min(ends)
        return True

    def _finish(self) -> None:
        for place, op in enumerate(self.running):
            if op is not None and self.trace.end[op] == self.now:
                self.running[place] = None
                self._end(op)
        for transfer in list(self.sending):
            if transfer is not None and transfer.ends == self.now:
                self._arrive(transfer)

    def _end(self, op: int) -> None:
        a, place = self.a, self.device[op]
        self.used[place] -= int(a.workspace[op])
        for tensor in range(a.first_tensor[op], a.first_tensor[op + 1]):
            self._made(tensor)
            self._release((tensor, place))
        for tensor in inputs_of(a, op):
            if not self._streams(tensor, place):
                self._release((tensor, place))
        if self.held[op]:
            self.room[place] += self.held[op]
            self._reserve(place)

    def _made(self, tensor: int) -> None:
        """Rules 3 and 4: local readers have it, other devices are sent it."""
        a = self.a
        source = self.device[a.producer[tensor]]
        for target in range(a.devices):
            if (tensor, target) not in self.here:
                continue
            if target == source:
                self._has(tensor, target)
            else:
                self._hand_over(
                    _Transfer((self.now, tensor, target), tensor, source, target, -1, 0.0)
                )

    def _arrive(self, transfer: _Transfer) -> None:
        channel = int(self.a.channel[transfer.source, transfer.target])
        self._note(transfer)
        self.sending[channel] = None
        if transfer.streamed:
            self._one_less(transfer.reader)
        else:
            self._has(transfer.tensor, transfer.target)
            self._release((transfer.tensor, transfer.source))

    def _start(self) -> None:
        for place in range(self.a.devices):
            self._start_op(place)
        for channel in range(self.a.channels):
            self._start_transfer(channel)

    def _start_op(self, place: int) -> None:
        a = self.a
        if self.running[place] is not None:
            return
        op = self._next(place)
        if op is None:
            return
        takes, issuer = float(a.compute[op, place]), int(a.issuer[place])
        if issuer >= 0 and takes > 0:
            if self.issuer_free[issuer] > self.now:
                return
            self.issuer_free[issuer] = self.now + float(a.launch_overhead[place])
        if self.in_order:
            self.line[place].popleft()
        else:
            heapq.heappop(self.ready[place])
        self.running[place] = op
        self.trace.start[op], self.trace.end[op] = self.now, self.now + takes
        self.used[place] += int(a.workspace[op])
        for tensor in range(a.first_tensor[op], a.first_tensor[op + 1]):
            if self.parent[tensor, place] is None:
                self.used[place] += int(a.sizes[tensor])

    def _next(self, place: int) -> int | None:
        """Rule 2: the op that an idle device takes now, if any."""
        if self.in_order:
            line = self.line[place]
            return line[0] if line and not self.missing[line[0]] else None
        return self.ready[place][0][1] if self.ready[place] else None

    def _start_transfer(self, channel: int) -> None:
        """Rule 5."""
        current = self.sending[channel]
        if current is not None and current.streamed and self.tensors[channel]:
            self._note(current)
            current.left = current.ends - self.now
            self.paused[channel], current = current, None
        if current is None:
            if self.tensors[channel]:
                current = heapq.heappop(self.tensors[channel])[1]
                self.used[current.target] += int(self.a.sizes[current.tensor])
            elif self.paused[channel] is not None:
                current, self.paused[channel] = self.paused[channel], None
            elif self.streams[channel]:
                current = heapq.heappop(self.streams[channel])[1]
            if current is not None:
                current.started, current.ends = self.now, self.now + current.left
        self.sending[channel] = current

    def _hand_over(self, transfer: _Transfer) -> None:
        a = self.a
        link = a.link_class[transfer.source, transfer.target]
        transfer.left = float(a.transfer[link, transfer.tensor])
        channel = a.channel[transfer.source, transfer.target]
        waiting = self.streams if transfer.streamed else self.tensors
        heapq.heappush(waiting[channel], (transfer.key, transfer))

    def _reserve(self, place: int) -> None:
        """Rule 6: room in the plan's order, up to the first copy that does not fit."""
        a, wanted = self.a, self.wanted[place]
        while wanted and a.sizes[wanted[0][2]] <= self.room[place]:
            op, at, tensor = wanted.popleft()
            self.room[place] -= int(a.sizes[tensor])
            self.held[op] += int(a.sizes[tensor])
            source = self.device[a.producer[tensor]]
            self._hand_over(
                _Transfer((self.now, self.rank[op], at), tensor, source, place, op, 0.0)
            )

    def _has(self, tensor: int, place: int) -> None:
        for op in self.here[tensor, place]:
            self._one_less(op)

    def _one_less(self, op: int) -> None:
        self.missing[op] -= 1
        if not self.missing[op]:
            self._becomes_ready(op)

    def _becomes_ready(self, op: int) -> None:
        key = self.now if self.priority is None else float(self.priority[op])
        heapq.heappush(self.ready[self.device[op]], (key, op))

    # -- memory and records ------------------------------------------------------------------

    def _release(self, storage: Storage) -> None:
        """One use less; the last one frees the memory, or lets go of what it is an alias of."""
        self.uses[storage] -= 1
        if self.uses[storage]:
            return
        tensor, place = storage
        parent = self.parent[storage]
        if parent is not None:
            self._release(parent)
        elif not (
            self.a.is_resident[self.a.producer[tensor]]
            and self.device[self.a.producer[tensor]] == place
        ):
            self.used[place] -= int(self.a.sizes[tensor])

    def _look(self) -> None:
        for place, used in enumerate(self.used):
            self.peak[place] = max(self.peak[place], used)
            if used != self.shown[place]:
                self.shown[place] = used
                self.trace.memory.append((place, self.now, used))

    def _note(self, transfer: _Transfer) -> None:
        if transfer.streamed and transfer.started == self.now:
            return  # interrupted before it moved, or nothing to move
        channel = int(self.a.channel[transfer.source, transfer.target])
        self.trace.transfers.append(
            (
                transfer.tensor,
                transfer.source,
                transfer.target,
                channel,
                transfer.reader,
                transfer.started,
                self.now,
            )
        )


def inputs_of(a: Arrays, op: int) -> list[int]:
    return [int(tensor) for tensor in a.inputs[a.first_input[op] : a.first_input[op + 1]]]


def readers_of(a: Arrays, tensor: int) -> list[int]:
    return [int(op) for op in a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]]]
