"""The list scheduler that HEFT, CPoP, m-ETF and m-SCT share.

It estimates times and bytes op by op; the simulator decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.scheduling import _list_scheduler

if TYPE_CHECKING:
    from placewright.problem import Problem

Bytes = NDArray[np.int64]


class ListSchedule(_list_scheduler.CompiledListSchedule):
    """A schedule under construction, in compiled code.

    Ops must be added in a topological order. An op fixes the device of its whole unit; a weight
    that has no device yet goes with the first op added that reads it. `device`, `start` and `end`
    are arrays over ops, `free` (when a device has run all its ops) and `used` (bytes) over devices.

    - `ready(op)`: when all inputs of an op could be on each device.
    - `choices(op)`: the devices with memory for it; if none has, the one that lacks least.
    - `add(op, device, insert)`: puts it behind the device's ops, or in the first long enough gap.
    - `place(op, preferred)`: puts it on the preferred device if there is memory, else where it
      ends first.
    - `earliest_first(late, rank, favourite)`: adds all ops as m-ETF and m-SCT do.

    Args:
        contended: Whether transfers wait for their channel (as in the simulator) or not (as in the
            papers on list scheduling).
        memory_margin: Bytes of each device's capacity to leave unused.
    """

    def __init__(
        self, problem: Problem, contended: bool = True, memory_margin: Bytes | None = None
    ) -> None:
        a = problem.arrays
        super().__init__(
            a, contended, a.capacity if memory_margin is None else a.capacity - memory_margin
        )

    @property
    def step_time(self) -> float:
        return float(self.end.max())

    def placement(self, problem: Problem) -> NDArray[np.int32]:
        """The devices of all ops; weights that no added op reads are placed by `legalize`."""
        fallback = problem.legalize(np.maximum(self.device, 0))
        return np.where(self.device < 0, fallback, self.device)
