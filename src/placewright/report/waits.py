"""A timeline in, what each op and transfer waited for out, and the critical path.

The simulator starts a thing at the very instant at which the last of what it waits for has ended,
so the cause of a start is found by comparing times, which are equal to the last bit.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from placewright.simulator.reference import inputs_of, plan_order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placewright.problem import Problem
    from placewright.timeline import Timeline

NOTHING = 0  # it starts with the step
TURN = 1  # the op before it on its device had to end
INPUT = 2  # an op on its own device had to end, whose tensor it reads or sends
ARRIVAL = 3  # a transfer had to arrive
WIRE = 4  # another transfer had to leave the channel
ROOM = 5  # an op had to end and give back its staging room
ISSUER = 6  # an op of another device had to be launched by the thread that both share

OF_OPS = (TURN, INPUT, ROOM, ISSUER)
"""The waits that are for an op; the others are for a transfer."""

Wait = tuple[int, int]
"""What kind of wait, and the op or the row of the transfers that was waited for (-1: nothing)."""
Thing = tuple[str, int]
"""`("op", position)` or `("send", row of the transfers)`."""


@dataclass(frozen=True, eq=False)
class Waits:
    """What every start waited for last.

    Args:
        ops: For each op, what it waited for; nothing for those that take no turn.
        sends: For each row of the timeline's transfers.
        last: The op that ends last, -1 where no op takes a turn.
    """

    ops: list[Wait]
    sends: list[Wait]
    last: int

    @cached_property
    def path(self) -> list[Thing]:
        """The critical path: ops and transfers, each begun when the one before it ended.

        As long as none of them gets shorter, the step does not. It ends with the op that ends last.
        """
        path: list[Thing] = []
        seen: set[Thing] = set()
        thing: Thing | None = None if self.last < 0 else ("op", self.last)
        while thing is not None and thing not in seen:
            path.append(thing)
            seen.add(thing)
            kind, at = (self.ops if thing[0] == "op" else self.sends)[thing[1]]
            thing = None if kind == NOTHING else ("op" if kind in OF_OPS else "send", at)
        return path[::-1]


def find_waits(problem: Problem, timeline: Timeline) -> Waits:
    """What every op and transfer of a timeline without fused groups waited for."""
    return _Finder(problem, timeline).waits()


class _Finder:
    def __init__(self, problem: Problem, timeline: Timeline) -> None:
        self.a = problem.arrays
        self.plan = timeline.plan
        self.device = timeline.plan.device.tolist()
        self.start, self.end = timeline.start.tolist(), timeline.end.tolist()
        moved = timeline.transfers
        columns = (moved.tensor, moved.source, moved.target, moved.channel, moved.reader)
        self.sends: list[tuple[int, int, int, int, int]] = list(
            zip(*(column.tolist() for column in columns), strict=True)
        )
        self.sent, self.arrived = moved.start.tolist(), moved.end.tolist()
        priority = None if self.plan.priority is None else self.plan.priority.tolist()
        self.order = plan_order(self.a, priority)

    def waits(self) -> Waits:
        before = dict(self._before())
        launched = self._launched()
        ended = self._ended()
        arrivals = self._arrivals()
        ops: list[Wait] = [(NOTHING, -1)] * self.a.ops
        for op in self.order:
            ops[op] = self._op(op, before.get(op), arrivals, launched)
        sends = [self._send(row, ended) for row in range(len(self.sends))]
        last = max(self.order, key=lambda op: self.end[op], default=-1)
        return Waits(ops, sends, last)

    def _before(self) -> Iterator[tuple[int, int]]:
        """Each op and the op before it on its device."""
        rank = {op: at for at, op in enumerate(self.order)}
        by_time = sorted(self.order, key=lambda op: (self.start[op], self.end[op], rank[op]))
        latest: dict[int, int] = {}
        for op in by_time:
            place = self.device[op]
            if place in latest:
                yield op, latest[place]
            latest[place] = op

    def _arrivals(self) -> dict[tuple[int, int, int], int]:
        """(tensor, device, reader or -1) → the row with which it arrived."""
        found: dict[tuple[int, int, int], int] = {}
        for row, (tensor, _, target, _, reader) in enumerate(self.sends):
            key = tensor, target, reader
            if key not in found or self.arrived[row] >= self.arrived[found[key]]:
                found[key] = row
        return found

    def _launched(self) -> dict[tuple[int, float], int]:
        """(issuer, when it was free again) → the op that it launched until then."""
        issuer, launch = self.a.issuer.tolist(), self.a.launch.tolist()
        return {
            (issuer[self.device[op]], self.start[op] + launch[self.device[op]]): op
            for op in self.order
            if issuer[self.device[op]] >= 0
            and launch[self.device[op]] > 0  # else nobody has to wait for it
            and self.end[op] > self.start[op]
        }

    def _ended(self) -> dict[tuple[int, float], list[int]]:
        """(device, time) → the ops that ended there and then."""
        ended: dict[tuple[int, float], list[int]] = defaultdict(list)
        for op in self.order:
            ended[self.device[op], self.end[op]].append(op)
        return ended

    def _op(
        self,
        op: int,
        before: int | None,
        arrivals: dict[tuple[int, int, int], int],
        launched: dict[tuple[int, float], int],
    ) -> Wait:
        now, place = self.start[op], self.device[op]
        for tensor in inputs_of(self.a, op):
            row = arrivals.get((tensor, place, op), arrivals.get((tensor, place, -1)))
            if row is not None and self.arrived[row] == now:
                return ARRIVAL, row
        if before is not None and self.end[before] == now:
            return TURN, before
        for tensor in inputs_of(self.a, op):
            source = int(self.a.producer[tensor])
            here = self.device[source] == place and bool(self.a.turn[source])
            if here and self.end[source] == now:
                return INPUT, source
        issuer = int(self.a.issuer[place])
        if now > 0 and (issuer, now) in launched and launched[issuer, now] != op:
            return ISSUER, launched[issuer, now]
        for tensor in inputs_of(self.a, op):  # a streamed weight of no bytes leaves no row behind
            channel = int(self.a.channel[self.device[self.a.producer[tensor]], place])
            if now > 0 and (channel, now) in self._left:
                return WIRE, self._left[channel, now]
        return NOTHING, -1

    def _send(self, row: int, ended: dict[tuple[int, float], list[int]]) -> Wait:
        tensor, _, target, channel, reader = self.sends[row]
        now, source = self.sent[row], int(self.a.producer[tensor])
        if self.a.turn[source] and self.end[source] == now:
            return INPUT, source
        if now == 0:
            return NOTHING, -1
        if (channel, now) in self._left:
            return WIRE, self._left[channel, now]
        if reader >= 0:
            for op in ended.get((target, now), ()):
                if op in self._staged:
                    return ROOM, op
        return NOTHING, -1

    @cached_property
    def _left(self) -> dict[tuple[int, float], int]:
        """(channel, time) → the longest transfer that left it then: one of no length is no wait."""
        left: dict[tuple[int, float], int] = {}
        for row, (_, _, _, channel, _) in enumerate(self.sends):
            key = channel, self.arrived[row]
            if key not in left or self.sent[row] < self.sent[left[key]]:
                left[key] = row
        return left

    @cached_property
    def _staged(self) -> set[int]:
        """The ops that read streamed weights, and so hold room."""
        return {reader for *_, reader in self.sends if reader >= 0}


def shares(waits: Waits, timeline: Timeline) -> tuple[dict[int, float], dict[int, float]]:
    """Seconds of the critical path by device, and by channel; together they are the step time."""
    devices: dict[int, float] = defaultdict(float)
    channels: dict[int, float] = defaultdict(float)
    moved, place = timeline.transfers, timeline.plan.device
    until = 0.0  # waiting for an issuer counts as the time of the op that is to be launched
    for what, at in waits.path:
        times, lanes = (timeline, place) if what == "op" else (moved, moved.channel)
        end = max(until, float(times.end[at]))
        (devices if what == "op" else channels)[int(lanes[at])] += end - until
        until = end
    return dict(devices), dict(channels)
