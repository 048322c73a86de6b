"""Fuses ops on the same device, in order of urgency or as a compiler would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewright import transforms
from placewright.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from placewright.problem import Problem


def fuse_by_urgency(
    problem: Problem, placements: NDArray[np.int32], urgency: NDArray[np.float64]
) -> NDArray[np.int32]:
    """Plans × ops: the fused group of each op, or -1, for plans × ops.

    Raises:
        ConfigError: This release cannot fuse by urgency.
    """
    fusion: NDArray[np.int32] = _transform("fuse")(problem, placements, urgency)
    return fusion


def fuse_greedily(problem: Problem, placements: NDArray[np.int32]) -> NDArray[np.int32]:
    """The same as a compiler would fuse, whoever is urgent.

    Raises:
        ConfigError: This release cannot fuse so.
    """
    fusion: NDArray[np.int32] = _transform("greedy")(problem, placements)
    return fusion


def _transform(name: str) -> Any:
    function = getattr(transforms, name, None)
    if function is None:
        raise ConfigError(
            "the policy decides on fusion, which this release cannot carry out: "
            "leave the task 'fusion' out"
        )
    return function
