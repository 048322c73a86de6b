"""List scheduling shared by HEFT, CPoP, m-ETF and m-SCT: ranks, and estimated times and bytes.

HEFT, CPoP, m-ETF and m-SCT share this arithmetic. It is an estimate: the simulator has the last
word.
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
        """The devices of all ops; what nothing added reads goes where the problem settles it."""
        fallback = problem.legalize(np.maximum(self.device, 0))
        return np.where(self.device < 0, fallback, self.device)
