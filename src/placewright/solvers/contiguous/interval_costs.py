"""Stages of an order: pieces in a row in, the cost of every stretch of them out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.solvers.contiguous.stage_costs import AFTER, BEFORE, SENT, Room, StageCosts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.solvers.contiguous.coarse_graph import Pieces
    from placewright.solvers.contiguous.stage_costs import Ints, Parts, Seconds


class Prefixes(StageCosts):
    """The points are prefixes of an order; all stages between them are worked out at once.

    A tensor counts for the stages [i, j) of one or a few rectangles in (i, j), so all of them are
    added up with two running sums.

    Args:
        order: Pieces, first to last.
        marks: Where the order may be cut, from 0 to its length; everywhere if it is silent.
    """

    def __init__(
        self,
        pieces: Pieces,
        order: Ints,
        room: Room,
        share: float = 1.0,
        marks: Ints | None = None,
    ) -> None:
        self.order = order
        self.marks = np.arange(len(order) + 1) if marks is None else marks
        self.size = len(self.marks)
        # Pieces with no mark between them have one place.
        self._place = np.empty(len(order), dtype=np.int64)
        self._place[order] = np.searchsorted(self.marks, np.arange(len(order)), side="right") - 1
        self._sort_readers(pieces)
        super().__init__(pieces, room, share)
        self._at_once = True

    def total(self, values: NDArray[np.generic]) -> NDArray[np.float64]:
        ordered = values[self.order].astype(np.float64)
        sums = np.concatenate([np.zeros((1, *ordered.shape[1:])), ordered.cumsum(axis=0)])
        return sums[self.marks]

    def within(self, sources: Ints, targets: Ints) -> NDArray[np.bool_]:
        inside: NDArray[np.bool_] = targets[:, None] > sources[None]
        return inside

    def members(self, source: int, target: int) -> Ints:
        return self.order[self.marks[source] : self.marks[target]]

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


def cheap_marks(pieces: Pieces, order: Ints, most: int) -> Ints:
    """Where to cut an order at most: in each of `most` stretches of equal work the cheapest place.

    Cheapest is where the tensors that cross take the least time to move.
    """
    count, handed = len(order), pieces.handed
    if count < most:
        return np.arange(count + 1)
    place = np.empty(count, dtype=np.int64)
    place[order] = np.arange(count)
    tensor = np.repeat(np.arange(len(handed)), np.diff(handed.first))
    lowest = np.where(handed.producer >= 0, place[handed.producer], count)
    highest = np.where(handed.producer >= 0, place[handed.producer], -1)
    np.minimum.at(lowest, tensor, place[handed.readers])
    np.maximum.at(highest, tensor, place[handed.readers])
    crossing = np.zeros(count + 1)  # marks stand before the piece of the same place
    crosses = lowest < highest
    seconds = handed.seconds.max(axis=0, initial=0.0)[crosses]
    np.add.at(crossing, lowest[crosses] + 1, seconds)
    np.subtract.at(crossing, highest[crosses] + 1, seconds)
    crossing = crossing.cumsum()
    done = pieces.least[order].cumsum()
    stretch = np.minimum((done[:-1] / max(done[-1], 1e-300) * most).astype(np.int64), most - 1)
    inner = np.arange(1, count)
    ranked = np.lexsort((inner, crossing[1:count], stretch))
    first = np.unique(stretch[ranked], return_index=True)[1]
    return np.concatenate([[0], np.sort(inner[ranked[first]]), [count]])
