"""Fusing by urgency: devices and an urgency for each op in, fused groups out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright import transforms
from placewright.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from placewright.problem import Problem


def fusions(
    problem: Problem, device: NDArray[np.int32], urgency: NDArray[np.float64]
) -> NDArray[np.int32]:
    """Plans × ops: the fused group of each op, or -1, for plans × ops.

    Raises:
        ConfigError: This release cannot fuse by urgency.
    """
    fuse = getattr(transforms, "fuse", None)
    if fuse is None:
        raise ConfigError(
            "the policy decides on fusion, which this release cannot carry out: "
            "leave the task 'fusion' out"
        )
    found: NDArray[np.int32] = fuse(problem, device, urgency)
    return found
