"""The critical path: a problem and a timeline in, what every moment of the step went into out.

From the op that ended last we go back: what ended at the very moment this began, so that it could
not begin before? An input that arrived, the device or the channel that became free, the issuer, or
an op that gave back staging room. The rules (`reference.py`) start everything at the end of
something else, and the timeline has those moments bit for bit, so the pieces leave no gap.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from placewright.errors import PlanError
from placewright.simulator.evaluation import simulate
from placewright.simulator.reference import plan_order
from placewright.transforms import contract

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.timeline import Timeline

Kind = Literal["compute", "send", "stream", "issue"]
Held = Literal["end", "input", "device", "channel", "room", "issuer"]


@dataclass(frozen=True)
class Piece:
    """One stretch of the critical path.

    Args:
        kind: `compute`, an op that ran; `send`, a tensor under way; `stream`, a streamed weight
            under way; `issue`, an issuer that started another device's op.
        op: The op that ran, made the tensor, is the weight, or was started.
        device: Where the op ran, or where the tensor or weight went.
        source: Where the tensor or weight came from; the device itself for the others.
        channel: The channel's number, -1 for what takes none.
        held: What the next piece waited for: an `input`, the `device`, the `channel`, staging
            `room` or the `issuer`; `end` for the last one.
    """

    kind: Kind
    op: int
    device: int
    source: int
    channel: int
    held: Held
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Path:
    """Pieces from the start of the step to its end: each begins when the one before it ends.

    Args:
        names: Of the ops that pieces speak of; a fused group is called after its first member.
    """

    pieces: tuple[Piece, ...]
    names: tuple[str, ...]

    def seconds(self) -> dict[tuple[Kind, int], float]:
        """Seconds by kind and device (`compute`, `issue`) or channel, the largest first."""
        spent: dict[tuple[Kind, int], float] = defaultdict(float)
        for piece in self.pieces:
            moves = piece.kind in ("send", "stream")
            spent[piece.kind, piece.channel if moves else piece.device] += piece.seconds
        return dict(sorted(spent.items(), key=lambda item: -item[1]))

    def waits(self) -> dict[Held, float]:
        """Seconds of pieces by what the next one waited for, the largest first.

        Time held by inputs is the graph's own; the rest is lost because things share a device, a
        channel, an issuer or a staging room.
        """
        spent: dict[Held, float] = defaultdict(float)
        for piece in self.pieces:
            spent[piece.held] += piece.seconds
        return dict(sorted(spent.items(), key=lambda item: -item[1]))

    def __len__(self) -> int:
        return len(self.pieces)


def critical_path(problem: Problem, timeline: Timeline) -> Path:
    """The chain that ends with the step's last op; every moment of the step is in one piece.

    Where several things ended at one moment, an input goes before the device, and these before the
    channel, the issuer and the staging room.

    Raises:
        PlanError: The timeline is not one of this problem.
    """
    plan = timeline.plan
    if plan.fusion is not None:
        fused = contract(problem, plan)
        problem, timeline = fused.problem, simulate(fused.problem, fused.plan)
    return Causes(problem, timeline).path()


Item = tuple[Literal["op", "row", "issue"], int]
"""An op; a row of the timeline's transfers; or an op while its issuer starts it."""


class Causes:
    """A timeline without fused groups, ordered for looking up why a thing began when it did."""

    def __init__(self, problem: Problem, timeline: Timeline) -> None:
        self.problem, self.timeline, self.plan = problem, timeline, timeline.plan
        self.a = a = problem.arrays
        if len(timeline.start) != a.ops:
            raise PlanError(f"the timeline has {len(timeline.start)} ops: the graph has {a.ops}")
        self.device: list[int] = self.plan.device.tolist()
        self.rooms = [-1] * a.devices if self.plan.staging is None else self.plan.staging.tolist()
        self.start: list[float] = timeline.start.tolist()
        self.end: list[float] = timeline.end.tolist()
        self.turn: list[bool] = a.turn.tolist()
        self.weight: list[bool] = a.weight.tolist()
        self.made_by: list[int] = a.producer.tolist()
        self.first: list[int] = a.first_input.tolist()
        self.read: list[int] = a.inputs.tolist()
        ran = timeline.end > timeline.start
        self.ran = {(self.device[op], self.end[op]): op for op in np.flatnonzero(ran).tolist()}
        moved = timeline.transfers
        self.tensor: list[int] = moved.tensor.tolist()
        self.source: list[int] = moved.source.tolist()
        self.target: list[int] = moved.target.tolist()
        self.channel: list[int] = moved.channel.tolist()
        self.reader: list[int] = moved.reader.tolist()
        self.sent: list[float] = moved.start.tolist()
        self.arrived: list[float] = moved.end.tolist()
        self.wire = {
            (self.channel[row], self.arrived[row]): row
            for row in np.flatnonzero(moved.end > moved.start).tolist()
        }
        self.rows: dict[tuple[int, int, int], list[int]] = defaultdict(list)  # by start
        for row, key in enumerate(zip(self.tensor, self.target, self.reader, strict=True)):
            self.rows[key].append(row)

    def path(self) -> Path:
        pieces: list[Piece] = []
        item = self.last()
        held: Held = "end"
        while item is not None:
            piece = self._piece(item, held if pieces else "end")
            if piece.end > piece.start:
                pieces.append(piece)
            if not piece.start > 0:
                break
            item, held = self._before(item)
        names = tuple(op.name for op in self.problem.graph.ops)
        return Path(tuple(reversed(pieces)), names)

    def last(self) -> Item | None:
        """The op that ended last, None if the step took no time."""
        last = np.flatnonzero(self.a.turn & (self.timeline.end == self.timeline.step_time))
        if not self.timeline.step_time > 0:
            return None
        if not len(last):
            raise self._strange(self.timeline.step_time)
        return "op", int(last[np.argmin(self.timeline.start[last])])

    def _piece(self, item: Item, held: Held) -> Piece:
        what, at = item
        if what == "row":
            kind: Kind = "send" if self.reader[at] < 0 else "stream"
            source, target = self.source[at], self.target[at]
            op, ends = self.made_by[self.tensor[at]], (self.sent[at], self.arrived[at])
            return Piece(kind, op, target, source, self.channel[at], held, *ends)
        place, begun = self.device[at], self.start[at]
        if what == "issue":
            over = begun + float(self.a.launch[place])
            return Piece("issue", at, place, place, -1, held, begun, over)
        return Piece("compute", at, place, place, -1, held, begun, self.end[at])

    def _before(self, item: Item) -> tuple[Item, Held]:
        what, at = item
        found = self.before_row(at) if what == "row" else self.before_op(at)
        if found is None:
            raise self._strange(self.sent[at] if what == "row" else self.start[at])
        return found

    # -- ops ---------------------------------------------------------------------------------

    def before_op(self, op: int) -> tuple[Item, Held] | None:
        """What ended when this op began, and how that held it up."""
        now, place = self.start[op], self.device[op]
        arrivals = self._arrivals(op, now)
        for item in arrivals:
            if self._takes(item):
                return item, "input"
        if (place, now) in self.ran:
            return ("op", self.ran[place, now]), "device"
        if self.end[op] > now and (place, now) in self._issued:
            return ("issue", self._issued[place, now]), "issuer"
        # What takes no time has reasons of its own, which lead on.
        if arrivals:
            return arrivals[0], "input"
        ahead = self._ahead.get(op) if self.problem.discipline == "in order" else None
        if ahead is not None and self.end[ahead] == now:
            return ("op", ahead), "device"
        # A copy that took no time has no row: it waited for its channel or for room.
        for tensor in self._inputs(op):
            if self._streams(tensor, place):
                channel = int(self.a.channel[self.device[self.made_by[tensor]], place])
                if (channel, now) in self.wire:
                    return ("row", self.wire[channel, now]), "channel"
        return self._room(op, now)

    def _arrivals(self, op: int, now: float) -> list[Item]:
        """What made or brought an input of this op at this very moment."""
        place = self.device[op]
        found: list[Item] = []
        for tensor in self._inputs(op):
            source = self.made_by[tensor]
            if self.device[source] == place:
                if self.turn[source] and self.end[source] == now:
                    found.append(("op", source))
                continue
            reader = op if self._streams(tensor, place) else -1
            rows = self.rows.get((tensor, place, reader), ())
            found += [("row", row) for row in rows[-1:] if self.arrived[row] == now]
        return found

    def _takes(self, item: Item) -> bool:
        what, at = item
        if what == "row":
            return self.arrived[at] > self.sent[at]
        return self.end[at] > self.start[at]

    # -- transfers ---------------------------------------------------------------------------

    def before_row(self, row: int) -> tuple[Item, Held] | None:
        """What ended when this row of the transfers began, and how that held it up."""
        now, channel, reader = self.sent[row], self.channel[row], self.reader[row]
        source = self.made_by[self.tensor[row]]
        if reader < 0 and self.turn[source] and self.end[source] == now:
            return ("op", source), "input"
        if (channel, now) in self.wire:
            return ("row", self.wire[channel, now]), "channel"
        return None if reader < 0 else self._room(reader, now)

    def _room(self, reader: int, now: float) -> tuple[Item, Held] | None:
        """The op that gave back the staging room which a copy for this reader then took."""
        place = self.device[reader]
        for op in self._holders.get((place, now), ()):
            if self._rank[op] < self._rank[reader]:
                return ("op", op), "room"
        return None

    # -- looked up when needed ---------------------------------------------------------------

    @cached_property
    def _order(self) -> list[int]:
        priority = self.plan.priority
        return plan_order(self.a, None if priority is None else priority.tolist())

    @cached_property
    def _rank(self) -> dict[int, int]:
        return {op: at for at, op in enumerate(self._order)}

    @cached_property
    def _ahead(self) -> dict[int, int]:
        """The op before each op in its device's line."""
        ahead: dict[int, int] = {}
        latest: dict[int, int] = {}
        for op in self._order:
            if self.device[op] in latest:
                ahead[op] = latest[self.device[op]]
            latest[self.device[op]] = op
        return ahead

    @cached_property
    def _issued(self) -> dict[tuple[int, float], int]:
        """By device and moment: the op whose start took the device's issuer until then."""
        issuer, launch = self.a.issuer.tolist(), self.a.launch.tolist()
        shared: dict[int, list[int]] = defaultdict(list)
        for place, thread in enumerate(issuer):
            shared[thread].append(place)
        issued: dict[tuple[int, float], int] = {}
        for op in self.ran.values():
            home = self.device[op]
            if issuer[home] >= 0 and launch[home] > 0:
                for place in shared[issuer[home]]:
                    issued[place, self.start[op] + launch[home]] = op
        return issued

    @cached_property
    def _holders(self) -> dict[tuple[int, float], list[int]]:
        """By device and moment: ops that ended then and held staging room, the longest first."""
        holders: dict[tuple[int, float], list[int]] = defaultdict(list)
        for op in self._order:
            place = self.device[op]
            if self.rooms[place] >= 0 and any(
                self.a.sizes[tensor] and self._streams(tensor, place) for tensor in self._inputs(op)
            ):
                holders[place, self.end[op]].append(op)
        for ops in holders.values():
            ops.sort(key=lambda op: self.start[op])
        return holders

    def _streams(self, tensor: int, place: int) -> bool:
        source = self.made_by[tensor]
        return self.weight[source] and self.device[source] != place and self.rooms[place] >= 0

    def _inputs(self, op: int) -> list[int]:
        return self.read[self.first[op] : self.first[op + 1]]

    def _strange(self, moment: float) -> PlanError:
        return PlanError(
            f"something begins at {moment!r} s but nothing ends then: "
            "the timeline is not one of this problem and plan"
        )
