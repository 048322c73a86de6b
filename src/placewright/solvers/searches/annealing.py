"""Simulated annealing from good initial plans, over groups from single ops to whole modules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import ConfigError
from placewright.plan_batch import PlanBatch
from placewright.solvers.balanced import Balanced
from placewright.solvers.search import Search
from placewright.solvers.searches.annealing_chains import (
    AnnealingChains,
    Cooling,
    MoveShares,
)
from placewright.solvers.single import SingleDevices
from placewright.solvers.stop import Stop
from placewright.solvers.streamed import Streamed
from placewright.transforms import Grouping, by_module, nested_groupings

if TYPE_CHECKING:
    from placewright.plan import Plan
    from placewright.problem import Problem


FIT_COOLING = Cooling(1.0, 1e-2)
"""Where plans are over: hot, as a single byte is a large share of the cost of a small problem."""


@dataclass(frozen=True)
class Annealing:
    """Simulated annealing of placement, order and staging (Kirkpatrick et al. 1983).

    Starts from the best single device, balanced split or streamed plan. Each round is as long as
    all before it together; the first starts from the best plan, later ones alternate between it and
    the other initial plans.

    Args:
        rounds: The number of rounds, unless the stop rule ends it before.
        first_round: Evaluations of the first round; by default a fraction of a second.
        with_priorities: Whether to search priorities too.
    """

    rounds: int = 6
    first_round: int | None = None
    with_priorities: bool = True
    cooling: Cooling = field(default_factory=Cooling)
    name = "annealing"

    def __post_init__(self) -> None:
        if not self.rounds >= 1:
            raise ConfigError(f"Annealing of {self.rounds!r} rounds: expected at least 1")

    def run(self, search: Search) -> None:
        for solver in (SingleDevices(), Balanced(), Streamed()):
            search.phase = solver.name
            solver.run(search)
            if search.over:
                return
        search.phase = self.name
        problem = search.problem
        chains = AnnealingChains(search, grouping_levels(problem))
        with_staging = memory_binds(problem, search)
        # No order and no staging buffer shortens the period, but they decide what fits.
        simulate_memory = problem.objective == "period" and search.key[0] > 0
        with_order = self.with_priorities and (problem.objective == "step" or simulate_memory)
        for round_ in range(self.rounds):
            with_priorities = with_order and round_ % 2 == 1
            starts = PlanBatch.of(problem, elite_plans(search, 2), with_priorities, with_staging)
            first_length = self.first_round or first_round_length(problem, simulate_memory)
            chains.run(
                starts,
                first_length * 2**round_,
                self.cooling,
                MoveShares.for_search(with_priorities, with_staging),
                simulate_memory=simulate_memory,
            )
            if search.over:
                return


def refine(problem: Problem, plan: Plan, seed: int = 0) -> Plan:
    """The best plan that short annealing finds from a plan; for a problem that changed a little."""
    search = Search(problem, Stop(), seed)
    search.judge_plan(plan)
    with_staging = plan.staging is not None
    start = PlanBatch.of(problem, [plan, plan], with_priorities=False, with_staging=with_staging)
    if plan.priority is not None and problem.objective == "step":
        start = PlanBatch.of(problem, [plan, plan], with_priorities=True, with_staging=with_staging)
    move_shares = MoveShares.for_search(start.priority is not None, with_staging)
    chains = AnnealingChains(search, grouping_levels(problem))
    # Moves raise a staging buffer to what its device needs only where plans are simulated.
    simulate_memory = problem.objective == "period" and with_staging
    length = first_round_length(problem, simulate_memory)
    cooling = Cooling(0.003, 1e-4)
    chains.run(start, length, cooling, move_shares, simulate_memory=simulate_memory)
    return search.best or plan


def anneal_to_fit(search: Search) -> None:
    """Anneal the best plans of a search until one fits, for two short rounds at most."""
    problem, streaming = search.problem, search.problem.arrays.has_streamable_weights
    if not search.key[0] or search.over:
        return
    search.phase = "annealing fit"
    chains = AnnealingChains(search, grouping_levels(problem))
    for with_staging in (False, True) if streaming else (False, False):
        starts = PlanBatch.of(problem, elite_plans(search, 2), True, with_staging)
        chains.run(
            starts,
            first_round_length(problem, simulate_memory=True),
            FIT_COOLING,
            MoveShares.for_search(True, with_staging),
            simulate_memory=problem.objective == "period",
            overflow_first=True,
        )
        if search.over or not search.key[0]:
            return


def grouping_levels(problem: Problem) -> list[Grouping]:
    """Blocks to move as one: nested groups and the model's modules, from fine to coarse."""
    groupings = nested_groupings(problem)
    sizes = {len(grouping) for grouping in groupings}
    deepest = max(op.module.count(".") + 1 for op in problem.graph.ops)
    for depth in range(1, deepest + 1):
        grouping = by_module(problem, depth)
        if 2 <= len(grouping) <= len(groupings[0]) // 2 and len(grouping) not in sizes:
            groupings.append(grouping)
            sizes.add(len(grouping))
    return sorted(groupings, key=len, reverse=True)


def first_round_length(problem: Problem, simulate_memory: bool = False) -> int:
    """Evaluations of a first round: a fraction of a second at any size.

    Args:
        simulate_memory: For the period: whether each plan is simulated.
    """
    if problem.objective == "period" and not simulate_memory:
        return 200_000
    return int(np.clip(3_000_000 // problem.arrays.ops, 200, 5_000))


def memory_binds(problem: Problem, search: Search) -> bool:
    """Whether weights may have to be apart from their readers.

    They may where no plan fits yet, or where no accelerator holds them all and a host is there.
    """
    a = problem.arrays
    if search.key[0] > 0:
        return a.has_streamable_weights
    if problem.cluster.host is None or problem.objective == "period":
        return False
    if not (a.is_weight & (a.resident > 0)).any():
        return False
    single = search.best_by_phase.get(SingleDevices.name)
    best_fits = single is not None and single.key[0] == 0
    on_host = single is not None and bool(a.is_host[single.plan.placement[a.scheduled]].any())
    return not best_fits or on_host


def elite_plans(search: Search, count: int, skip: int = 0) -> list[Plan]:
    """The best plan, and the best plans of the search's phases, with distinct placements.

    Args:
        skip: The number of the latter to skip.
    """
    ranked = sorted(search.best_by_phase.values(), key=lambda part: part.key)
    distinct: list[Plan] = []
    placements: set[bytes] = set()
    for plan in (part.plan for part in ranked):
        if plan.fusion is None and (placement := plan.placement.tobytes()) not in placements:
            placements.add(placement)
            distinct.append(plan)
    others = distinct[1:]
    rotated = others[skip % len(others) :] + others[: skip % len(others)] if others else []
    chosen = [*distinct[:1], *rotated][:count]
    return chosen + distinct[:1] * (count - len(chosen))
