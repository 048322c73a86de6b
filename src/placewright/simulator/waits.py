"""What each op and transfer of a timeline waited for, and the critical path."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from placewright.simulator.critical_path import Causes

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.problem import Problem
    from placewright.simulator.critical_path import Activity, WaitReason
    from placewright.timeline import Timeline

NOTHING = 0  # it starts with the step
DEVICE_BUSY = 1  # the op before it on its device had to end
INPUT = 2  # an op on its own device had to end, whose tensor it reads or sends
ARRIVAL = 3  # a transfer had to arrive
CHANNEL_BUSY = 4  # another transfer had to leave the channel
STAGING = 5  # an op had to end and free its staging buffer
ISSUER = 6  # an op of another device had to be launched by the thread that both share

OP_WAITS = (DEVICE_BUSY, INPUT, STAGING, ISSUER)
"""The waits that are for an op; the others are for a transfer."""

Wait = tuple[int, int]
"""What kind of wait, and the op or the row of the transfers that was waited for (-1: nothing)."""
Cause = tuple["Activity", "WaitReason"]
PathItem = tuple[str, int]
"""`("op", position)` or `("send", row of the transfers)`."""


@dataclass(frozen=True, eq=False)
class Waits:
    """What every start waited for last.

    Args:
        ops: For each op, what it waited for; nothing for unscheduled ops.
        sends: For each row of the timeline's transfers.
        last_op: The op that ends last, -1 where no op is scheduled.
    """

    ops: list[Wait]
    sends: list[Wait]
    last_op: int

    @cached_property
    def path(self) -> list[PathItem]:
        """The critical path: ops and transfers, each begun when the one before it ended.

        As long as none of them gets shorter, the step does not. It ends with the op that ends last.
        """
        path: list[PathItem] = []
        visited: set[PathItem] = set()
        item: PathItem | None = None if self.last_op < 0 else ("op", self.last_op)
        while item is not None and item not in visited:
            path.append(item)
            visited.add(item)
            kind, target = (self.ops if item[0] == "op" else self.sends)[item[1]]
            item = None if kind == NOTHING else ("op" if kind in OP_WAITS else "send", target)
        return path[::-1]


_WAIT_KINDS: dict[tuple[str, str], int] = {
    ("op", "device"): DEVICE_BUSY,
    ("op", "input"): INPUT,
    ("row", "input"): ARRIVAL,
    ("row", "channel"): CHANNEL_BUSY,
    ("op", "staging"): STAGING,
    ("issue", "issuer"): ISSUER,
}


def find_waits(problem: Problem, timeline: Timeline) -> Waits:
    """What every op and transfer of a timeline without fused groups waited for."""
    causes = Causes(problem, timeline)

    def wait(start: float, cause_of: Callable[[int], Cause | None], index: int) -> Wait:
        cause = cause_of(index) if start > 0 else None
        if cause is None:
            return NOTHING, -1
        (item_kind, target), reason = cause
        return _WAIT_KINDS[item_kind, reason], target

    scheduled, transfers = problem.arrays.scheduled.tolist(), timeline.transfers
    starts = timeline.start.tolist()
    ops = [
        wait(start, causes.cause_of_op, op) if scheduled[op] else (NOTHING, -1)
        for op, start in enumerate(starts)
    ]
    sends = [
        wait(send_start, causes.cause_of_transfer, row)
        for row, send_start in enumerate(transfers.start.tolist())
    ]
    last_item = causes.last()
    return Waits(ops, sends, -1 if last_item is None else last_item[1])
