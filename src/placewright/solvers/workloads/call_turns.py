"""Turns of a workload's calls: anneals one call at a time, with the weights where they are.

The calls of one placement of the weights do not depend on each other, so each is a problem by
itself (`pin_weights`), and the sum of their best plans is the best for that placement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.solvers.annealing_rounds import AnnealingRounds
from placewright.solvers.proposer import BudgetedProposer, ProposerBudget
from placewright.solvers.search import Search
from placewright.solvers.searches.annealing import grouping_levels
from placewright.solvers.stop import Slice
from placewright.solvers.workloads.call_plans import (
    evaluate_call,
    pin_weights,
    simple_plans,
    transferred_plans,
)

if TYPE_CHECKING:
    from placewright.plan import Plan
    from placewright.solvers.auto import Auto
    from placewright.solvers.workloads.call_plans import CallPlans
    from placewright.solvers.workloads.workload_search import WorkloadSearch
    from placewright.transforms import Grouping

_ROUNDS = 3  # rounds of annealing in a turn
_TRANSFERS = 4  # other placements of the weights whose plans a turn begins with


class CallTurns:
    """The annealing of every call under each of the best placements of the weights.

    A placement that gets another turn goes on where its last one ended.
    """

    def __init__(self, search: WorkloadSearch, auto: Auto) -> None:
        self.search, self.auto = search, auto
        self.uses: dict[bytes, int] = {}
        """Turns of each placement of the weights."""
        self._annealing: dict[tuple[int, bytes], _CallAnnealing] = {}
        self._levels: dict[int, list[Grouping]] = {}

    def run(self, name: bytes, share: float, without: int | None = None) -> None:
        """Anneal all calls of one placement, the most important first.

        Args:
            name: The placement of the weights, a key of `search.by_residency`.
            share: The share of what is left of the budget.
            without: A call that is left as it is, since it was searched alone.
        """
        search = self.search
        self.uses[name] = self.uses.get(name, 0) + 1
        counts = search.workload.counts.tolist()
        values = [call.value for call in search.by_residency[name].calls]
        loads = [count * value for count, value in zip(counts, values, strict=True)]
        order = [at for at in np.argsort(loads)[::-1].tolist() if at != without]
        for at in order:
            plans = search.by_residency.get(name)
            if plans is None or search.is_finished():
                return
            search.phase = f"{search.workload.calls[at].name} in turn"
            self._call_annealing(at, name, plans).run(plans, share / len(order))

    def halve(self, share: float, keep: int = 2) -> None:
        """Give all placements a turn, then the better half a longer one, down to `keep`."""
        search = self.search
        names = _best_first(search)
        stages = max(1, int(np.ceil(np.log2(max(2, len(names)) / keep))))
        for stage in range(stages):
            for name in names:
                if name in search.by_residency:
                    left = (stages - stage) * len(names)
                    self.run(name, share / left)
                if search.is_finished():
                    return
            names = _best_first(search)[: max(keep, len(names) // 2)]

    def next_placements(self, pool: int) -> list[bytes]:
        """The best placement of the weights, and of the next best the one with fewest turns."""
        ranked = _best_first(self.search)[:pool]
        others = sorted(ranked[1:], key=lambda name: self.uses.get(name, 0))
        return [*ranked[:1], *others[:1]]

    def _call_annealing(self, at: int, name: bytes, plans: CallPlans) -> _CallAnnealing:
        if (at, name) not in self._annealing:
            for key in [key for key in self._annealing if key[1] not in self.search.by_residency]:
                del self._annealing[key]
            if at not in self._levels:
                self._levels[at] = grouping_levels(self.search.workload.problems[at])
            self._annealing[at, name] = _CallAnnealing(
                self.search, at, plans, self.auto, self._levels[at]
            )
        return self._annealing[at, name]


class _CallAnnealing:
    """The annealing of one call for one placement of the weights."""

    def __init__(
        self, search: WorkloadSearch, at: int, plans: CallPlans, auto: Auto, levels: list[Grouping]
    ) -> None:
        pinned = pin_weights(search.workload, at, plans.residency)
        self.outer, self.at = search, at
        self._transferred: dict[bytes, Plan] = {}  # the last one of each other placement
        seed = int(search.rng.integers(2**31))
        self.inner = Search(pinned, Slice.of(search, 1.0), seed, search.report_progress)
        self.inner.phase = "start"
        self.inner.judge_plan(plans.calls[at].plan)
        rows = simple_plans(pinned)
        self.inner.phase = "simple"
        self.inner.judge(rows.placement, staging=rows.staging)
        search.evaluations += self.inner.evaluations
        budget = ProposerBudget(self.inner)
        proposers = [BudgetedProposer(proposer, budget) for proposer in auto.proposers]
        self.rounds = AnnealingRounds(
            self.inner, proposers, auto.chains, False, auto.first_evaluations, levels
        )

    def run(self, plans: CallPlans, share: float) -> None:
        """Anneal for a turn, and record the plans with the best of this call."""
        inner, outer = self.inner, self.outer
        before = inner.evaluations
        inner.stop = Slice.of(outer, share, inner)
        self._try_other_placements(plans)
        if not inner.over:
            self.rounds.run(_ROUNDS)
        outer.evaluations += inner.evaluations - before
        call = plans.calls[self.at]
        if inner.best is not None and inner.key < (call.overflow, call.value):
            outer.evaluations += 1
            outer.record(
                plans.with_call(self.at, evaluate_call(outer.workload, self.at, inner.best))
            )

    def _try_other_placements(self, plans: CallPlans) -> None:
        """Evaluate the plans that this call has under the best other placements of the weights."""
        inner, outer = self.inner, self.outer
        inner.phase = "transferred"
        for name in _best_first(outer)[:_TRANSFERS]:
            plan = outer.by_residency[name].calls[self.at].plan
            if name == plans.residency.tobytes() or plan is self._transferred.get(name):
                continue
            self._transferred[name] = plan
            rows = transferred_plans(inner.problem, plan)
            inner.judge(rows.placement, rows.priority, rows.staging)


def _best_first(search: WorkloadSearch) -> list[bytes]:
    return sorted(search.by_residency, key=lambda name: search.by_residency[name].key)
