"""Longest and shortest paths to the graph's end, for many placements at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.transforms._path_lengths import PathKernel

if TYPE_CHECKING:
    from placewright.problem_arrays import Arrays

Seconds = NDArray[np.float64]
Placements = NDArray[np.int32]


class PathLengths:
    """The edges between scheduled ops, from the graph's end."""

    def __init__(self, a: Arrays) -> None:
        self.a = a
        reader = a.reader.astype(np.int32)
        source = a.producer[a.inputs]
        scheduled_edges = np.flatnonzero(a.scheduled[source] & a.scheduled[reader])
        edges = scheduled_edges[np.argsort(-source[scheduled_edges], kind="stable")]
        seconds = np.where(a.scheduled[:, None], a.compute, 0.0)
        self._kernel = PathKernel(
            source[edges], reader[edges], a.inputs[edges], seconds, a.link_class, a.transfer
        )

    def bottom_levels(self, placement: Placements) -> Seconds:
        """Plans × ops: the longest path from an op's start to the graph's end, transfers included.

        Nothing waits for a device or a channel.
        """
        return self._kernel.longest(np.atleast_2d(placement))

    def time_to_send(self, placement: Placements) -> Seconds:
        """Plans × ops: the shortest path from an op's end to a send to another device; or inf."""
        return self._kernel.shortest(np.atleast_2d(placement))
