"""Ranks of ops: mean seconds, mean transfers and the mean path to the end of the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from placewright.problem import Problem

Seconds = NDArray[np.float64]


def upward_ranks(problem: Problem) -> Seconds:
    """Each op's mean way to the end of the graph in seconds (Topcuoglu et al. 2002, Eq. 8)."""
    a = problem.arrays
    seconds, transfer = mean_seconds(problem), mean_transfer(problem)
    first, readers = a.first_reader.tolist(), a.readers.tolist()
    first_tensor = a.first_tensor.tolist()
    ranks = [0.0] * a.ops
    for op in range(a.ops - 1, -1, -1):
        longest = 0.0
        for tensor in range(first_tensor[op], first_tensor[op + 1]):
            for reader in readers[first[tensor] : first[tensor + 1]]:
                longest = max(longest, transfer[tensor] + ranks[reader])
        ranks[op] = seconds[op] + longest
    return np.array(ranks)


def mean_seconds(problem: Problem) -> list[float]:
    """Each op's seconds, the mean over the devices it may be on; nothing for what takes no turn."""
    a = problem.arrays
    mean = np.where(a.allowed, a.compute, 0.0).sum(axis=1) / a.allowed.sum(axis=1)
    return list(np.where(a.scheduled, mean, 0.0).tolist())


def mean_transfer(problem: Problem) -> list[float]:
    """Each tensor's seconds over a link, the mean over all ordered pairs of devices."""
    a = problem.arrays
    classes = a.link_class[a.link_class >= 0]
    if not len(classes):
        return [0.0] * len(a.sizes)
    share = np.bincount(classes, minlength=len(a.transfer)) / len(classes)
    return list((share @ a.transfer).tolist())
