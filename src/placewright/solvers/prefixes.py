"""Stages of an order: pieces in a row in, the cost of every stretch of them out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.solvers.stage_costs import AFTER, BEFORE, SENT, Room, StageCosts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.solvers.fleet import Seat
    from placewright.solvers.pieces import Pieces
    from placewright.solvers.stage_costs import Ints, Parts, Seconds


class Prefixes(StageCosts):
    """The points are the prefixes of an order; all n² stages are worked out at once.

    A tensor counts for the stages [i, j) of one or a few rectangles in (i, j), so all of them are
    added up with two running sums.

    Args:
        order: Pieces, first to last.
    """

    def __init__(self, pieces: Pieces, order: Ints, room: Room, share: float = 1.0) -> None:
        self.order = order
        self.size = len(order) + 1
        self._place = np.empty(len(order), dtype=np.int64)
        self._place[order] = np.arange(len(order))
        self._sort_readers(pieces)
        self._kept: dict[Seat, Seconds] = {}
        super().__init__(pieces, room, share)

    def total(self, values: NDArray[np.generic]) -> NDArray[np.float64]:
        ordered = values[self.order].astype(np.float64)
        return np.concatenate([np.zeros((1, *ordered.shape[1:])), ordered.cumsum(axis=0)])

    def within(self, sources: Ints, targets: Ints) -> NDArray[np.bool_]:
        inside: NDArray[np.bool_] = targets[:, None] > sources[None]
        return inside

    def members(self, source: int, target: int) -> Ints:
        return self.order[source:target]

    def seconds(self, seat: Seat, sources: Ints, targets: Ints, bound: float) -> Seconds:
        if seat not in self._kept:
            every = np.arange(self.size)
            self._kept[seat] = super().seconds(seat, every, every, np.inf)
        some = self._kept[seat][targets[0] : targets[-1] + 1]  # targets are a stretch
        return some[:, sources]

    def _sort_readers(self, pieces: Pieces) -> None:
        """Each tensor's producer and readers as places in the order, readers sorted."""
        handed = pieces.handed
        self._producer = np.where(handed.producer >= 0, self._place[handed.producer], -1)
        self._tensor = np.repeat(np.arange(len(handed)), np.diff(handed.first))
        reader = self._place[handed.readers]
        self._reader = reader[np.lexsort((reader, self._tensor))]
        begins = np.zeros(len(reader), dtype=bool)
        begins[handed.first[:-1][np.diff(handed.first) > 0]] = True
        self._earlier = np.where(begins, -1, np.roll(self._reader, 1))

    def moved(
        self, parts: Parts, leaving: NDArray[np.bool_], sources: Ints, targets: Ints
    ) -> Seconds:
        area = np.zeros((self.size + 1, self.size + 1))  # by source, then target
        tensor, reader, earlier = self._tensor, self._reader, self._earlier
        made = self._producer[tensor]
        end = np.full(len(tensor), self.size - 1)
        for part, seconds in parts.items():
            if part == SENT:
                self._send(area, seconds, leaving)
                continue
            if part == BEFORE:  # made < source, earlier reader < source <= reader < target
                some = (made >= 0) & (reader > made)
                rows = (np.maximum(earlier, made) + 1, reader)
                columns = (reader + 1, end)
            elif part == AFTER:  # the same, but target <= made
                some = reader < made
                rows, columns = (earlier + 1, reader), (reader + 1, made)
            else:  # from an op set apart
                some = made < 0
                rows, columns = (earlier + 1, reader), (reader + 1, end)
            _add(
                area,
                (rows[0][some], rows[1][some]),
                (columns[0][some], columns[1][some]),
                seconds[tensor][some],
            )
        if not area.any():
            return np.zeros((1, 1))
        for row in range(1, self.size):  # quicker than cumsum over the first axis
            area[row] += area[row - 1]
        area.cumsum(axis=1, out=area)
        moved = area[np.ix_(sources, targets)].T
        return np.maximum(moved, 0.0, out=moved)

    def _send(self, area: Seconds, seconds: Seconds, leaving: NDArray[np.bool_]) -> None:
        """A tensor made in the stage is sent unless all its readers are there too."""
        made = self._producer
        lowest, highest = made.copy(), made.copy()
        np.minimum.at(lowest, self._tensor, self._reader)
        np.maximum.at(highest, self._tensor, self._reader)
        inside = made >= 0
        zero, end = np.zeros(len(made), dtype=np.int64), np.full(len(made), self.size - 1)
        for some, low, high, sign in (
            (inside, made, made, 1.0),
            (inside & ~leaving, lowest, highest, -1.0),
        ):
            rows = (zero[some], low[some])
            _add(area, rows, (high[some] + 1, end[some]), sign * seconds[some])


def _add(
    area: Seconds, rows: tuple[Ints, Ints], columns: tuple[Ints, Ints], value: Seconds
) -> None:
    """Mark rectangles, both ends included, for two running sums to fill."""
    for row, upper in ((rows[0], 1.0), (rows[1] + 1, -1.0)):
        for column, lower in ((columns[0], 1.0), (columns[1] + 1, -1.0)):
            np.add.at(area, (row, column), value * (upper * lower))
