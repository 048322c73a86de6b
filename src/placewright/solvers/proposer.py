"""Proposers: sources of plans and moves for `auto`, and the time budget they share.

A proposer takes time that a search could spend on evaluations, so it gets a share of the budget. If
the budget is a time, the proposers' time is measured. If it is a number of plans, their time is
estimated from the number of ops, so that the plans tried do not depend on the clock.
"""

from __future__ import annotations

import math
import time
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from placewright.errors import PlanError
from placewright.plan import NO_STAGING, Plan
from placewright.plan_batch import PlanBatch
from placewright.solvers.searches.annealing_chains import MoveGuide

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.simulator._kernel import ScoutNet
    from placewright.solvers.search import Search

BUDGET_SHARE = 0.2  # of the budget, for proposers
_JUDGE_SECONDS = 1.5e-7  # seconds per op to evaluate a plan
_PLANS_PER_PROPOSER = 8  # plans requested from a proposer
_DEFAULT_SECONDS = 1e-3  # seconds per op of a proposer that does not state its own


@runtime_checkable
class Proposer(Protocol):
    """Anything that proposes plans and moves, e.g. a trained policy.

    It may have `network(problem)`, a scout that scores moves inside compiled annealing
    (`move_scorer.py`). It may state its cost: `plan_seconds` and `move_seconds`, seconds per op to
    propose some plans and to rate the moves of one plan; otherwise it counts as slow.
    """

    @property
    def name(self) -> str:
        """Its name in reports."""
        ...

    def propose(self, problem: Problem, count: int, seed: int) -> Iterable[Plan]:
        """At most `count` plans; the same seed gives the same plans."""
        ...

    def move_probabilities(self, problem: Problem, plan: Plan) -> NDArray[np.floating] | None:
        """Ops × devices: the probability that a device is the right one for an op, given the rest
        of the plan; rows sum to 1. None if it does not know."""
        ...


class ProposerBudget:
    """The proposers' share of one search's budget, in seconds."""

    def __init__(self, search: Search, share: float = BUDGET_SHARE) -> None:
        self.search, self.share = search, share
        self.seconds_used = 0.0
        """Seconds measured so far."""
        self.seconds_expected = 0.0
        """Seconds expected for what was done so far."""

    def allows(self, seconds: float) -> bool:
        """Whether this many more seconds, as a proposer estimates them, are allowed."""
        search = self.search
        stop, ops = search.stop, search.problem.arrays.ops
        judge_seconds = (search.evaluations + stop.left(search)) * ops * _JUDGE_SECONDS
        if self.seconds_expected + seconds > self.share * judge_seconds:
            return False
        budget = search.seconds + stop.seconds_left(search)
        if math.isinf(budget):
            return True
        # A proposer that took longer than estimated will do so again.
        slowdown = (
            max(1.0, self.seconds_used / self.seconds_expected) if self.seconds_expected else 1.0
        )
        return self.seconds_used + seconds * slowdown <= self.share * budget

    @contextmanager
    def measure(self, seconds: float) -> Iterator[None]:
        """Measure the time of a block that was expected to take `seconds`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds_expected += seconds
            self.seconds_used += time.perf_counter() - started


class BudgetedProposer:
    """A proposer that is only called while its budget allows it."""

    def __init__(self, proposer: Proposer, budget: ProposerBudget) -> None:
        self.proposer, self.budget = proposer, budget
        self.search = budget.search
        ops = self.search.problem.arrays.ops
        self._plan_seconds = float(getattr(proposer, "plan_seconds", _DEFAULT_SECONDS)) * ops
        self._move_seconds = float(getattr(proposer, "move_seconds", _DEFAULT_SECONDS)) * ops
        self.lacks_moves = False
        """Whether it has no opinion on moves."""

    def plans(self) -> list[Plan]:
        """Its plans, if there is time for them."""
        if not self.budget.allows(self._plan_seconds):
            return []
        with self.budget.measure(self._plan_seconds):
            return list(
                self.proposer.propose(self.search.problem, _PLANS_PER_PROPOSER, self._seed())
            )

    def _seed(self) -> int:
        """A seed that the search's own generator knows nothing of.

        A draw from that generator would shift all later draws of the search: with a proposer that
        proposes nothing, the search would try other plans than without it.
        """
        name = zlib.crc32(self.proposer.name.encode())
        return int(np.random.default_rng([self.search.seed, name]).integers(2**31))

    def rates_moves(self, plan: Plan) -> bool:
        """Whether it rates the moves of this plan, and there is time for that."""
        return self.move_probabilities(PlanBatch.repeat(plan)) is not None

    def guide(self, every: int) -> MoveGuide | None:
        """Its moves, for annealing; None if there is no time for a single call."""
        if self.lacks_moves or not self.budget.allows(self._move_seconds):
            return None
        return MoveGuide(self.move_probabilities, interval=every)

    def network(self) -> ScoutNet | None:
        """Its scout, if it has one for this problem."""
        make_network = getattr(self.proposer, "network", None)
        network: ScoutNet | None = (
            None if make_network is None else make_network(self.search.problem)
        )
        return network

    def move_probabilities(self, rows: PlanBatch) -> NDArray[np.float64] | None:
        """Its probabilities of moves, plans × ops × devices, or None."""
        if self.lacks_moves or not self.budget.allows(len(rows) * self._move_seconds):
            return None
        problem, probability_rows = self.search.problem, []
        a = problem.arrays
        with self.budget.measure(len(rows) * self._move_seconds):
            for row in range(len(rows)):
                probabilities = self.proposer.move_probabilities(
                    problem, _plan_from_row(problem, rows, row)
                )
                if probabilities is None:
                    self.lacks_moves = True
                    return None
                probability_rows.append(
                    _check_probabilities(probabilities, self.proposer.name, (a.ops, a.devices))
                )
        return np.stack(probability_rows)


def _plan_from_row(problem: Problem, rows: PlanBatch, row: int) -> Plan:
    """One row with staging buffers as annealing evaluates them: the largest op fits (rule 6)."""
    plan = rows.plan(problem, row)
    if plan.staging is None:
        return plan
    required = problem.arrays.required_staging(plan.placement)
    is_staged = (plan.staging >= 0) & (required > 0)
    staging = np.where(is_staged, np.maximum(plan.staging, required), NO_STAGING)
    return Plan.of(
        problem, plan.placement, plan.priority, staging=staging if is_staged.any() else None
    )


def _check_probabilities(
    probabilities: NDArray[np.floating], name: str, shape: tuple[int, int]
) -> NDArray[np.float64]:
    checked = np.asarray(probabilities, dtype=np.float64)
    if checked.shape != shape:
        raise PlanError(f"proposer {name!r} gives moves of shape {checked.shape}: expected {shape}")
    if not (checked >= 0).all() or not np.allclose(checked.sum(axis=1), 1.0, atol=1e-3):
        raise PlanError(
            f"proposer {name!r} gives moves that are not probabilities: "
            "expected rows of numbers >= 0 that sum to 1"
        )
    return checked
