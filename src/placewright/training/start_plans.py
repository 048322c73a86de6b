"""Start times of each op under given placements, by the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.plan import Plan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem


def start_times(problem: Problem, placements: NDArray[np.int32]) -> NDArray[np.float64]:
    """Plans × ops: seconds; equal plans are simulated once."""
    distinct, inverse = np.unique(placements, axis=0, return_inverse=True)
    starts = [
        simulator.simulate(problem, Plan.of(problem, placement)).start for placement in distinct
    ]
    return np.stack(starts)[inverse.reshape(-1)]
