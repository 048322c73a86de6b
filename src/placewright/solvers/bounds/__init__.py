"""Bounds: a problem in, seconds that no plan without fusion can beat out.

Each bound has a file and a proof in its docstring; the rules that proofs cite are those of
`simulator/reference.py`. Proofs are about real numbers: a bound is rounded down by more than what
the simulator's sums and its own can be off, and what a linear programme says is worked out again
from its prices alone (`Choices.bound`).
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from placewright.errors import ConfigError
from placewright.solvers.bounds.aggregates import Layout
from placewright.solvers.bounds.basic import (
    critical_chain,
    critical_path,
    largest_unit,
    work,
)
from placewright.solvers.bounds.cuts import every_cut
from placewright.solvers.bounds.longest_path import longest_way, times
from placewright.solvers.bounds.memory import memory
from placewright.solvers.bounds.neighbourhood import surroundings
from placewright.solvers.bounds.packing import Packing, packing
from placewright.solvers.bounds.patterns import patterns

if TYPE_CHECKING:
    from placewright.problem import Problem

Effort = Literal["quick", "thorough"]


@dataclass(frozen=True)
class Bound:
    """Seconds that no plan can beat, and why."""

    seconds: float
    name: str


@dataclass(frozen=True)
class _Effort:
    """How far to go, in counts, so that the same problem always has the same bound."""

    arrivals: int  # numbers worked out along the paths
    cuts: int  # arcs looked at, for the surroundings
    tries: int  # of T in the packing
    barring: int  # arcs looked at, in each of these
    cases: int  # of the largest weight that is sent
    nodes: int  # of the tree of whole choices of where weights live
    patterns: int  # squares of programmes for patterns


_EFFORTS = {
    "quick": _Effort(40_000_000, 200_000, 6, 60_000, 2, 20, 0),
    "thorough": _Effort(1_000_000_000, 10_000_000, 24, 2_000_000, 6, 500, 6_000_000),
}
_EQUAL = 1e-9  # bounds that differ by less are equal; then the plainer one is named
_TRIES = ((100, 4), (1000, 2), (np.inf, 1))  # most ops, factor: small problems can have more
_known: weakref.WeakKeyDictionary[Problem, dict[tuple[str, bool], Bound]]
_known = weakref.WeakKeyDictionary()


def bound(problem: Problem, effort: Effort = "quick", fits: bool = True) -> Bound:
    """The highest bound we can prove for the problem's objective; worked out once for a problem.

    Args:
        effort: `quick` takes about 0.1 s for 1,000 ops and a few seconds for 50,000; `thorough`
            takes up to some 20 s, most of it for the period.
        fits: The bound need hold only for plans within the memory limits. Without it, it holds
            for every plan.

    Raises:
        ConfigError: There is no such effort.
    """
    if effort not in _EFFORTS:
        raise ConfigError(f"effort {effort!r}: expected {' or '.join(map(repr, _EFFORTS))}")
    known = _known.setdefault(problem, {})
    if (effort, False) not in known:
        known[effort, False] = _always(problem, _EFFORTS[effort])
    if fits and (effort, True) not in known:
        known[effort, True] = _fitting(problem, _EFFORTS[effort], known[effort, False])
    return known[effort, fits]


def every_bound(problem: Problem, effort: Effort = "quick") -> list[Bound]:
    """Every bound for the problem's objective by itself, to see what each is worth."""
    asked, layout = _EFFORTS[effort], Layout.of(problem)
    return [*_each(layout, asked), Bound(_memory(layout, asked), "memory")]


def _always(problem: Problem, effort: _Effort) -> Bound:
    found = _each(Layout.of(problem), effort)
    best = max(each.seconds for each in found)
    return next(each for each in found if each.seconds >= best * (1 - _EQUAL))


def _fitting(problem: Problem, effort: _Effort, always: Bound) -> Bound:
    found = Bound(_memory(Layout.of(problem), effort), "memory")
    return found if found.seconds * (1 - _EQUAL) > always.seconds else always


def _memory(layout: Layout, effort: _Effort) -> float:
    chains = [critical_chain(layout.problem)]
    return memory(layout, chains, effort.cases, effort.nodes, tries=effort.tries // 2)


def _each(layout: Layout, effort: _Effort) -> list[Bound]:
    """Plain ones first: of equal bounds the first is named."""
    problem = layout.problem
    seconds, prices = work(layout)
    found: list[Bound] = []
    ahead = None
    if problem.objective == "step":
        found.append(Bound(critical_path(problem), "critical path"))
        ahead = times(layout, prices, effort.arrivals)
    found += [Bound(seconds, "work"), Bound(largest_unit(layout), "largest unit")]
    if ahead is not None:
        found.append(Bound(longest_way(layout, ahead, prices), "longest way"))
    cuts = every_cut(layout)
    found.append(Bound(surroundings(layout, cuts, effort.cuts), "surroundings"))
    packed = Packing(layout, cuts, ahead, effort.barring)
    best = max(each.seconds for each in found)
    tries = next(factor for ops, factor in _TRIES if problem.arrays.ops <= ops) * effort.tries
    found.append(Bound(packing(packed, best, tries), "packing"))
    if effort.patterns and problem.objective == "period":
        best = max(each.seconds for each in found)
        found.append(Bound(patterns(layout, packed, best, effort.patterns), "patterns"))
    return found


__all__ = [
    "Bound",
    "Effort",
    "Layout",
    "bound",
    "critical_path",
    "every_bound",
    "largest_unit",
    "memory",
    "packing",
    "patterns",
    "surroundings",
    "work",
]
