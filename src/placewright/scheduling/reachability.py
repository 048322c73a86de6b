"""Reachability between groups: which come before which, as bit sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def ancestors(
    count: int, source: NDArray[np.int64], target: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Items × items: whether the second item precedes the first on some path; never itself.

    One pass over the edges by rising target is enough where numbers are topological. Groups that
    are not convex may lie on cycles, so passes are repeated until nothing changes.
    """
    bits = np.packbits(np.eye(count, dtype=bool), axis=1)
    self_bits = bits.copy()
    order = np.lexsort((source, target))
    edges = list(zip(source[order].tolist(), target[order].tolist(), strict=True))
    while True:
        previous = bits.copy()
        for tail, head in edges:
            bits[head] |= bits[tail]
        if (bits == previous).all():
            break
    return np.unpackbits(bits & ~self_bits, axis=1, count=count).astype(bool)
