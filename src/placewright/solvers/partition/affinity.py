"""Affinity: the seconds of tensors that pairs of groups pass to each other.

Partitioners and repair see a graph as groups of ops and what it costs to keep two groups apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.scheduling.ranks import mean_transfer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem


@dataclass(frozen=True, eq=False)
class Affinity:
    """Pairs of groups that pass tensors, each pair once, and the seconds of sending them.

    A tensor goes once to each device that reads it, so to no more than all others, however many
    groups read it. Its seconds are shared out over its readers such that parting it from all of
    them costs what sending it to all other devices would.
    """

    group: NDArray[np.int64]  # ties: the smaller group number
    other_group: NDArray[np.int64]  # ties
    seconds: NDArray[np.float64]  # ties: over a link of average speed

    @classmethod
    def between_groups(cls, problem: Problem, group: NDArray[np.integer], devices: int) -> Affinity:
        """The ties of groups of ops.

        Args:
            group: Each op's group, numbered from 0.
            devices: How many devices the groups are shared out over.
        """
        a = problem.arrays
        count = int(group.max()) + 1
        source, target = group[a.producer[a.inputs]], group[a.reader]
        crosses = (source != target) & a.scheduled[a.reader]
        # A group that reads a tensor with several ops gets it once.
        pair = np.unique(a.inputs[crosses].astype(np.int64) * count + target[crosses])
        tensor, target = pair // count, pair % count
        source = group[a.producer[tensor]].astype(np.int64)
        readers = np.bincount(tensor, minlength=len(a.sizes))[tensor]
        seconds = mean_transfer(a)[tensor]
        seconds = seconds * np.minimum(1.0, max(1, devices - 1) / np.maximum(readers, 1))
        pairs, pair_index = np.unique(
            np.minimum(source, target) * count + np.maximum(source, target), return_inverse=True
        )
        return cls(
            pairs // count,
            pairs % count,
            np.bincount(pair_index, weights=seconds, minlength=len(pairs)).astype(np.float64),
        )

    def seconds_by_device(
        self, device: NDArray[np.integer], groups: int, devices: int
    ) -> NDArray[np.float64]:
        """Groups × places: the seconds that tie each group to all the groups at each place."""
        ends = np.concatenate([self.group, self.other_group])
        others = np.concatenate([self.other_group, self.group])
        cells = np.bincount(
            ends * devices + device[others],
            weights=np.concatenate([self.seconds, self.seconds]),
            minlength=groups * devices,
        )
        return cells.astype(np.float64).reshape(groups, devices)


def link_seconds(problem: Problem) -> NDArray[np.float64]:
    """Devices × devices: what an average tensor takes from one to the other."""
    a = problem.arrays
    if not a.transfer.size:
        return np.zeros((a.devices, a.devices))
    mean = np.append(a.transfer.mean(axis=1), 0.0)  # class -1 is a device's way to itself
    seconds: NDArray[np.float64] = mean[a.link_class]
    return seconds
