"""The trained policies that ship with the library, by name."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from placewright.errors import ConfigError, nearest
from placewright.policies.transfer.linear import LinearPolicy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from placewright.policies.policy import Policy

WEIGHTS_FOLDER = Path(__file__).parent / "weights"
"""The folder of trained policies, which the scripts of `benchmarks/train` write."""

SHIPPED = ("pair", "placeto", "go")
"""All work with any devices; `placeto` is the policy named `placeto-any`."""


@cache
def shipped_policy(name: str) -> Policy:
    """The trained policy of that name, read once.

    Raises:
        ConfigError: There is none of that name.
        MissingDependency: It needs torch.
    """
    if name not in SHIPPED:
        raise ConfigError(f"no policy named {name!r} ships: {nearest(name, SHIPPED)}")
    if name == "pair":
        return shipped_linear()
    from placewright import policies

    return policies.load(WEIGHTS_FOLDER / f"{name}.json")


@cache
def shipped_linear() -> LinearPolicy:
    """The shipped linear policy, which needs no torch."""
    return LinearPolicy.load(WEIGHTS_FOLDER / "pair.json")


def linear_weights() -> NDArray[np.float64]:
    """The weights of the shipped linear policy, in the order of its features."""
    return shipped_linear().weights.copy()
