"""Ops of GPUs in the order they are issued in, runs of them that can be captured together out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from placewright.runtime.cuda.graph_exclusions import LAST

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from placewright.graph import Tensor
    from placewright.runtime.cuda.issuer import Issuer
    from placewright.runtime.instructions import Turn
    from placewright.runtime.staging import Staging

Held = tuple[int, "Tensor"]
"""A device and a tensor that it has."""
FEWEST = 6  # ops that are worth a graph
_PARTS = 3  # of a staging room: one is read while the next two are filled


@dataclass
class Segment:
    """A run of ops that are issued together.

    Args:
        begin: Where it begins in the issuer's order.
        turns: Of one device; of a whole step none, since all are.
        streamed: Those of them that read streamed weights.
        heard: Those of them that others hear of: what they send, that they have read.
        inputs: What it reads that no graph made, by device, and where that must lie.
        outputs: What it makes that is read after it and not by graphs alone, by device.
        whole: How many ops of a step it is, of all devices, if it is a step's beginning or all of
            it: then copies into staging rooms are part of it.
        needs: What must have come before a whole step, by device.
        makers: Where the runs begin that make what it reads, and graphs alone read.
    """

    begin: int
    turns: list[int]
    streamed: list[int] = field(default_factory=list)
    heard: list[int] = field(default_factory=list)
    graph: Any = None
    inputs: dict[Held, torch.Tensor] = field(default_factory=dict)
    outputs: dict[Held, torch.Tensor] = field(default_factory=dict)
    whole: int = 0
    needs: list[Held] = field(default_factory=list)
    makers: set[int] = field(default_factory=set)


def segments_of(issuer: Issuer) -> list[Segment]:
    """The longest runs of ops of one device that meet others only at their ends."""
    turns = [(number, issuer.jobs[number].part.turns[index]) for number, index in issuer.order]
    if issuer.alone:
        turns = turns[: _length(issuer, [turn for _, turn in turns])]
        made = {turn.position for _, turn in turns}
        needs = [
            (number, tensor)
            for number, turn in turns
            for tensor in turn.needs
            if tensor[0] not in made
        ]
        return [Segment(0, [], whole=len(turns), needs=list(dict.fromkeys(needs)))]
    found: list[Segment] = []
    rooms = {number: _Ahead(lane.job.part.staging) for number, lane in issuer.lanes.items()}
    last: tuple[int, bool] | None = None  # device, and whether its run is closed
    for at, (number, turn) in enumerate(turns):
        if turn.handed or turn.bulky:
            last = None
            rooms[number].read(turn.position)
            continue
        index = issuer.order[at][1]
        opens = bool(turn.needs or turn.after) or not rooms[number].holds(turn.position)
        if last is None or last != (number, False) or opens:
            found.append(Segment(at, []))
            rooms[number].begin()
        found[-1].turns.append(index)
        streamed = rooms[number].read(turn.position)
        if streamed:
            found[-1].streamed.append(index)
        if streamed or turn.sends or turn.tells:
            found[-1].heard.append(index)
        last = number, bool(turn.sends or turn.tells)
    return [segment for segment in found if len(segment.turns) >= FEWEST]


def _length(issuer: Issuer, turns: Sequence[Turn]) -> int:
    """How many ops of a step are captured: all, or those before its outputs are made.

    Ops at its end that stream weights are captured, since their copies are.
    """
    first = next((at for at, turn in enumerate(turns) if turn.handed), len(turns))
    streams = {one for lane in issuer.lanes.values() if lane.rooms for one in lane.rooms.arrived}
    rest = turns[first:]
    few = first > 0 and len(rest) <= LAST and not any(turn.after for turn in rest)
    return first if few and not any(turn.position in streams for turn in rest) else len(turns)


class _Ahead:
    """How many streamed weights a run of ops may wait for before it begins.

    Their copies must be on their way by then, so none may need the room of another op of the run;
    and they take a part of the room, so that the next ones come meanwhile.
    """

    def __init__(self, staging: Staging | None) -> None:
        self.most = 0 if staging is None else staging.room // _PARTS
        self.after: dict[int, int] = {}
        self.size: Counter[int] = Counter()
        for copy in () if staging is None else staging.copies:
            self.after[copy.reader] = max(copy.after, self.after.get(copy.reader, 0))
            self.size[copy.reader] += copy.size
        self.readers = self.begun = self.bytes = 0

    def begin(self) -> None:
        """A run begins."""
        self.begun, self.bytes = self.readers, 0

    def holds(self, op: int) -> bool:
        """Whether an op may be part of the run."""
        if op not in self.after:
            return True
        return self.after[op] <= self.begun and self.bytes + self.size[op] <= self.most

    def read(self, op: int) -> bool:
        """An op is part of the run; whether it reads streamed weights."""
        self.readers += op in self.after
        self.bytes += self.size[op]
        return op in self.after
