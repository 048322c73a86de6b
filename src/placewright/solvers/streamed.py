"""Streamed: a problem in, plans out in which one device computes everything.

Weights that it cannot hold stay on the host and are streamed to it, ahead of need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.plan import NO_STAGING
from placewright.transforms.bundles import accelerators

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.solvers.search import Search

Flags = NDArray[np.bool_]
Sizes = NDArray[np.int64]
Pick = Callable[[Sizes, int], Flags]
"""Which of some units stay, by their sizes, where there is so much space."""
CAPS = 4
"""How many largest sizes of streamed weights are tried, each half of the one before or less."""


@dataclass(frozen=True)
class Streamed:
    """All ops on one accelerator, for each in turn: the weights that fit, and the rest streamed.

    Weights that stay are the first in graph order; or evenly spread through the graph, so that the
    others' copies overlap computation; or those that are read most often; or the smallest, so that
    there are few copies, with and without the largest, which would need the most room. The staging
    room is large enough for the copies of 1, 2, … consecutive readers. All these plans are judged.

    Args:
        ahead: The numbers of consecutive readers to make room for.
        to: The devices to stream to, by position; without them every accelerator.
    """

    ahead: tuple[int, ...] = (1, 2, 3, 4)
    to: tuple[int, ...] = ()
    name = "streamed"

    def run(self, search: Search) -> None:
        for device in self.to or accelerators(search.problem).tolist():
            self._stream_to(device, search)

    def _stream_to(self, device: int, search: Search) -> None:
        problem = search.problem
        a, host = problem.arrays, problem.cluster.host
        everything = problem.settle(np.full(a.ops, device))
        alone = search.judge(everything)
        if not alone.overflow.any() or host is None or device == host:
            return  # it fits, there is nowhere to stream from, or the search is over
        weights = _Weights(problem, everything, device, host)
        if not len(weights.units):
            return
        # On one device in order, activations take the same bytes wherever the weights live.
        activations = int(alone.peak[0, device]) - int(a.resident[everything == device].sum())
        room = int(a.capacity[device]) - activations
        plans: dict[bytes, tuple[Flags, int]] = {}
        for kept, size in [plan for count in self.ahead for plan in weights.plans(room, count)]:
            plans.setdefault(kept.tobytes() + bytes(str(size), "ascii"), (kept, size))
        staging = np.full((len(plans), a.devices), NO_STAGING, dtype=np.int64)
        staging[:, device] = [size for _, size in plans.values()]
        placements = np.stack([weights.placement(kept) for kept, _ in plans.values()])
        search.judge(placements, staging=staging)


class _Weights:
    """The weights that could live on the host instead, unit by unit in order of first reading."""

    def __init__(
        self, problem: Problem, everything: NDArray[np.int32], device: int, host: int
    ) -> None:
        a = problem.arrays
        self.ops, self.unit_of, self.everything, self.host = a.ops, a.unit, everything, host
        movable = np.ones(int(a.unit.max()) + 1, dtype=bool)
        movable[a.unit[~a.weight | (everything != device) | ~a.allowed[:, host]]] = False
        # Every reading of a weight by an op on the device, in graph order
        reader = np.repeat(np.arange(a.ops), np.diff(a.first_input))
        source = a.producer[a.inputs]
        read = a.weight[source] & a.turn[reader] & (everything[reader] == device)
        reader, source, size = reader[read], source[read], a.sizes[a.inputs[read]]
        free = movable[a.unit[source]]
        units, first, unit = np.unique(a.unit[source[free]], return_index=True, return_inverse=True)
        order = np.argsort(first)
        self.units = units[order]
        self.bytes = np.bincount(a.unit, weights=a.resident)[self.units].astype(np.int64)
        self.reads = np.bincount(unit, minlength=len(units))[order]
        self.fixed = int(a.resident[everything == device].sum() - self.bytes.sum())
        self.reader, self.size, self.unit = reader[free], size[free], np.argsort(order)[unit]
        # With a staging room, weights that live elsewhere anyway are streamed too.
        apart = everything[source] != device
        self.always = _sums(reader[apart], size[apart], a.ops)

    def plans(self, room: int, ahead: int) -> list[tuple[Flags, int]]:
        """Which units stay on the device, and the staging room that streaming the others takes."""
        none = np.zeros(len(self.units), dtype=bool)
        picks = [(none, pick) for pick in (_first, _spread, self._most_read)]
        picks += [(large, _smallest) for large in self._large()]
        return [self._plan(large, pick, room - self.fixed, ahead) for large, pick in picks]

    def _plan(self, large: Flags, pick: Pick, room: int, ahead: int) -> tuple[Flags, int]:
        """The large ones stay, and those that are picked of the others."""
        kept, left = large, room - int(self.bytes[large].sum())
        # The room depends on what is streamed, which depends on the room: start from all.
        for _ in range(2):
            staging = self._staging(kept, ahead)
            better = large.copy()
            better[~large] = pick(self.bytes[~large], left - staging)
            if self._staging(better, ahead) > staging:
                break
            kept = better
        return kept, self._staging(kept, ahead)

    def _large(self) -> list[Flags]:
        """Units that stay because of their size: none, or those that would need the most room."""
        most = int(self.bytes.max())
        found = [self.bytes > most]
        while len(found) < CAPS and (self.bytes <= most // 2).any():
            most = int(self.bytes[self.bytes <= most // 2].max())
            found.append(self.bytes > most)
        return found

    def placement(self, kept: Flags) -> NDArray[np.int32]:
        moved = np.isin(self.unit_of, self.units[~kept])
        return np.where(moved, np.int32(self.host), self.everything)

    def _staging(self, kept: Flags, ahead: int) -> int:
        """The most bytes of copies that so many consecutive readers take."""
        streamed = ~kept[self.unit]
        need = self.always + _sums(self.reader[streamed], self.size[streamed], self.ops)
        need = need[need > 0]
        ends = np.concatenate([[0], need.cumsum()])
        count = min(ahead, len(need))
        return int((ends[count:] - ends[: len(ends) - count]).max())

    def _most_read(self, sizes: Sizes, space: int) -> Flags:
        return _fill(sizes, np.argsort(-self.reads, kind="stable"), space)


def _sums(group: Sizes, sizes: Sizes, count: int) -> Sizes:
    return np.bincount(group, weights=sizes, minlength=count).astype(np.int64)


def _first(sizes: Sizes, space: int) -> Flags:
    """As many of the first as fit, and whatever still fits behind them."""
    return _fill(sizes, np.arange(len(sizes)), space)


def _spread(sizes: Sizes, space: int) -> Flags:
    """An even share of every stretch of the graph."""
    share = max(0.0, space / max(1, sizes.sum()))
    kept, used, seen = np.zeros(len(sizes), dtype=bool), 0, 0
    for at, size in enumerate(sizes.tolist()):
        seen += size
        if used + size <= min(space, share * seen):
            kept[at], used = True, used + size
    return kept


def _smallest(sizes: Sizes, space: int) -> Flags:
    """All of the smaller sizes, and of the first size that does not fit an even share."""
    values, counts = np.unique(sizes, return_counts=True)
    ends = np.concatenate([[0], np.cumsum(values * counts)])
    whole = int(np.searchsorted(ends[1:], space, side="right"))
    if whole == len(values):
        return np.ones(len(sizes), dtype=bool)
    kept: Flags = sizes < values[whole]
    alike = np.flatnonzero(sizes == values[whole])
    count = max(0, space - int(ends[whole])) // max(1, int(values[whole]))
    kept[alike[(2 * np.arange(count) + 1) * len(alike) // max(1, 2 * count)]] = True
    return kept


def _fill(sizes: Sizes, order: Sizes, space: int) -> Flags:
    kept, used = np.zeros(len(sizes), dtype=bool), 0
    for at in order.tolist():
        if used + sizes[at] <= space:
            kept[at], used = True, used + sizes[at]
    return kept
