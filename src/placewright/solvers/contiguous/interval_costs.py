"""Interval costs: the cost of every run of consecutive nodes of an order as a stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.solvers.contiguous.stage_costs import AFTER, BEFORE, SENT, StageCosts, StageMemory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.solvers.contiguous.coarse_graph import CoarseGraph
    from placewright.solvers.contiguous.stage_costs import Ints, Seconds, TransferParts


class IntervalCosts(StageCosts):
    """The points are prefixes of an order; all stages between them are computed at once.

    A tensor counts for the stages [i, j) of one or a few rectangles in (i, j), so all of them are
    summed with two running sums.

    Args:
        order: Nodes, first to last.
        cut_points: Where the order may be cut, from 0 to its length; by default everywhere.
    """

    def __init__(
        self,
        coarse: CoarseGraph,
        order: Ints,
        memory: StageMemory,
        share: float = 1.0,
        cut_points: Ints | None = None,
    ) -> None:
        self.order = order
        self.cut_points = np.arange(len(order) + 1) if cut_points is None else cut_points
        self.points = len(self.cut_points)
        # Nodes without a cut point between them have one position.
        self._position = np.empty(len(order), dtype=np.int64)
        self._position[order] = (
            np.searchsorted(self.cut_points, np.arange(len(order)), side="right") - 1
        )
        self._sort_readers(coarse)
        super().__init__(coarse, memory, share)
        self._precompute = True

    def point_totals(self, values: NDArray[np.generic]) -> NDArray[np.float64]:
        ordered = values[self.order].astype(np.float64)
        sums = np.concatenate([np.zeros((1, *ordered.shape[1:])), ordered.cumsum(axis=0)])
        return sums[self.cut_points]

    def is_subset(self, sources: Ints, targets: Ints) -> NDArray[np.bool_]:
        inside: NDArray[np.bool_] = targets[:, None] > sources[None]
        return inside

    def stage_nodes(self, source: int, target: int) -> Ints:
        return self.order[self.cut_points[source] : self.cut_points[target]]

    def _sort_readers(self, coarse: CoarseGraph) -> None:
        """Each tensor's producer and readers as positions in the order, readers sorted."""
        boundary = coarse.boundary
        self._producer = np.where(boundary.producer >= 0, self._position[boundary.producer], -1)
        self._tensor = np.repeat(np.arange(len(boundary)), np.diff(boundary.first_reader))
        reader = self._position[boundary.readers]
        self._reader = reader[np.lexsort((reader, self._tensor))]
        is_first = np.zeros(len(reader), dtype=bool)
        is_first[boundary.first_reader[:-1][np.diff(boundary.first_reader) > 0]] = True
        self._previous_reader = np.where(is_first, -1, np.roll(self._reader, 1))

    def transfer_seconds(
        self, parts: TransferParts, leaving: NDArray[np.bool_], sources: Ints, targets: Ints
    ) -> Seconds:
        area = np.zeros((self.points + 1, self.points + 1))  # by source, then target
        tensor, reader, previous = self._tensor, self._reader, self._previous_reader
        producer = self._producer[tensor]
        end = np.full(len(tensor), self.points - 1)
        for part, seconds in parts.items():
            if part == SENT:
                self._add_sends(area, seconds, leaving)
                continue
            if part == BEFORE:  # made < source, earlier reader < source <= reader < target
                mask = (producer >= 0) & (reader > producer)
                rows = (np.maximum(previous, producer) + 1, reader)
                columns = (reader + 1, end)
            elif part == AFTER:  # the same, but target <= made
                mask = reader < producer
                rows, columns = (previous + 1, reader), (reader + 1, producer)
            else:  # from a fixed op
                mask = producer < 0
                rows, columns = (previous + 1, reader), (reader + 1, end)
            _add_rectangles(
                area,
                (rows[0][mask], rows[1][mask]),
                (columns[0][mask], columns[1][mask]),
                seconds[tensor][mask],
            )
        if not area.any():
            return np.zeros((1, 1))
        for row in range(1, self.points):  # faster than cumsum over the first axis
            area[row] += area[row - 1]
        area.cumsum(axis=1, out=area)
        seconds_moved = area[np.ix_(sources, targets)].T
        return np.maximum(seconds_moved, 0.0, out=seconds_moved)

    def _add_sends(self, area: Seconds, seconds: Seconds, leaving: NDArray[np.bool_]) -> None:
        """A tensor made in the stage is sent unless all its readers are there too."""
        producer = self._producer
        lowest, highest = producer.copy(), producer.copy()
        np.minimum.at(lowest, self._tensor, self._reader)
        np.maximum.at(highest, self._tensor, self._reader)
        has_node = producer >= 0
        zero, end = np.zeros(len(producer), dtype=np.int64), np.full(len(producer), self.points - 1)
        for mask, low, high, sign in (
            (has_node, producer, producer, 1.0),
            (has_node & ~leaving, lowest, highest, -1.0),
        ):
            rows = (zero[mask], low[mask])
            _add_rectangles(area, rows, (high[mask] + 1, end[mask]), sign * seconds[mask])


def _add_rectangles(
    area: Seconds, rows: tuple[Ints, Ints], columns: tuple[Ints, Ints], value: Seconds
) -> None:
    """Mark rectangles, both ends included, for two running sums to fill."""
    for row, upper in ((rows[0], 1.0), (rows[1] + 1, -1.0)):
        for column, lower in ((columns[0], 1.0), (columns[1] + 1, -1.0)):
            np.add.at(area, (row, column), value * (upper * lower))


def cheap_cut_points(coarse: CoarseGraph, order: Ints, max_cuts: int) -> Ints:
    """Cut points of an order: the cheapest position in each of `max_cuts` segments of equal work.

    The cheapest is where the crossing tensors take the least time to send.
    """
    count, boundary = len(order), coarse.boundary
    if count < max_cuts:
        return np.arange(count + 1)
    position = np.empty(count, dtype=np.int64)
    position[order] = np.arange(count)
    tensor = np.repeat(np.arange(len(boundary)), np.diff(boundary.first_reader))
    lowest = np.where(boundary.producer >= 0, position[boundary.producer], count)
    highest = np.where(boundary.producer >= 0, position[boundary.producer], -1)
    np.minimum.at(lowest, tensor, position[boundary.readers])
    np.maximum.at(highest, tensor, position[boundary.readers])
    crossing = np.zeros(count + 1)  # entry i is the position before node i
    crosses = lowest < highest
    seconds = boundary.seconds.max(axis=0, initial=0.0)[crosses]
    np.add.at(crossing, lowest[crosses] + 1, seconds)
    np.subtract.at(crossing, highest[crosses] + 1, seconds)
    crossing = crossing.cumsum()
    work = coarse.fastest_seconds[order].cumsum()
    bucket = np.minimum(
        (work[:-1] / max(work[-1], 1e-300) * max_cuts).astype(np.int64), max_cuts - 1
    )
    inner = np.arange(1, count)
    ranked = np.lexsort((inner, crossing[1:count], bucket))
    cheapest = np.unique(bucket[ranked], return_index=True)[1]
    return np.concatenate([[0], np.sort(inner[ranked[cheapest]]), [count]])
