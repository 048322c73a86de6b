"""Bounds: seconds that no plan without fusion can beat, each with a proof.

Each bound has a file and a proof in its docstring; the rules that proofs cite are those of
`simulator/reference.py`. Proofs are about real numbers: a bound is rounded down by more than what
the simulator's sums and its own can be off, and the value of a linear program is recomputed from
its dual prices alone (`Relaxation.bound`).
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from placewright.errors import ConfigError
from placewright.solvers.bounds.aggregates import Aggregates
from placewright.solvers.bounds.basic import (
    critical_path_bound,
    critical_path_ops,
    largest_unit_bound,
    work_bound,
)
from placewright.solvers.bounds.longest_path import earliest_times, longest_path_bound
from placewright.solvers.bounds.memory import memory_bound
from placewright.solvers.bounds.minimum_cuts import find_minimum_cuts
from placewright.solvers.bounds.neighbourhood import neighbourhood_bound
from placewright.solvers.bounds.packing import Packing, packing_bound
from placewright.solvers.bounds.patterns import pattern_bound

if TYPE_CHECKING:
    from placewright.problem import Problem

Effort = Literal["quick", "thorough"]


@dataclass(frozen=True)
class Bound:
    """A lower bound in seconds, and the name of its proof."""

    seconds: float
    name: str


@dataclass(frozen=True)
class _EffortLimits:
    """Limits as counts, so that the same problem always has the same bound."""

    arrivals: int  # arrivals computed along the paths
    cut_arcs: int  # arcs of cuts, for the neighbourhood bound
    packing_tries: int  # values of T in the packing bound
    packing_arcs: int  # arcs of cuts, for each of these
    size_cases: int  # sizes of the largest weight that is sent
    tree_nodes: int  # of the search tree for the devices of weights
    pattern_budget: int  # squares of the sizes of the programs for patterns


_LIMITS = {
    "quick": _EffortLimits(40_000_000, 200_000, 6, 60_000, 2, 20, 0),
    "thorough": _EffortLimits(1_000_000_000, 10_000_000, 24, 2_000_000, 6, 500, 6_000_000),
}
_EQUAL_SHARE = 1e-9  # bounds that differ by less are equal; then the simpler one is named
_TRY_FACTORS = ((100, 4), (1000, 2), (np.inf, 1))  # most ops, factor: small problems can have more
_cache: weakref.WeakKeyDictionary[Problem, dict[tuple[str, bool], Bound]]
_cache = weakref.WeakKeyDictionary()


def bound(problem: Problem, effort: Effort = "quick", fits_only: bool = True) -> Bound:
    """The highest bound we can prove for the problem's objective; cached per problem.

    Args:
        effort: `quick` takes about 0.1 s for 1,000 ops and a few seconds for 50,000; `thorough`
            takes up to some 20 s, most of it for the period.
        fits_only: The bound need hold only for plans within the memory limits. Without it, it holds
            for every plan.

    Raises:
        ConfigError: There is no such effort.
    """
    if effort not in _LIMITS:
        raise ConfigError(f"effort {effort!r}: expected {' or '.join(map(repr, _LIMITS))}")
    bounds = _cache.setdefault(problem, {})
    if (effort, False) not in bounds:
        bounds[effort, False] = _best_unconditional(problem, _LIMITS[effort])
    if fits_only and (effort, True) not in bounds:
        bounds[effort, True] = _best_for_fitting(problem, _LIMITS[effort], bounds[effort, False])
    return bounds[effort, fits_only]


def every_bound(problem: Problem, effort: Effort = "quick") -> list[Bound]:
    """Every bound for the problem's objective by itself, to compare them."""
    limits, aggregates = _LIMITS[effort], Aggregates.of(problem)
    return [
        *_unconditional_bounds(aggregates, limits),
        Bound(_memory_seconds(aggregates, limits), "memory"),
    ]


def _best_unconditional(problem: Problem, limits: _EffortLimits) -> Bound:
    bounds = _unconditional_bounds(Aggregates.of(problem), limits)
    highest = max(candidate.seconds for candidate in bounds)
    return next(
        candidate for candidate in bounds if candidate.seconds >= highest * (1 - _EQUAL_SHARE)
    )


def _best_for_fitting(problem: Problem, limits: _EffortLimits, unconditional: Bound) -> Bound:
    memory = Bound(_memory_seconds(Aggregates.of(problem), limits), "memory")
    return memory if memory.seconds * (1 - _EQUAL_SHARE) > unconditional.seconds else unconditional


def _memory_seconds(aggregates: Aggregates, limits: _EffortLimits) -> float:
    chains = [critical_path_ops(aggregates.problem)]
    return memory_bound(
        aggregates, chains, limits.size_cases, limits.tree_nodes, tries=limits.packing_tries // 2
    )


def _unconditional_bounds(aggregates: Aggregates, limits: _EffortLimits) -> list[Bound]:
    """Simple ones first: of equal bounds the first is named."""
    problem = aggregates.problem
    seconds, prices = work_bound(aggregates)
    bounds: list[Bound] = []
    op_times = None
    if problem.objective == "step":
        bounds.append(Bound(critical_path_bound(problem), "critical path"))
        op_times = earliest_times(aggregates, prices, limits.arrivals)
    bounds += [Bound(seconds, "work"), Bound(largest_unit_bound(aggregates), "largest unit")]
    if op_times is not None:
        bounds.append(Bound(longest_path_bound(aggregates, op_times, prices), "longest path"))
    min_cuts = find_minimum_cuts(aggregates)
    bounds.append(
        Bound(neighbourhood_bound(aggregates, min_cuts, limits.cut_arcs), "neighbourhood")
    )
    packing_state = Packing(aggregates, min_cuts, op_times, limits.packing_arcs)
    highest = max(candidate.seconds for candidate in bounds)
    tries = (
        next(factor for max_ops, factor in _TRY_FACTORS if problem.arrays.ops <= max_ops)
        * limits.packing_tries
    )
    bounds.append(Bound(packing_bound(packing_state, highest, tries), "packing"))
    if limits.pattern_budget and problem.objective == "period":
        highest = max(candidate.seconds for candidate in bounds)
        bounds.append(
            Bound(
                pattern_bound(aggregates, packing_state, highest, limits.pattern_budget), "patterns"
            )
        )
    return bounds


__all__ = [
    "Aggregates",
    "Bound",
    "Effort",
    "bound",
    "critical_path_bound",
    "every_bound",
    "largest_unit_bound",
    "memory_bound",
    "neighbourhood_bound",
    "packing_bound",
    "pattern_bound",
    "work_bound",
]
