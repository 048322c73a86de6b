"""Outcome: what a batch of plans was judged to take, by the simulator or by measurement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Outcome:
    """Objectives and memory overflow of plans, one entry per plan.

    Args:
        seconds: The objective; infinity for a plan that could not be run.
        overflow: Bytes over the memory limits, all devices together.
        overflow_share: Bytes over, as a share of each device's memory, summed over devices.
    """

    seconds: NDArray[np.float64]
    overflow: NDArray[np.int64]
    overflow_share: NDArray[np.float64]

    @property
    def feasible(self) -> NDArray[np.bool_]:
        """Whether each plan fits and could be run."""
        feasible: NDArray[np.bool_] = (self.overflow == 0) & np.isfinite(self.seconds)
        return feasible
