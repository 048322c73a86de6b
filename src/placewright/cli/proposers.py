"""Proposers by name: what `auto` is given on the command line."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placewright.solvers.proposing import Proposer


class Name(StrEnum):
    """What learns with `auto`."""

    SCOUT = "scout"
    PAIR = "pair"
    GO = "go"
    NONE = "none"


DEFAULT = Name.SCOUT
"""What `auto` is given unless it is told: what wins in `benchmarks/proposers.py`."""


def named(name: Name) -> tuple[Proposer, ...]:
    """The proposers of that name.

    Raises:
        MissingDependency: It is GO, which alone of them needs torch, and there is none.
    """
    if name is Name.SCOUT:
        from placewright.solvers.scouting import Scout

        return (Scout(),)
    if name is Name.PAIR:
        from placewright.policies.proposing import PairProposer

        return (PairProposer(),)
    if name is Name.GO:
        from placewright.training.go_proposer import GoProposer

        return (GoProposer.shipped(),)
    return ()
