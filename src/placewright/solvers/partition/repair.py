"""Repair: a placement that may be over memory in, one that fits and differs little out.

The simulator says which devices are over, when, and what is there then. From each of them we take
stretches of pieces that free enough and do the least harm elsewhere: seconds of work and of
transfers. Then the simulator looks again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright import simulator
from placewright.plan import Plan
from placewright.solvers.balanced import folded
from placewright.solvers.partition.pieces import Flags, Ints, Pieces, Seconds
from placewright.solvers.partition.ties import Ties, link_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike

    from placewright.problem import Problem
    from placewright.timeline import Timeline

_ROUNDS = 24  # simulations at most
_PATIENCE = 8  # of them in a row that are no better
_MOVES = 4  # stretches a round for each device of the cluster
_LOOKS = 15_000_000  # stretches looked at, in all rounds: some seconds
_Move = tuple[NDArray[np.int64], int, NDArray[np.int64]]  # what goes, where to, what comes back
_PARTS = (1.0, 0.25, 0.0)  # of the bytes to be freed, in one stretch; 0 stands for single pieces


def repair(
    problem: Problem,
    device: ArrayLike,
    priority: ArrayLike | None = None,
    staging: ArrayLike | None = None,
) -> NDArray[np.int32]:
    """A placement like the given one that is within memory, or over by as little as we can.

    Args:
        device: A device for each op; it must keep the problem's constraints.
        priority: The order that it will run in, which memory depends on.
        staging: Its staging rooms. They stay as they are, and remain large enough.

    Returns:
        Of the given placement and those tried the best by (bytes over, objective).
    """
    given = np.ascontiguousarray(device, dtype=np.int32)
    tried = [given, *rounds(problem, given, priority, staging)]
    plans = len(tried)
    verdict = simulator.judge(
        problem,
        np.stack(tried),
        None if priority is None else np.repeat(np.atleast_2d(priority), plans, axis=0),
        None if staging is None else np.repeat(np.atleast_2d(staging), plans, axis=0),
    )
    return tried[verdict.best()]


def rounds(
    problem: Problem,
    device: NDArray[np.int32],
    priority: ArrayLike | None = None,
    staging: ArrayLike | None = None,
) -> Iterator[NDArray[np.int32]]:
    """Placement after placement on the way to one that fits; none if the given one does."""
    a = problem.arrays
    state: _State | None = None
    least, since = np.inf, 0
    kept_back = before = np.zeros(a.devices, dtype=np.int64)
    touched = np.zeros(a.devices, dtype=bool)
    for _ in range(_ROUNDS):
        timeline = simulator.simulate(problem, Plan.of(problem, device, priority, staging=staging))
        over = np.maximum(timeline.peak - timeline.capacity, 0)
        least, since = (float(over.sum()), 0) if over.sum() < least else (least, since + 1)
        if not over.any() or since >= _PATIENCE:
            return
        if state is None:
            rooms = None if staging is None else np.asarray(staging, dtype=np.int64).ravel()
            state = _State.of(problem, Pieces.of(problem, device, rooms))
        # We only estimate what a move frees and takes: where that was wrong, ask for more.
        wrong = touched & (over > 0) & (2 * over > before)
        kept_back = np.where(wrong, 2 * kept_back + a.capacity // 64, kept_back)
        before = over
        touched = state.relieve(timeline, kept_back)
        if not touched.any():
            return
        device = state.place[state.pieces.of_op].astype(np.int32)
        yield device


@dataclass(eq=False)
class _State:
    """Where the pieces are, and where they have been."""

    pieces: Pieces
    ties: Ties
    apart: Seconds  # devices × devices: what a tie costs there, in links of average speed
    orders: list[Ints]  # ways to line the pieces up
    place: Ints  # pieces: the device of each
    open: Flags  # pieces × devices: where each may still go; it never goes back
    looks: int = _LOOKS  # stretches that may still be looked at

    @classmethod
    def of(cls, problem: Problem, pieces: Pieces) -> _State:
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
        """Move what the overfull devices have too much; which devices lost or got something."""
        held = self.pieces.held(timeline)
        free = (timeline.capacity - timeline.peak - kept_back).astype(np.float64)
        over = timeline.peak > timeline.capacity
        touched = np.zeros(len(free), dtype=bool)
        for _ in range(_MOVES * len(free)):
            source = int(np.where(over, free, np.inf).argmin())
            if not over[source] or free[source] >= 0 or self.looks <= 0:
                break
            pull = self.ties.pull(self.place, len(self.place), len(free))
            look = source, -float(free[source]), held, free, pull
            found = self._stretch(*look) or self._swap(*look) or self._push(*look)
            if found is None:
                over[source] = False  # nothing can be done about it
                continue
            away, target, back = found
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

    def _stretch(
        self, source: int, need: float, held: Seconds, room: Seconds, pull: Seconds
    ) -> _Move | None:
        """The pieces whose move off a device does the least harm per byte, and where they go."""
        inner = (self.place[self.ties.one] == source) & (self.place[self.ties.other] == source)
        one, other = self.ties.one[inner], self.ties.other[inner]
        within = self.ties.seconds[inner]
        best: _Move | None = None
        least = np.inf
        for order in self.orders:
            for target in np.flatnonzero(np.arange(len(room)) != source).tolist():
                line = order[(self.place[order] == source) & self.open[order, target]]
                if not len(line):
                    continue
                rank = np.full(len(self.place), -1)
                rank[line] = np.arange(len(line))
                low = np.minimum(rank[one], rank[other])
                high = np.maximum(rank[one], rank[other])
                both = low >= 0
                lined = _Line(
                    held[line],
                    pull[line] @ (self.apart[target] - self.apart[source]),
                    self._work(line, source, target),
                    self._slack(target),
                    low[both],
                    high[both],
                    within[both] * self.apart[target, source],
                )
                self.looks -= len(line) * len(_PARTS)
                for part in _PARTS:
                    first, last, score = lined.best(need, need * part, float(room[target]))
                    if score < least:
                        best, least = (line[first:last], target, line[:0]), score
        return best

    def _swap(
        self, source: int, need: float, held: Seconds, room: Seconds, pull: Seconds
    ) -> _Move | None:
        """A piece that goes and one that comes in its stead, where no room is large enough."""
        best: _Move | None = None
        least = np.inf
        for target in np.flatnonzero(np.arange(len(room)) != source).tolist():
            away = np.flatnonzero((self.place == source) & self.open[:, target])
            back = np.flatnonzero((self.place == target) & self.open[:, source])
            if not len(away) or not len(back):
                continue
            back = back[np.argsort(held[back], kind="stable")]
            # The smallest that makes enough room there.
            at = np.searchsorted(held[back], held[away] - room[target], side="left")
            chosen = back[np.minimum(at, len(back) - 1)]
            freed = held[away] - held[chosen]
            way = self.apart[target] - self.apart[source]
            harm = pull[away] @ way - pull[chosen] @ way
            harm += self._work(away, source, target) + self._work(chosen, target, source)
            good = (at < len(back)) & (freed > 0)
            score = np.where(good, harm, np.inf) / np.where(good, np.minimum(freed, need), 1.0)
            first = int(score.argmin())
            if score[first] < least:
                best, least = (away[[first]], target, chosen[[first]]), float(score[first])
        return best

    def _push(
        self, source: int, need: float, held: Seconds, room: Seconds, pull: Seconds
    ) -> _Move | None:
        """A piece that overfills another device, which is then relieved of smaller pieces.

        The last resort where memory is in pieces too small for what must go: bytes over may rise
        for a while, but what is over must fit into what is free on all devices together.
        """
        best: _Move | None = None
        least = np.inf
        capacity, devices = self.pieces.problem.arrays.capacity, np.arange(len(room))
        for target in devices[devices != source].tolist():
            away = np.flatnonzero((self.place == source) & self.open[:, target])
            size = held[away]
            excess = np.maximum(0.0, size - max(0.0, float(room[target])))
            others = np.maximum(room[(devices != source) & (devices != target)], 0.0).sum()
            score = excess + np.maximum(0.0, need - size)
            fits = (size <= capacity[target]) & (excess < others + np.maximum(0.0, size - need))
            score = np.where(fits, score, np.inf)
            if len(away) and score.min() < least:
                first = int(score.argmin())
                best, least = (away[[first]], target, away[:0]), float(score[first])
        return best

    def _work(self, pieces: Ints, source: int, target: int) -> Seconds:
        """More seconds of work; for the period, what comes to the target."""
        seconds = self.pieces.seconds[pieces]
        if self.pieces.problem.objective == "period":
            return np.asarray(seconds[:, target])
        return np.asarray(seconds[:, target] - seconds[:, source])

    def _slack(self, target: int) -> float:
        """For the period, the work that a device can take without being the busiest."""
        if self.pieces.problem.objective != "period":
            return -np.inf
        own = self.pieces.seconds[np.arange(len(self.place)), self.place]
        loads = np.bincount(self.place, weights=own, minlength=len(self.apart))
        return float(loads.max() - loads[target])


@dataclass(frozen=True, eq=False)
class _Line:
    """The pieces of one device in a line, and what it costs to move them to another."""

    held: Seconds  # pieces: bytes
    cut: Seconds  # pieces: more seconds of transfers if it alone went
    work: Seconds  # pieces: more seconds of work
    slack: float  # work that does no harm, -inf if it may also do good
    low: Ints  # ties within the line: the first end
    high: Ints  # the last end
    seconds: Seconds  # what cutting the tie costs

    def best(self, need: float, amount: float, room: float) -> tuple[int, int, float]:
        """The stretch (first, last) with the least harm per byte, and that harm.

        Of each piece's stretches we look at the shortest that begins with it and holds `amount`.
        Only what is needed counts as freed; nothing larger than `room` is looked at.
        """
        count = len(self.held)
        bytes_ = np.concatenate([[0.0], self.held.cumsum()])
        first = np.arange(count)
        last = np.searchsorted(bytes_, bytes_[:-1] + amount, side="left")
        last = np.maximum(last, first + 1)
        whole = last <= count
        last = np.minimum(last, count)
        freed = bytes_[last] - bytes_[first]
        # A tie is within the stretches that begin at its first end or before and end after its
        # last; as ends never fall back, these beginnings are a range.
        begin = np.searchsorted(last, self.high, side="right")
        real = begin <= self.low
        steps = np.bincount(begin[real], weights=self.seconds[real], minlength=count + 1)
        steps -= np.bincount(self.low[real] + 1, weights=self.seconds[real], minlength=count + 1)
        inside = steps.cumsum()[:count]
        cut, work = (np.concatenate([[0.0], each.cumsum()]) for each in (self.cut, self.work))
        harm = cut[last] - cut[first] - 2 * inside
        more = work[last] - work[first]
        harm += more if self.slack == -np.inf else np.maximum(0.0, more - self.slack)
        useful = np.minimum(freed, need)
        good = whole & (freed > 0) & (freed <= room)
        with np.errstate(divide="ignore", invalid="ignore"):
            score = np.where(harm > 0, harm / useful, harm * useful / need**2)
        score = np.where(good, score, np.inf)
        at = int(score.argmin())
        return at, int(last[at]), float(score[at])
