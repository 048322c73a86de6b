"""Stretches: pieces of one device in a line in, what it harms to move each stretch of them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from placewright.solvers.partition.movable_groups import Ints, Seconds


@dataclass(frozen=True, eq=False)
class Line:
    """The pieces of one device in a line, and what it costs to move them to another device."""

    held: Seconds  # pieces: bytes
    cut: Seconds  # pieces: more seconds of transfers if it alone went
    work: Seconds  # pieces: more seconds of work
    slack: float | None  # seconds of work that do no harm; None if less work does good
    low: Ints  # ties within the line: the first end
    high: Ints  # the last end
    seconds: Seconds  # what cutting the tie costs

    def scores(self, need: float, amount: float, room: float) -> tuple[Ints, Seconds]:
        """For each piece the end of the stretch that begins with it, and its harm per byte.

        Of all that begin with a piece it is the shortest that holds `amount`, or the piece alone.
        Only bytes that are needed count as freed. The harm is infinite if a stretch is larger than
        the room, or frees nothing; less than none if the move does good.
        """
        count = len(self.held)
        bytes_ = _sums(self.held)
        first = np.arange(count)
        last = np.maximum(np.searchsorted(bytes_, bytes_[:-1] + amount, side="left"), first + 1)
        whole = last <= count
        last = np.minimum(last, count)
        freed = bytes_[last] - bytes_[first]
        cut, work = _sums(self.cut), _sums(self.work)
        harm = cut[last] - cut[first] - 2 * self._within(last)
        more = work[last] - work[first]
        harm += more if self.slack is None else np.maximum(0.0, more - self.slack)
        useful = np.minimum(freed, need)
        good = whole & (freed > 0) & (freed <= room)
        rate = harm / np.where(good, useful, 1.0)
        # Where a move does good, the larger it is the better.
        with np.errstate(over="ignore"):  # of absurd seconds; it is infinitely good then
            score = np.where(harm > 0, rate, harm * useful / need**2)
        return last.astype(np.int64), np.where(good, score, np.inf)

    def _within(self, last: Ints) -> Seconds:
        """The ties within each stretch.

        A tie is within the stretches that begin at its first end or before and end after its last;
        as ends never fall back from one beginning to the next, these beginnings are a range.
        """
        count = len(self.held)
        begin = np.searchsorted(last, self.high, side="right")
        real = begin <= self.low
        steps = np.bincount(begin[real], weights=self.seconds[real], minlength=count + 1)
        steps -= np.bincount(self.low[real] + 1, weights=self.seconds[real], minlength=count + 1)
        within: Seconds = steps.cumsum()[:count]
        return within


def _sums(values: Seconds) -> Seconds:
    """Sums of all before each place, and of all."""
    return np.concatenate([[0.0], values.cumsum()])
