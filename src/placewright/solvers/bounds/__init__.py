"""Bounds: a problem in, seconds that no plan without fusion can beat out.

Each has a proof in words in its docstring. The rules that proofs cite are those of
`simulator/reference.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from placewright.solvers.bounds.cuts import every_cut
from placewright.solvers.bounds.layout import Layout
from placewright.solvers.bounds.packing import packing
from placewright.solvers.bounds.paths import longest_way, times
from placewright.solvers.bounds.simple import critical_path, largest_unit, work
from placewright.solvers.bounds.surroundings import surroundings

if TYPE_CHECKING:
    from placewright.problem import Problem


@dataclass(frozen=True)
class Bound:
    """Seconds that no plan can beat, and why."""

    seconds: float
    name: str


def bound(problem: Problem, effort: str = "quick") -> Bound:
    layout = Layout.of(problem)
    seconds, prices = work(layout)
    bounds = [Bound(seconds, "work"), Bound(largest_unit(layout), "largest unit")]
    found = None
    if problem.objective == "step":
        bounds.insert(0, Bound(critical_path(problem), "critical path"))
        found = times(layout, prices, effort)
        bounds.append(Bound(longest_way(layout, found, prices), "longest way"))
    cuts = every_cut(layout)
    bounds.append(Bound(surroundings(layout, cuts, 400_000), "surroundings"))
    best = max(bounds, key=lambda found: found.seconds)
    return max(
        [best, Bound(packing(layout, cuts, best.seconds, found, *((12, 100_000) if effort=="quick" else (25,4_000_000))), "packing")],
        key=lambda found: found.seconds,
    )
