"""Start times: a problem and placements in, when each op starts in each out, by the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.plan import Plan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem


def start_times(problem: Problem, device: NDArray[np.int32]) -> NDArray[np.float64]:
    """Plans × ops: seconds; equal plans are simulated once."""
    rows, which = np.unique(device, axis=0, return_inverse=True)
    found = [simulator.simulate(problem, Plan.of(problem, row)).start for row in rows]
    return np.stack(found)[which.reshape(-1)]
