"""Selects a plan for a pipeline of limited depth: by the interval of so many steps in flight.

The period is what a plan takes per step with as many steps in flight as it needs. A plan that hands
tensors to and fro between two devices needs one step for each hand-over, and far more memory than
one that gives each device a single stretch of the graph, for a period that is hardly shorter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from placewright.errors import ConfigError
from placewright.simulator import simulate, simulate_in_flight
from placewright.solvers.cautious_choice import all_candidates
from placewright.units import format_seconds

if TYPE_CHECKING:
    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.solvers.best_plans import Candidate
    from placewright.solvers.search import Search

NEARLY_BEST = 1.02
"""How much longer the interval of a plan with fewer hand-overs may be. Each takes time of both
devices' threads that is no part of a link's figures: GPT-2 on two processes took 249 ms instead of
174 ms with a plan of many."""


@dataclass(frozen=True)
class InFlightChoice:
    """Chooses the plan with the shortest interval between steps, with so many of them in flight.

    The candidates are the best plans of the search, the best of each of its phases (contiguous cuts
    among them) and single devices; a plan that fits with all steps in flight goes first. Of plans
    that are nearly as good the one with the fewest hand-overs is taken.

    Args:
        steps: How many steps are in flight.
    """

    steps: int = 8

    def __post_init__(self) -> None:
        if not self.steps >= 2:
            raise ConfigError(f"{self.steps!r} steps in flight: expected at least 2")

    def __call__(self, search: Search) -> Candidate:
        problem = search.problem
        candidates = all_candidates(search)
        best = candidates[0]
        flights = [simulate_in_flight(problem, each.plan, self.steps) for each in candidates]
        overflow = [
            (each.key[0], flight.overflow) for each, flight in zip(candidates, flights, strict=True)
        ]
        least = [index for index, over in enumerate(overflow) if over == min(overflow)]
        longest = NEARLY_BEST * min(flights[index].interval for index in least)
        nearly_best = [index for index in least if flights[index].interval <= longest]
        at = min(nearly_best, key=lambda index: _hand_overs(problem, candidates[index].plan))
        chosen, interval = candidates[at], format_seconds(flights[at].interval)
        note = f"with {self.steps} steps in flight: one every {interval}"
        if chosen.key != best.key:
            note += (
                f"; not taken: a plan with a period of {format_seconds(best.key[1])}, one every "
                f"{format_seconds(flights[0].interval)}, with more hand-overs"
            )
        return replace(chosen, note=note)


def _hand_overs(problem: Problem, plan: Plan) -> int:
    """How many tensors go from device to device in a step."""
    return len(simulate(problem, plan).transfers)
