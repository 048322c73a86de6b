"""Relief: pieces and a timeline in, the pieces moved off devices that are over memory out.

Moves are chosen by the harm they do per byte they free: seconds of work, and seconds of transfers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.solvers.balanced import folded
from placewright.solvers.partition.affinity import Ties, link_seconds
from placewright.solvers.partition.movable_groups import (
    Flags,
    Ints,
    Pieces,
    Seconds,
)
from placewright.solvers.partition.runs import Line

if TYPE_CHECKING:
    from placewright.timeline import Timeline

_MOVES = 4  # looks at a device in a round, for each device of the cluster
_LOOKS = 15_000_000  # stretches looked at, in all rounds: some seconds
_PARTS = (1.0, 0.25)  # of the bytes to be freed, in one stretch
_FILLED = 0.9  # of a room, by a stretch, where the room is smaller

_Move = tuple[NDArray[np.int64], int, NDArray[np.int64]]  # what goes, where to, what comes back
_Singles = tuple[Ints, int, Seconds]  # pieces that may go alone, where to, and their harm per byte


@dataclass(eq=False)
class Relief:
    """Where the pieces are, and where they may still go."""

    pieces: Pieces
    ties: Ties
    apart: Seconds  # devices × devices: what a tie costs there, in links of average speed
    orders: list[Ints]  # ways to line the pieces up
    place: Ints  # pieces: the device of each
    open: Flags  # pieces × devices: where each may still go; it never goes back
    looks: int = _LOOKS  # stretches that may still be looked at

    @classmethod
    def of(cls, pieces: Pieces) -> Relief:
        problem = pieces.problem
        devices = problem.arrays.devices
        links = link_seconds(problem)
        mean = links.sum() / max(1, devices * (devices - 1))
        lines = [pieces.leader]
        if any(op.phase != "forward" for op in problem.graph.ops):
            lines.append(folded(problem)[pieces.leader])
        open_ = pieces.allowed.copy()
        open_[np.arange(len(pieces)), pieces.start] = False
        return cls(
            pieces,
            Ties.between(problem, pieces.of_op, devices),
            links / mean if mean > 0 else 1.0 - np.eye(devices),
            [np.argsort(line, kind="stable") for line in lines],
            pieces.start.copy(),
            open_,
        )

    def relieve(self, timeline: Timeline, kept_back: NDArray[np.int64]) -> Flags:
        """Move what the overfull devices have too much; which devices lost or got something.

        Args:
            kept_back: Bytes of each device to leave free.
        """
        held = self.pieces.held(timeline)
        free = (timeline.capacity - timeline.peak - kept_back).astype(np.float64)
        over = timeline.peak > timeline.capacity
        touched = np.zeros(len(free), dtype=bool)
        for _ in range(_MOVES * len(free)):
            source = int(np.where(over, free, np.inf).argmin())
            if not over[source] or free[source] >= 0 or self.looks <= 0:
                break
            look = _Look(self, source, held, free)
            moves = look.stretches() or look.swap() or look.push()
            over[source] = bool(moves)  # or there is nothing to be done about it
            for away, target, back in moves:
                self._move(away, source, target)
                self._move(back, target, source)
                freed = float(held[away].sum() - held[back].sum())
                free[source] += freed
                free[target] -= freed
                touched[[source, target]] = True
                over[target] |= free[target] < 0
        return touched

    def _move(self, pieces: Ints, source: int, target: int) -> None:
        self.open[pieces, source] = self.open[pieces, target] = False
        self.place[pieces] = target


class _Look:
    """One look at an overfull device: what could go from it."""

    def __init__(self, relief: Relief, source: int, held: Seconds, room: Seconds) -> None:
        self.relief, self.source, self.held, self.room = relief, source, held, room
        self.need = -float(room[source])
        self.targets = [device for device in range(len(room)) if device != source]
        self.pull = relief.ties.pull(relief.place, len(relief.place), len(room))
        self.pipelined = relief.pieces.problem.objective == "period"
        seconds = relief.pieces.seconds[np.arange(len(relief.place)), relief.place]
        self.loads = np.bincount(relief.place, weights=seconds, minlength=len(room))

    def stretches(self) -> list[_Move]:
        """The stretch that does the least harm per byte, or single pieces that do less."""
        relief, ties = self.relief, self.relief.ties
        at_source = relief.place == self.source
        inner = at_source[ties.one] & at_source[ties.other]
        within = ties.one[inner], ties.other[inner], ties.seconds[inner]
        best: list[_Move] = []
        singles: list[_Singles] = []
        least = np.inf
        for order in relief.orders:
            for target in self.targets:
                pieces = order[at_source[order] & relief.open[order, target]]
                room = float(self.room[target])
                if not len(pieces) or room <= 0:
                    continue
                line = self._line(pieces, target, *within)
                relief.looks -= len(pieces) * (len(_PARTS) + 1)
                for part in _PARTS:
                    amount = min(self.need * part, _FILLED * room)
                    last, score = line.scores(self.need, amount, room)
                    first = int(score.argmin())
                    if score[first] < least:
                        stretch = pieces[first : last[first]]
                        best, least = [(stretch, target, pieces[:0])], float(score[first])
                if order is relief.orders[0]:
                    singles.append((pieces, target, line.scores(self.need, 0.0, room)[1]))
        return self._singles(singles, least) or best

    def _line(self, pieces: Ints, target: int, one: Ints, other: Ints, seconds: Seconds) -> Line:
        apart, rank = self.relief.apart, np.full(len(self.relief.place), -1)
        rank[pieces] = np.arange(len(pieces))
        low, high = np.minimum(rank[one], rank[other]), np.maximum(rank[one], rank[other])
        both = low >= 0
        return Line(
            self.held[pieces],
            self.pull[pieces] @ (apart[target] - apart[self.source]),
            self._work(pieces, self.source, target),
            self._slack(target),
            low[both],
            high[both],
            seconds[both] * apart[target, self.source],
        )

    def _singles(self, singles: list[_Singles], least: float) -> list[_Move]:
        """Pieces that do less harm per byte than `least`, best first, until enough has gone."""
        better = [(pieces[s < least], target, s[s < least]) for pieces, target, s in singles]
        if not any(len(pieces) for pieces, _, _ in better):
            return []
        piece = np.concatenate([pieces for pieces, _, _ in better])
        where = np.concatenate([np.full(len(pieces), target) for pieces, target, _ in better])
        order = np.argsort(np.concatenate([score for _, _, score in better]), kind="stable")
        slack = [self._slack(target) for target in range(len(self.room))]
        room, work, need = self.room.tolist(), [0.0] * len(slack), self.need
        chosen: dict[int, int] = {}
        for at in order.tolist():
            one, target = int(piece[at]), int(where[at])
            size = float(self.held[one])
            limit = slack[target]
            seconds = float(self.relief.pieces.seconds[one, target])
            busy = limit is not None and work[target] > 0 and work[target] + seconds > limit
            if one in chosen or size > room[target] or busy:
                continue
            chosen[one] = target
            room[target] -= size
            work[target] += seconds
            need -= size
            if need <= 0:
                break
        return [
            (np.array([one for one in chosen if chosen[one] == target]), target, piece[:0])
            for target in dict.fromkeys(chosen.values())
        ]

    def swap(self) -> list[_Move]:
        """A piece that goes and one that comes in its stead, where no room is large enough."""
        relief, held = self.relief, self.held
        best: list[_Move] = []
        least = np.inf
        for target in self.targets:
            away = np.flatnonzero((relief.place == self.source) & relief.open[:, target])
            back = np.flatnonzero((relief.place == target) & relief.open[:, self.source])
            if not len(away) or not len(back):
                continue
            back = back[np.argsort(held[back], kind="stable")]
            # The smallest that makes enough room there.
            at = np.searchsorted(held[back], held[away] - self.room[target], side="left")
            chosen = back[np.minimum(at, len(back) - 1)]
            freed = held[away] - held[chosen]
            way = relief.apart[target] - relief.apart[self.source]
            harm = self.pull[away] @ way - self.pull[chosen] @ way
            harm += self._work(away, self.source, target)
            harm += self._work(chosen, target, self.source)
            good = (at < len(back)) & (freed > 0)
            score = np.where(good, harm, np.inf) / np.where(good, np.minimum(freed, self.need), 1.0)
            first = int(score.argmin())
            if score[first] < least:
                best, least = [(away[[first]], target, chosen[[first]])], float(score[first])
        return best

    def push(self) -> list[_Move]:
        """A piece that overfills another device, which is then relieved of smaller pieces.

        The last resort where memory is in pieces too small for what must go: bytes over may rise
        for a while, but what is over must fit into what is free on all devices together.
        """
        relief, room = self.relief, np.maximum(self.room, 0.0)
        best: list[_Move] = []
        least = np.inf
        for target in self.targets:
            away = np.flatnonzero((relief.place == self.source) & relief.open[:, target])
            size = self.held[away]
            excess = np.maximum(0.0, size - room[target])
            spare = room.sum() - room[target] + np.maximum(0.0, size - self.need)
            fits = (size <= relief.pieces.problem.arrays.capacity[target]) & (excess < spare)
            score = np.where(fits, excess + np.maximum(0.0, self.need - size), np.inf)
            if score.min(initial=np.inf) < least:
                first = int(score.argmin())
                best, least = [(away[[first]], target, away[:0])], float(score[first])
        return best

    def _work(self, pieces: Ints, source: int, target: int) -> Seconds:
        """More seconds of work; for the period, all that comes to the target."""
        seconds = self.relief.pieces.seconds[pieces]
        return np.asarray(seconds[:, target] - (0.0 if self.pipelined else seconds[:, source]))

    def _slack(self, target: int) -> float | None:
        """For the period, the work that a device can take without being the busiest."""
        return float(self.loads.max() - self.loads[target]) if self.pipelined else None
