"""Annealing: compiled walks from good starts, over blocks from single ops to whole modules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import ConfigError
from placewright.solvers.balanced import Balanced
from placewright.solvers.search import Search
from placewright.solvers.searches.annealing_chains import (
    Changes,
    Cooling,
    Rows,
    Walker,
)
from placewright.solvers.single import EverySingleDevice
from placewright.solvers.stop import Stop
from placewright.solvers.streamed import Streamed
from placewright.transforms import Grouping, by_module, nested

if TYPE_CHECKING:
    from placewright.plan import Plan
    from placewright.problem import Problem


@dataclass(frozen=True)
class Annealing:
    """Simulated annealing of placement, order and staging (Kirkpatrick et al. 1983).

    Starts from the best single device, balanced split or streamed plan. Each round is as long as
    all before it together; the first walks from the best plan, others alternate between it and the
    rest of the starts.

    Args:
        rounds: How many rounds to walk, if the stop rule does not end it before.
        first: Evaluations of the first round; by default a fraction of a second's worth.
        order: Whether priorities are searched too.
    """

    rounds: int = 6
    first: int | None = None
    order: bool = True
    cooling: Cooling = field(default_factory=Cooling)
    name = "annealing"

    def __post_init__(self) -> None:
        if not self.rounds >= 1:
            raise ConfigError(f"Annealing of {self.rounds!r} rounds: expected at least 1")

    def run(self, search: Search) -> None:
        for start in (EverySingleDevice(), Balanced(), Streamed()):
            search.trying = start.name
            start.run(search)
            if search.over:
                return
        search.trying = self.name
        problem = search.problem
        walker = Walker(search, levels(problem))
        stream = memory_binds(problem, search)
        for round_ in range(self.rounds):
            order = self.order and round_ % 2 == 1 and problem.objective == "step"
            starts = Rows.of(problem, elite(search, 2), order, stream)
            length = (self.first or first_length(problem)) * 2**round_
            walker.walk(starts, length, self.cooling, Changes.fit(order, stream))
            if search.over:
                return


def refined(problem: Problem, plan: Plan, seed: int = 0) -> Plan:
    """A plan in, the best that a short walk from it finds out; for a problem that changed a bit."""
    search = Search(problem, Stop(), seed)
    search.propose(plan)
    stream = plan.staging is not None
    start = Rows.of(problem, [plan, plan], order=False, stream=stream)
    if plan.priority is not None and problem.objective == "step":
        start = Rows.of(problem, [plan, plan], order=True, stream=stream)
    changes = Changes.fit(start.priority is not None, stream)
    walker = Walker(search, levels(problem))
    walker.walk(start, first_length(problem), Cooling(0.003, 1e-4), changes)
    return search.best or plan


def levels(problem: Problem) -> list[Grouping]:
    """Blocks to move as one: nested groups, and the model's own modules, from fine to coarse."""
    found = nested(problem)
    sizes = {len(grouping) for grouping in found}
    deepest = max(op.module.count(".") + 1 for op in problem.graph.ops)
    for depth in range(1, deepest + 1):
        grouping = by_module(problem, depth)
        if 2 <= len(grouping) <= len(found[0]) // 2 and len(grouping) not in sizes:
            found.append(grouping)
            sizes.add(len(grouping))
    return sorted(found, key=len, reverse=True)


def first_length(problem: Problem) -> int:
    """Evaluations of a first round: a fraction of a second at any size."""
    if problem.objective == "period":
        return 200_000
    return int(np.clip(3_000_000 // problem.arrays.ops, 200, 5_000))


def memory_binds(problem: Problem, search: Search) -> bool:
    """Whether weights may have to live apart from their readers: no accelerator holds them all."""
    if problem.cluster.host is None or problem.objective == "period":
        return False
    a = problem.arrays
    if not (a.weight & (a.resident > 0)).any():
        return False
    single = search.parts.get(EverySingleDevice.name)
    best_fits = single is not None and single.key[0] == 0
    on_host = single is not None and bool(a.host[single.plan.device[a.turn]].any())
    return not best_fits or on_host


def elite(search: Search, count: int, skip: int = 0) -> list[Plan]:
    """The best plan, and others: the best of each part of the search, no two placed alike.

    Args:
        skip: How many of the others to pass over.
    """
    ranked = sorted(search.parts.values(), key=lambda part: part.key)
    found: list[Plan] = []
    seen: set[bytes] = set()
    for plan in (part.plan for part in ranked):
        if plan.fusion is None and (mark := plan.device.tobytes()) not in seen:
            seen.add(mark)
            found.append(plan)
    others = found[1:]
    turned = others[skip % len(others) :] + others[: skip % len(others)] if others else []
    chosen = [*found[:1], *turned][:count]
    return chosen + found[:1] * (count - len(chosen))
