"""Runs: the cost per byte of moving runs of consecutive groups off a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from placewright.solvers.partition.movable_groups import Ints, Seconds


@dataclass(frozen=True, eq=False)
class RunCosts:
    """The pieces of one device in a line, and what it costs to move them to another device."""

    held_bytes: Seconds  # pieces: bytes
    cut_seconds: Seconds  # pieces: more seconds of transfers if it alone went
    work_seconds: Seconds  # pieces: more seconds of work
    spare_work: float | None  # seconds of work that do no harm; None if less work does good
    first_end: Ints  # ties within the line: the first end
    last_end: Ints  # the last end
    edge_seconds: Seconds  # what cutting the tie costs

    def scores(self, need: float, target_bytes: float, free_bytes: float) -> tuple[Ints, Seconds]:
        """For each piece the end of the stretch that begins with it, and its harm per byte.

        Of all that begin with a piece it is the shortest that holds `target_bytes`, or the piece alone.
        Only bytes that are needed count as freed. The harm is infinite if a stretch is larger than
        the room, or frees nothing; less than none if the move does good.
        """
        count = len(self.held_bytes)
        byte_sums = _prefix_sums(self.held_bytes)
        begin = np.arange(count)
        end = np.maximum(
            np.searchsorted(byte_sums, byte_sums[:-1] + target_bytes, side="left"), begin + 1
        )
        is_complete = end <= count
        end = np.minimum(end, count)
        freed = byte_sums[end] - byte_sums[begin]
        cut_sums, work_sums = _prefix_sums(self.cut_seconds), _prefix_sums(self.work_seconds)
        cost = cut_sums[end] - cut_sums[begin] - 2 * self._inner_seconds(end)
        extra_work = work_sums[end] - work_sums[begin]
        cost += (
            extra_work if self.spare_work is None else np.maximum(0.0, extra_work - self.spare_work)
        )
        useful = np.minimum(freed, need)
        is_valid = is_complete & (freed > 0) & (freed <= free_bytes)
        rate = cost / np.where(is_valid, useful, 1.0)
        # Where a move does good, the larger it is the better.
        with np.errstate(over="ignore"):  # of absurd seconds; it is infinitely good then
            score = np.where(cost > 0, rate, cost * useful / need**2)
        return end.astype(np.int64), np.where(is_valid, score, np.inf)

    def _inner_seconds(self, end: Ints) -> Seconds:
        """The ties within each stretch.

        A tie is within the stretches that begin at its first end or before and end after its last;
        as ends never fall back from one beginning to the next, these beginnings are a range.
        """
        count = len(self.held_bytes)
        begin = np.searchsorted(end, self.last_end, side="right")
        is_inside = begin <= self.first_end
        steps = np.bincount(
            begin[is_inside], weights=self.edge_seconds[is_inside], minlength=count + 1
        )
        steps -= np.bincount(
            self.first_end[is_inside] + 1, weights=self.edge_seconds[is_inside], minlength=count + 1
        )
        inner: Seconds = steps.cumsum()[:count]
        return inner


def _prefix_sums(values: Seconds) -> Seconds:
    """Sums of all before each place, and of all."""
    return np.concatenate([[0.0], values.cumsum()])
