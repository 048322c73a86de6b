"""What a stage costs: points between which it lies and its device in, seconds out.

For the period without overlap a device pays for its ops, for each tensor it receives and once for
each it sends; a host pays for its ops only. With overlap ops and channels count side by side. What
a stage sends or receives over one channel, if all links from or to its device share one, counts in
full, but a tensor for several devices once only. Otherwise a share of it counts: all of it is exact
if the device deals with one other only. For the step time stages run one after the other, each
after its transfers, which is exact for a chain.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.solvers.contiguous.coarse_graph import Pieces
    from placewright.solvers.contiguous.device_order import Seat

    Ints = NDArray[np.int64]
    Seconds = NDArray[np.float64]
    Parts = dict[str, Seconds]

BEFORE, AFTER, APART, SENT = "before", "after", "apart", "sent"


@dataclass(frozen=True, eq=False)
class Room:
    """What the stages of a split may hold.

    Args:
        held: Bytes of each piece.
        limit: Bytes that each device has for them.
    """

    held: NDArray[np.int64]
    limit: NDArray[np.int64]


class StageCosts(ABC):
    """The costs of all stages between the points of a family.

    Args:
        share: How much counts of what may go over several channels (period with overlap).
    """

    def __init__(self, pieces: Pieces, room: Room, share: float = 1.0) -> None:
        self.pieces, self.room, self.share = pieces, room, share
        self.work = np.maximum.accumulate(self.total(pieces.least))
        self._held = self.total(room.held)
        self._banned = self.total(~pieces.allowed)
        self._links = np.vstack([pieces.handed.seconds, np.zeros(len(pieces.handed))])
        problem = pieces.problem
        self._pipelined = problem.objective == "period"
        self._compute = self.total(pieces.seconds)
        # Without a bound all stages are looked at, and again for each number of devices.
        self._at_once = not self._pipelined
        self._kept: dict[Seat, Seconds] = {}
        if not self._pipelined or problem.overlap:
            self._away = self.total(self._sent_away())

    @abstractmethod
    def total(self, values: NDArray[np.generic]) -> NDArray[np.float64]:
        """Points (× …): the sum of the pieces' values (pieces × …) in each point."""

    @abstractmethod
    def members(self, source: int, target: int) -> Ints:
        """The pieces of the stage between two points."""

    @abstractmethod
    def within(self, sources: Ints, targets: Ints) -> NDArray[np.bool_]:
        """Targets × sources: whether the one is part of the other."""

    @abstractmethod
    def moved(
        self, parts: Parts, leaving: NDArray[np.bool_], sources: Ints, targets: Ints
    ) -> Seconds:
        """Targets × sources: seconds of all tensors that the stage between the two moves.

        Or 1 × 1 if it is nothing for any of them.

        Args:
            parts: What counts, with each tensor's seconds: what comes from a piece that is done
                before the stage, from one after it, or from an op set apart; what is sent.
            leaving: Tensors that are sent whichever pieces are in the stage.
        """

    def seconds(self, seat: Seat, sources: Ints, targets: Ints, bound: float) -> Seconds:
        """As `stages.Points` says."""
        if not self._at_once:
            return self._seconds(seat, sources, targets, bound)
        if seat not in self._kept:
            every = np.arange(len(self.work))
            self._kept[seat] = self._seconds(seat, every, every, np.inf)
        return self._kept[seat][targets[0] : targets[-1] + 1][:, sources]

    def _seconds(self, seat: Seat, sources: Ints, targets: Ints, bound: float) -> Seconds:
        device = seat.device
        lawful = self.within(sources, targets)
        if self._banned[-1, device]:
            lawful &= _grown(self._banned[:, device], sources, targets) == 0
        if self._held[-1] > self.room.limit[device]:
            lawful &= _grown(self._held, sources, targets) <= self.room.limit[device]
        if self._compute[-1, device] > bound:
            lawful &= _grown(self._compute[:, device], sources, targets) <= bound
        rows, columns = np.flatnonzero(lawful.any(axis=1)), np.flatnonzero(lawful.any(axis=0))
        cost = np.full(lawful.shape, np.inf)
        if len(rows):
            some = np.ix_(rows, columns)
            load = self.load(seat, sources[columns], targets[rows])
            cost[some] = np.where(lawful[some], load, np.inf)
        return cost

    def load(self, seat: Seat, sources: Ints, targets: Ints) -> Seconds:
        """Targets × sources: the seconds of each stage, lawful or not."""
        device = seat.device
        pieces, problem = self.pieces, self.pieces.problem
        a, handed = problem.arrays, pieces.handed
        load = _grown(self._compute[:, device], sources, targets)
        if self._pipelined:
            load += pieces.apart[device]
            if not problem.overlap and a.host[device]:
                return load
        home = np.where(handed.home >= 0, a.link_class[handed.home, device], -1)
        parts = {
            BEFORE: self._links[seat.hears],
            AFTER: self._links[seat.returned],
            APART: self._links[home, np.arange(len(handed))],
        }
        leaving = np.array([any(place != device for place in away) for away in handed.away], bool)
        if not self._pipelined:
            away = _grown(self._away[:, device], sources, targets)
            return load + away + self.moved(parts, leaving, sources, targets)
        if not problem.overlap:
            parts[SENT] = self._links[seat.tells]
            return load + self.moved(parts, leaving, sources, targets)
        if self._away[-1, device]:
            away = _grown(self._away[:, device], sources, targets)
            np.maximum(load, self.share * away, out=load)
        others = np.arange(a.devices) != device
        one_in, one_out = (
            len(np.unique(channels[others])) == 1
            for channels in (a.channel[:, device], a.channel[device])
        )
        groups = [(parts, 1.0)] if one_in else [({p: s}, self.share) for p, s in parts.items()]
        groups.append(({SENT: self._links[seat.tells]}, 1.0 if one_out else self.share))
        for group, share in groups:
            moved = self.moved(group, leaving, sources, targets)
            moved *= share
            np.maximum(load, moved, out=load)
        return load

    def _sent_away(self) -> Seconds:
        """Pieces × devices: seconds of sending what ops set apart read on other devices."""
        pieces, a = self.pieces, self.pieces.problem.arrays
        sent = np.zeros(pieces.seconds.shape)
        for at, away in enumerate(pieces.handed.away):
            for place in away:
                sent[pieces.handed.producer[at]] += self._links[a.link_class[:, place], at]
        return sent


def _grown(values: Seconds, sources: Ints, targets: Ints) -> Seconds:
    grown: Seconds = values[targets][:, None] - values[sources][None]
    return grown
