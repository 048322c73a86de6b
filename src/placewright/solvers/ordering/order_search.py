"""Order search: a better issue order for a plan, without changing its placement.

First the priority rules, then local search on the order: blocked ops of the critical chain move
ahead, ops swap positions, keys are perturbed (random keys, Bean 1994, ORSA J. Comput. 6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.errors import ConfigError
from placewright.plan import Plan
from placewright.simulator.reference import plan_order
from placewright.solvers.balanced import Balanced
from placewright.solvers.heft import HEFT
from placewright.solvers.ordering.critical_chain import CriticalChain
from placewright.solvers.ordering.priority_rules import rule_priorities
from placewright.solvers.searches.search_space import DEFAULT_PLANS, check_max_plans
from placewright.solvers.single import SingleDevices
from placewright.transforms import contract

if TYPE_CHECKING:
    from placewright.simulator import Verdict
    from placewright.solvers.search import Search

Keys = NDArray[np.float64]


@dataclass(frozen=True)
class OrderSearch:
    """Orders for one placement: that of `plan`, or of the best plan so far.

    Devices, staging and fusion do not change. If the search has no plan yet, it takes the best of
    single devices, balanced splits and HEFT. The period does not depend on the order, so for the
    period only memory can improve, and a plan that fits is not changed.

    Args:
        plan: The plan to start from; by default the best of the search.
        batch: Orders per batch.
        patience: Batches without a better order before the order is perturbed.
        max_plans: Plans to evaluate; by default the stop rule decides, or 4,000 without one.
    """

    plan: Plan | None = None
    batch: int = 32
    patience: int = 12
    max_plans: int | None = None
    name = "order-search"

    def __post_init__(self) -> None:
        if self.batch < 1 or self.patience < 1:
            raise ConfigError(
                f"OrderSearch in batches of {self.batch!r} with patience {self.patience!r}: "
                "expected 1 or more of each"
            )
        check_max_plans("Schedule", self.max_plans)

    def run(self, search: Search) -> None:
        if self.plan is not None:
            search.judge_plan(self.plan)
        elif search.best is None:
            for solver in (SingleDevices(), Balanced(), HEFT(contended=True)):
                if not search.over:
                    solver.run(search)
        plan = search.best if self.plan is None else self.plan
        if search.over or plan is None:
            return
        if plan.fusion is not None:
            _order_fused(search, plan)
            return
        orders = _OrderState(search, plan)
        if not orders.begin():
            return
        max_plans = self.max_plans or (np.inf if search.stop.certain else DEFAULT_PLANS)
        end = search.evaluations + max_plans
        best_keys, best_key, idle = orders.keys, orders.key, 0
        while not search.over and search.evaluations < end:
            idle = 0 if orders.step(self.batch) else idle + 1
            if idle < self.patience:
                continue
            if orders.key <= best_key:
                best_keys, best_key = orders.keys, orders.key
            orders.keys, orders.key, idle = best_keys, best_key, 0
            orders.perturb(self.batch)


class _OrderState:
    """The current order: keys that are the ops' positions in the plan's order."""

    def __init__(self, search: Search, plan: Plan) -> None:
        self.search, self.plan = search, plan
        self.a = search.problem.arrays
        self.keys: Keys = np.zeros(self.a.ops)
        self.key: tuple[int, float] = (0, np.inf)
        self.best_rules: list[Keys] = []
        self.chain: CriticalChain

    def begin(self) -> bool:
        """Evaluate the rules and take the best; false if there is nothing left to search."""
        problem, plan = self.search.problem, self.plan
        rules = rule_priorities(problem, plan.placement, plan.staging)
        rows = list(rules.values())
        if plan.priority is not None:
            rows.insert(0, plan.priority)
        verdict = self._judge(np.stack(rows))
        if not len(verdict.value):
            return False
        order = np.lexsort((verdict.value, verdict.overflow))
        self.best_rules = [self._order_positions(rows[at]) for at in order[:4]]
        self._move_to(self.best_rules[0], verdict.key(verdict.best()))
        return problem.objective == "step" or self.key[0] > 0

    def step(self, batch: int) -> bool:
        """Evaluate neighbours of the current order; whether a better one was found."""
        rng = self.search.rng
        rows = np.repeat(self.keys[None], batch, axis=0)
        kinds = rng.choice(4, size=batch, p=(0.45, 0.25, 0.15, 0.15))
        for row, kind in enumerate(kinds.tolist()):
            if kind < 2:  # an op of the critical chain, or any op, moves ahead
                rows[row] = self.chain.pull_earlier(self.keys, rng, critical=kind == 0)
            elif kind == 2:  # an op moves back
                rows[row] = self.chain.push_later(self.keys, rng)
        perturbed = np.flatnonzero(kinds == 3)
        rows[perturbed] = self._perturbed_keys(len(perturbed), low=-1.0, high=1.5)
        verdict = self._judge(rows)
        if len(verdict.value) and verdict.key(verdict.best()) < self.key:
            at = verdict.best()
            self._move_to(self._order_positions(rows[at]), verdict.key(at))
            return True
        return False

    def perturb(self, batch: int) -> None:
        """Take the best of some orders that are further away, or partly another rule's."""
        if self.search.over:
            return
        rng, count = self.search.rng, max(2, batch // 4)
        rows = self._perturbed_keys(count, low=0.0, high=3.0)
        share = rng.random((count, 1)) * (rng.random((count, 1)) < 0.5)
        other = np.stack(
            [self.best_rules[at] for at in rng.integers(0, len(self.best_rules), size=count)]
        )
        rows = (1 - share) * rows + share * other
        verdict = self._judge(rows)
        if len(verdict.value):
            at = verdict.best()
            self._move_to(self._order_positions(rows[at]), verdict.key(at))

    def _perturbed_keys(self, count: int, low: float, high: float) -> Keys:
        """Keys with noise of 10^low to 10^high positions, on some of the ops."""
        rng = self.search.rng
        scale = 10.0 ** rng.uniform(low, high, size=(count, 1))
        mask = rng.random((count, self.a.ops)) < rng.uniform(0.02, 0.5, size=(count, 1))
        return self.keys + np.where(mask, rng.normal(size=(count, self.a.ops)) * scale, 0.0)

    def _judge(self, rows: Keys) -> Verdict:
        device = np.repeat(self.plan.placement[None], len(rows), axis=0)
        return self.search.judge(device, rows, self.plan.staging)

    def _order_positions(self, priority: Keys) -> Keys:
        """Priorities of the same plan in whole steps, so that there is a key between any two.

        With the discipline *in order* only the order counts; with *ready*, the priorities do.
        """
        if self.search.problem.discipline == "ready":
            return priority.argsort(kind="stable").argsort(kind="stable").astype(np.float64)
        keys = np.full(self.a.ops, -1.0)
        order = plan_order(self.a, priority.tolist())
        keys[order] = np.arange(len(order))
        return keys

    def _move_to(self, keys: Keys, key: tuple[int, float]) -> None:
        self.keys, self.key = keys, key
        self.chain = CriticalChain.of(
            self.search.problem, self.plan.placement, keys, self.plan.staging
        )


def _order_fused(search: Search, plan: Plan) -> None:
    """Only the rules, on the graph with fused ops contracted."""
    fused = contract(search.problem, plan)
    rules = rule_priorities(fused.problem, fused.plan.placement, plan.staging)
    for priority in rules.values():
        if search.over:
            return
        search.judge_plan(
            Plan.of(
                search.problem,
                plan.placement,
                priority[fused.contracted_op],
                plan.fusion,
                plan.staging,
            )
        )
