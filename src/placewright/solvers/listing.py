"""List scheduling: ops in one by one with their devices, estimated times and bytes out.

HEFT, CPoP, m-ETF and m-SCT share this arithmetic. It is an estimate: the simulator has the last
word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.solvers import _listing

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.problem import Problem
    from placewright.solvers.search import Search

Seconds = NDArray[np.float64]
Bytes = NDArray[np.int64]

_TRIES = 4  # to make a schedule fit whose estimate of memory was too low


class Listing(_listing.Listing):
    """A schedule under construction, in compiled code.

    Ops must be added in a topological order. An op fixes the device of its whole unit; a weight
    that has no device yet goes with the first op added that reads it. `device`, `start` and `end`
    are of ops, `free` (when it has done all it was given) and `used` (bytes) of devices.

    - `ready(op)`: when everything it reads could be on each device.
    - `choices(op)`: the devices with memory for it; if none has, where least is lacking.
    - `add(op, device, insert)`: after all that is there, or in the first gap that holds it.
    - `place(op, preferred)`: where it is preferred if there is memory, else where it ends first.
    - `earliest_first(late, rank, favourite)`: all ops as m-ETF and m-SCT have them.

    Args:
        contended: Whether transfers wait for their channel (as in the simulator) or not (as in the
            papers on list scheduling).
        kept_back: Bytes of each device's capacity to leave alone.
    """

    def __init__(
        self, problem: Problem, contended: bool = True, kept_back: Bytes | None = None
    ) -> None:
        a = problem.arrays
        super().__init__(a, contended, a.capacity if kept_back is None else a.capacity - kept_back)

    @property
    def step_time(self) -> float:
        return float(self.end.max())

    def placement(self, problem: Problem) -> NDArray[np.int32]:
        """The devices of all ops; what nothing added reads goes where the problem settles it."""
        rest = problem.settle(np.maximum(self.device, 0))
        return np.where(self.device < 0, rest, self.device)


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
    return list(np.where(a.turn, mean, 0.0).tolist())


def mean_transfer(problem: Problem) -> list[float]:
    """Each tensor's seconds over a link, the mean over all ordered pairs of devices."""
    a = problem.arrays
    classes = a.link_class[a.link_class >= 0]
    if not len(classes):
        return [0.0] * len(a.sizes)
    share = np.bincount(classes, minlength=len(a.transfer)) / len(classes)
    return list((share @ a.transfer).tolist())


def judge_schedule(search: Search, schedule: Callable[[Bytes], Listing]) -> None:
    """Judge a schedule's placement, with its own order and with none.

    Args:
        schedule: Makes one that keeps these bytes of each device back. The ledger only estimates
            memory: where the simulator finds too much, we try again with that much kept back.
    """
    a = search.problem.arrays
    kept_back = np.zeros(a.devices, dtype=np.int64)
    for _ in range(_TRIES):
        listing = schedule(kept_back)
        placement = listing.placement(search.problem)
        verdict = search.judge(
            np.stack([placement, placement]), np.stack([listing.start, np.arange(a.ops)])
        )
        if search.over:
            return
        over = np.maximum(verdict.peak[verdict.best()] - a.capacity, 0)
        if not over.any():
            return
        # Weights are large steps: keep back a share worth having, and more each time.
        kept_back = 2 * kept_back + np.where(over, np.maximum(over, a.capacity // 64), 0)
