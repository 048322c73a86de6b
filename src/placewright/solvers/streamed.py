"""Streamed: one device computes everything; weights it cannot hold are prefetched from the host."""

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
Selection = Callable[[Sizes, int], Flags]
"""Selects the units that stay, from their sizes and the free bytes."""
SIZE_CAPS = 4
"""The number of thresholds for large weights, each at most half of the one before."""


@dataclass(frozen=True)
class Streamed:
    """All ops on one accelerator, for each of them: the weights that fit, and the rest streamed.

    Weights that stay are the first in graph order; or evenly spread through the graph, so that the
    others' copies overlap computation; or those that are read most often; or the smallest, so that
    there are few copies, with and without the largest, which would need the largest buffer. The
    staging buffer holds the copies of 1, 2, … consecutive readers. All these plans are evaluated.

    Args:
        lookahead: The numbers of consecutive readers whose copies the buffer holds.
        targets: The devices to stream to, by position; by default every accelerator.
    """

    lookahead: tuple[int, ...] = (1, 2, 3, 4)
    targets: tuple[int, ...] = ()
    name = "streamed"

    def run(self, search: Search) -> None:
        for device in self.targets or accelerators(search.problem).tolist():
            self._stream_to(device, search)

    def _stream_to(self, device: int, search: Search) -> None:
        problem = search.problem
        a, host = problem.arrays, problem.cluster.host
        base_placement = problem.legalize(np.full(a.ops, device))
        verdict = search.judge(base_placement)
        if not verdict.overflow.any() or host is None or device == host:
            return  # it fits, there is nowhere to stream from, or the search is over
        weights = _StreamableWeights(problem, base_placement, device, host)
        if not len(weights.units):
            return
        # On one device in order, activations take the same bytes wherever the weights are.
        activations = int(verdict.peak[0, device]) - int(a.resident[base_placement == device].sum())
        free_bytes = int(a.capacity[device]) - activations
        plans: dict[bytes, tuple[Flags, int]] = {}
        for resident, staging_bytes in [
            plan for lookahead in self.lookahead for plan in weights.plans(free_bytes, lookahead)
        ]:
            plans.setdefault(
                resident.tobytes() + bytes(str(staging_bytes), "ascii"), (resident, staging_bytes)
            )
        staging = np.full((len(plans), a.devices), NO_STAGING, dtype=np.int64)
        staging[:, device] = [staging_bytes for _, staging_bytes in plans.values()]
        placements = np.stack([weights.placement(resident) for resident, _ in plans.values()])
        search.judge(placements, staging=staging)


class _StreamableWeights:
    """The weights that could be on the host instead, by unit in order of first use."""

    def __init__(
        self, problem: Problem, base_placement: NDArray[np.int32], device: int, host: int
    ) -> None:
        a = problem.arrays
        self.ops, self.unit_of, self.base_placement, self.host = a.ops, a.unit, base_placement, host
        movable = np.ones(int(a.unit.max()) + 1, dtype=bool)
        movable[a.unit[~a.is_weight | (base_placement != device) | ~a.allowed[:, host]]] = False
        # Every read of a weight by an op on the device, in graph order
        source = a.producer[a.inputs]
        is_read = a.is_weight[source] & a.scheduled[a.reader] & (base_placement[a.reader] == device)
        reader, source, size = a.reader[is_read], source[is_read], a.sizes[a.inputs[is_read]]
        is_movable = movable[a.unit[source]]
        units, first_read, unit = np.unique(
            a.unit[source[is_movable]], return_index=True, return_inverse=True
        )
        order = np.argsort(first_read)
        self.units = units[order]
        self.bytes = np.bincount(a.unit, weights=a.resident)[self.units].astype(np.int64)
        self.read_count = np.bincount(unit, minlength=len(units))[order]
        self.fixed_bytes = int(a.resident[base_placement == device].sum() - self.bytes.sum())
        self.read_op, self.read_bytes, self.read_unit = (
            reader[is_movable],
            size[is_movable],
            np.argsort(order)[unit],
        )
        # With a staging buffer, weights of other devices are streamed too.
        is_elsewhere = base_placement[source] != device
        self.other_bytes = _sum_by_group(reader[is_elsewhere], size[is_elsewhere], a.ops)

    def plans(self, free_bytes: int, lookahead: int) -> list[tuple[Flags, int]]:
        """The units that stay on the device, and the staging buffer for the others."""
        no_units = np.zeros(len(self.units), dtype=bool)
        selections = [
            (no_units, select) for select in (_first_units, _even_spread, self._most_read)
        ]
        selections += [(pinned, _smallest_units) for pinned in self._large_units()]
        return [
            self._plan(pinned, select, free_bytes - self.fixed_bytes, lookahead)
            for pinned, select in selections
        ]

    def _plan(
        self, pinned: Flags, select: Selection, free_bytes: int, lookahead: int
    ) -> tuple[Flags, int]:
        """The pinned units stay, and those that are selected from the others."""
        resident, space = pinned, free_bytes - int(self.bytes[pinned].sum())
        # The buffer depends on the streamed units, and these on the buffer: start with all.
        for _ in range(2):
            staging = self._staging_bytes(resident, lookahead)
            selection = pinned.copy()
            selection[~pinned] = select(self.bytes[~pinned], space - staging)
            if self._staging_bytes(selection, lookahead) > staging:
                break
            resident = selection
        return resident, self._staging_bytes(resident, lookahead)

    def _large_units(self) -> list[Flags]:
        """Units that stay because of their size: none, or those that need the largest buffer."""
        cap = int(self.bytes.max())
        unit_sets = [self.bytes > cap]
        while len(unit_sets) < SIZE_CAPS and (self.bytes <= cap // 2).any():
            cap = int(self.bytes[self.bytes <= cap // 2].max())
            unit_sets.append(self.bytes > cap)
        return unit_sets

    def placement(self, resident: Flags) -> NDArray[np.int32]:
        is_streamed = np.isin(self.unit_of, self.units[~resident])
        return np.where(is_streamed, np.int32(self.host), self.base_placement)

    def _staging_bytes(self, resident: Flags, lookahead: int) -> int:
        """The most bytes that the copies for `lookahead` consecutive readers take."""
        streamed = ~resident[self.read_unit]
        op_bytes = self.other_bytes + _sum_by_group(
            self.read_op[streamed], self.read_bytes[streamed], self.ops
        )
        op_bytes = op_bytes[op_bytes > 0]
        ends = np.concatenate([[0], op_bytes.cumsum()])
        count = min(lookahead, len(op_bytes))
        return int((ends[count:] - ends[: len(ends) - count]).max())

    def _most_read(self, sizes: Sizes, free_bytes: int) -> Flags:
        return _greedy_fill(sizes, np.argsort(-self.read_count, kind="stable"), free_bytes)


def _sum_by_group(group: Sizes, sizes: Sizes, count: int) -> Sizes:
    return np.bincount(group, weights=sizes, minlength=count).astype(np.int64)


def _first_units(sizes: Sizes, free_bytes: int) -> Flags:
    """As many of the first units as fit, then whichever of the others still fit."""
    return _greedy_fill(sizes, np.arange(len(sizes)), free_bytes)


def _even_spread(sizes: Sizes, free_bytes: int) -> Flags:
    """An even share of every part of the graph."""
    share = max(0.0, free_bytes / max(1, sizes.sum()))
    resident, used_bytes, total_bytes = np.zeros(len(sizes), dtype=bool), 0, 0
    for unit, size in enumerate(sizes.tolist()):
        total_bytes += size
        if used_bytes + size <= min(free_bytes, share * total_bytes):
            resident[unit], used_bytes = True, used_bytes + size
    return resident


def _smallest_units(sizes: Sizes, free_bytes: int) -> Flags:
    """All units of the smaller sizes, and an even share of the first size that does not fit."""
    values, counts = np.unique(sizes, return_counts=True)
    ends = np.concatenate([[0], np.cumsum(values * counts)])
    complete = int(np.searchsorted(ends[1:], free_bytes, side="right"))
    if complete == len(values):
        return np.ones(len(sizes), dtype=bool)
    resident: Flags = sizes < values[complete]
    equal_units = np.flatnonzero(sizes == values[complete])
    count = max(0, free_bytes - int(ends[complete])) // max(1, int(values[complete]))
    resident[equal_units[(2 * np.arange(count) + 1) * len(equal_units) // max(1, 2 * count)]] = True
    return resident


def _greedy_fill(sizes: Sizes, order: Sizes, free_bytes: int) -> Flags:
    resident, used_bytes = np.zeros(len(sizes), dtype=bool), 0
    for unit in order.tolist():
        if used_bytes + sizes[unit] <= free_bytes:
            resident[unit], used_bytes = True, used_bytes + sizes[unit]
    return resident
