"""Ranks of ops: mean seconds, mean transfers, and mean paths to and from each op.

Topcuoglu, Hariri and Wu 2002, IEEE TPDS 13(3). Times are means because no op has a device yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from placewright.problem_arrays import Arrays

Seconds = NDArray[np.float64]


def upward_ranks(a: Arrays) -> Seconds:
    """The longest mean path from each op to the end of the graph, the op included (Eq. 8)."""
    seconds, transfer = mean_seconds(a).tolist(), mean_transfer(a).tolist()
    first_reader, readers = a.first_reader.tolist(), a.readers.tolist()
    first_tensor = a.first_tensor.tolist()
    ranks = [0.0] * a.ops
    for op in range(a.ops - 1, -1, -1):
        longest = 0.0
        for tensor in range(first_tensor[op], first_tensor[op + 1]):
            for reader in readers[first_reader[tensor] : first_reader[tensor + 1]]:
                longest = max(longest, transfer[tensor] + ranks[reader])
        ranks[op] = seconds[op] + longest
    return np.array(ranks)


def downward_ranks(a: Arrays, from_unscheduled: bool = False) -> Seconds:
    """The longest mean path from the start of the graph to each op, the op excluded (Eq. 9).

    Args:
        from_unscheduled: Whether a path may begin with the transfer of a weight, a state or an
            input, which exist before the step.
    """
    seconds, transfer = mean_seconds(a).tolist(), mean_transfer(a).tolist()
    is_counted = [True] * a.ops if from_unscheduled else a.scheduled.tolist()
    producer = a.producer.tolist()
    first_input, inputs = a.first_input.tolist(), a.inputs.tolist()
    ranks = [0.0] * a.ops
    for op in range(a.ops):
        for tensor in inputs[first_input[op] : first_input[op + 1]]:
            source = producer[tensor]
            if is_counted[source]:
                ranks[op] = max(ranks[op], ranks[source] + seconds[source] + transfer[tensor])
    return np.array(ranks)


def mean_seconds(a: Arrays) -> Seconds:
    """Each op's seconds, the mean over the devices it may be on; 0 for unscheduled ops."""
    mean = np.where(a.allowed, a.compute, 0.0).sum(axis=1) / a.allowed.sum(axis=1)
    return np.where(a.scheduled, mean, 0.0)


def mean_transfer(a: Arrays) -> Seconds:
    """Each tensor's seconds over a link, the mean over all ordered pairs of devices."""
    classes = a.link_class[a.link_class >= 0]
    if not len(classes):
        return np.zeros(len(a.sizes))
    share = np.bincount(classes, minlength=len(a.transfer)) / len(classes)
    mean: Seconds = share @ a.transfer
    return mean
