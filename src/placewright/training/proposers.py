"""Proposers by name, for `auto`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.errors import ConfigError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.solvers.proposer import Proposer


def _scout() -> Proposer:
    from placewright.solvers.move_scorer import Scout

    return Scout()


def _pair() -> Proposer:
    from placewright.policies.proposers import LinearProposer

    return LinearProposer()


def _go() -> Proposer:
    from placewright.training.go.proposer import GoProposer

    return GoProposer.shipped()


PROPOSERS: dict[str, Callable[[], Proposer]] = {"scout": _scout, "pair": _pair, "go": _go}
"""Proposers by name; only GO needs torch."""

ADVISERS = {name: PROPOSERS[name] for name in ("pair", "go")}
"""Those with move probabilities for a given plan."""

DEFAULT = "scout"
"""The default of `auto`: the best in `benchmarks/proposers/compare.py`."""


def named(name: str) -> tuple[Proposer, ...]:
    """The proposers of that name; `none` is an empty tuple.

    Raises:
        ConfigError: There is none of that name.
        MissingDependency: It needs torch, and there is none.
    """
    if name == "none":
        return ()
    if name not in PROPOSERS:
        raise ConfigError(f"no proposer is named {name!r}: {nearest(name, [*PROPOSERS, 'none'])}")
    return (PROPOSERS[name](),)
