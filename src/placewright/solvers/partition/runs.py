"""Runs: the cost per byte of moving runs of consecutive groups off a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from placewright.solvers.partition.movable_groups import Ints, Seconds


@dataclass(frozen=True, eq=False)
class RunCosts:
    """The groups of one device in order, and the cost of moving them to another device."""

    held_bytes: Seconds  # groups: bytes
    cut_seconds: Seconds  # groups: additional seconds of transfers if only it moved
    work_seconds: Seconds  # groups: additional seconds of work
    spare_work: float | None  # seconds of work that cost nothing; None if less work is a gain
    first_end: Ints  # edges within the order: the first end
    last_end: Ints  # the last end
    edge_seconds: Seconds  # the cost of cutting the edge

    def scores(self, need: float, target_bytes: float, free_bytes: float) -> tuple[Ints, Seconds]:
        """For each group the end of the run that begins with it, and its cost per byte.

        Of all runs that begin with a group it is the shortest that holds `target_bytes`, or the
        group alone. Only bytes that are needed count as freed. The cost is infinite if a run is
        larger than the free bytes, or frees nothing; negative if the move is a gain.
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
        # Where a move is a gain, a larger one is better.
        with np.errstate(over="ignore"):  # of absurd seconds; the gain is infinite then
            score = np.where(cost > 0, rate, cost * useful / need**2)
        return end.astype(np.int64), np.where(is_valid, score, np.inf)

    def _inner_seconds(self, end: Ints) -> Seconds:
        """The edges within each run.

        An edge is within the runs that begin at its first end or before and end after its last;
        as the ends of runs never decrease, their beginnings are a range.
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
    """Prefix sums, with the total at the end."""
    return np.concatenate([[0.0], values.cumsum()])
