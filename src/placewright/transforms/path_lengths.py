"""Flow: a problem's arrays in, longest and shortest ways to the end for many placements out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.transforms._path_lengths import Ways

if TYPE_CHECKING:
    from placewright.arrays import Arrays

Seconds = NDArray[np.float64]
Devices = NDArray[np.int32]


class Flow:
    """The edges between ops that take a turn, from the graph's end."""

    def __init__(self, a: Arrays) -> None:
        self.a = a
        reader = np.repeat(np.arange(a.ops, dtype=np.int32), np.diff(a.first_input))
        source = a.producer[a.inputs]
        real = np.flatnonzero(a.turn[source] & a.turn[reader])
        edges = real[np.argsort(-source[real], kind="stable")]
        seconds = np.where(a.turn[:, None], a.compute, 0.0)
        self._ways = Ways(
            source[edges], reader[edges], a.inputs[edges], seconds, a.link_class, a.transfer
        )

    def bottom_levels(self, device: Devices) -> Seconds:
        """Plans × ops: the longest way from an op's start to the graph's end, transfers included.

        Devices and channels are taken to be free.
        """
        return self._ways.longest(np.atleast_2d(device))

    def until_sent(self, device: Devices) -> Seconds:
        """Plans × ops: the shortest way from an op's end to a send to another device; or inf."""
        return self._ways.shortest(np.atleast_2d(device))
