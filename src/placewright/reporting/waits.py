"""A timeline in, what each op and transfer waited for out, and the critical path."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from placewright.simulator.critical_path import Causes

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.problem import Problem
    from placewright.simulator.critical_path import Held, Item
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
Cause = tuple["Item", "Held"]
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


_KINDS: dict[tuple[str, str], int] = {
    ("op", "device"): TURN,
    ("op", "input"): INPUT,
    ("row", "input"): ARRIVAL,
    ("row", "channel"): WIRE,
    ("op", "room"): ROOM,
    ("issue", "issuer"): ISSUER,
}


def find_waits(problem: Problem, timeline: Timeline) -> Waits:
    """What every op and transfer of a timeline without fused groups waited for."""
    causes = Causes(problem, timeline)

    def wait(start: float, before: Callable[[int], Cause | None], at: int) -> Wait:
        found = before(at) if start > 0 else None
        if found is None:
            return NOTHING, -1
        (what, which), held = found
        return _KINDS[what, held], which

    turn, moved = problem.arrays.turn.tolist(), timeline.transfers
    starts = timeline.start.tolist()
    ops = [
        wait(start, causes.before_op, op) if turn[op] else (NOTHING, -1)
        for op, start in enumerate(starts)
    ]
    sends = [wait(sent, causes.before_row, row) for row, sent in enumerate(moved.start.tolist())]
    last = causes.last()
    return Waits(ops, sends, -1 if last is None else last[1])


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
