"""Flow: a problem's arrays in, longest and shortest ways to the end for many placements out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.arrays import Arrays

Seconds = NDArray[np.float64]
Devices = NDArray[np.int32]

_MOST = 4_000_000  # edges × plans worked on at once: 32 MB a table


class Flow:
    """The edges between ops that take a turn, in layers from the graph's end.

    An op's readers are all in layers before its own, so that a layer is worked out at once, for all
    plans side by side: ops × plans, as a layer then reads whole rows.
    """

    def __init__(self, a: Arrays) -> None:
        self.a = a
        reader = np.repeat(np.arange(a.ops), np.diff(a.first_input))
        source = a.producer[a.inputs]
        real = a.turn[source] & a.turn[reader]
        reader, source, tensor = reader[real], source[real], a.inputs[real]
        height = np.zeros(a.ops, dtype=np.int64)
        for edge in np.argsort(-source, kind="stable").tolist():  # an op's own edges come in a row
            height[source[edge]] = max(height[source[edge]], height[reader[edge]] + 1)
        order = np.lexsort((source, height[source]))
        self._reader, self._source, self._tensor = reader[order], source[order], tensor[order]
        first = np.flatnonzero(np.diff(self._source, prepend=-1))
        layer = height[self._source[first]]
        ends = np.flatnonzero(np.diff(layer, append=-1)) + 1
        self._layers: list[tuple[NDArray[np.intp], int, int]] = []
        """For each layer where the edges of its ops begin, and its edges' own begin and end."""
        begin = 0
        for end in ends.tolist():
            stop = int(first[end]) if end < len(first) else len(self._source)
            self._layers.append((first[begin:end], int(first[begin]), stop))
            begin = end
        self._ways = np.vstack([a.transfer, np.zeros((1, len(a.sizes)))])  # row -1: no way to go

    def bottom_levels(self, device: Devices) -> Seconds:
        """Plans × ops: the longest way from an op's start to the graph's end, transfers included.

        Devices and channels are taken to be free.
        """
        return self._by_parts(device, self._longest)

    def until_sent(self, device: Devices) -> Seconds:
        """Plans × ops: the shortest way from an op's end to a send to another device; or inf."""
        return self._by_parts(device, self._shortest)

    def _by_parts(self, device: Devices, work: Callable[[Devices], Seconds]) -> Seconds:
        rows = np.atleast_2d(device)
        part = max(1, _MOST // max(1, len(self._source)))
        done = [work(rows[at : at + part].T) for at in range(0, len(rows), part)]
        return np.ascontiguousarray(np.concatenate(done, axis=1).T)

    def _seconds(self, place: Devices) -> Seconds:
        a = self.a
        seconds = a.compute[np.arange(a.ops)[:, None], place]
        return np.where(a.turn[:, None], seconds, 0.0)

    def _longest(self, place: Devices) -> Seconds:
        level = self._seconds(place)
        way = self.a.link_class[place[self._source], place[self._reader]]
        sending = self._ways[way, self._tensor[:, None]]
        for first, begin, end in self._layers:
            ahead = level[self._reader[begin:end]] + sending[begin:end]
            level[self._source[first]] += np.maximum.reduceat(ahead, first - begin, axis=0)
        return level

    def _shortest(self, place: Devices) -> Seconds:
        seconds = self._seconds(place)
        ahead = np.full(place.shape, np.inf)
        sent = place[self._source] != place[self._reader]
        for first, begin, end in self._layers:
            reader = self._reader[begin:end]
            way = np.where(sent[begin:end], 0.0, seconds[reader] + ahead[reader])
            ahead[self._source[first]] = np.minimum.reduceat(way, first - begin, axis=0)
        return ahead
