"""Fusing by urgency: devices and an urgency for each op in, fused groups out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    found: NDArray[np.int32] = _known("fuse")(problem, device, urgency)
    return found


def usual_fusions(problem: Problem, device: NDArray[np.int32]) -> NDArray[np.int32]:
    """The same as a compiler would fuse, whoever is urgent.

    Raises:
        ConfigError: This release cannot fuse so.
    """
    found: NDArray[np.int32] = _known("greedy")(problem, device)
    return found


def _known(name: str) -> Any:
    known = getattr(transforms, name, None)
    if known is None:
        raise ConfigError(
            "the policy decides on fusion, which this release cannot carry out: "
            "leave the task 'fusion' out"
        )
    return known
