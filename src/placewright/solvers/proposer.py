"""Proposers: sources of plans and moves for `auto`, and the time budget they share.

What a proposer thinks costs seconds that a search could spend judging, so it has an allowance: a
share of the budget. With a budget of time, what proposers took is measured. With a budget of plans
it is only estimated, by the number of ops, so that what is tried does not depend on the clock.
"""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from placewright.errors import PlanError
from placewright.plan import NO_STAGING, Plan
from placewright.solvers.searches.annealing_chains import MoveGuide

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from placewright.plan_batch import PlanBatch
    from placewright.problem import Problem
    from placewright.simulator._kernel import ScoutNet
    from placewright.solvers.search import Search

BUDGET_SHARE = 0.2  # of the budget, that proposers may take
_JUDGE_SECONDS = 1.5e-7  # for each op, that judging a plan takes
_PLANS_PER_PROPOSER = 8  # that a proposer is asked for
_DEFAULT_SECONDS = 1e-3  # seconds for each op, that one which does not say is taken to need


@runtime_checkable
class Proposer(Protocol):
    """Anything that proposes plans and moves, such as a trained policy.

    It may have `network(problem)`, a scout that looks at moves inside the compiled walk
    (`scouting.py`). It may say what it takes: `plan_seconds` and `move_seconds`, seconds for each
    op to propose some plans and to say which moves of one plan it likes; else it is taken to be
    slow.
    """

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    def propose(self, problem: Problem, count: int, seed: int) -> Iterable[Plan]:
        """So many plans at most; the same seed gives the same plans."""
        ...

    def move_probabilities(self, problem: Problem, plan: Plan) -> NDArray[np.floating] | None:
        """Ops × devices: how likely each device is the right one for an op, the rest of the plan
        being as it is; rows sum to 1. None if it does not know."""
        ...


class ProposerBudget:
    """The seconds that proposers may take of one search's budget."""

    def __init__(self, search: Search, share: float = BUDGET_SHARE) -> None:
        self.search, self.share = search, share
        self.seconds_used = 0.0
        """Seconds measured so far."""
        self._seconds_expected = 0.0

    def allows(self, seconds: float) -> bool:
        """Whether so many more seconds, by a proposer's own estimate, are allowed."""
        search = self.search
        stop, ops = search.stop, search.problem.arrays.ops
        judge_seconds = (search.evaluations + stop.left(search)) * ops * _JUDGE_SECONDS
        if self._seconds_expected + seconds > self.share * judge_seconds:
            return False
        budget = search.seconds + stop.seconds_left(search)
        if math.isinf(budget):
            return True
        # One that took longer than it said will do so again.
        slowdown = (
            max(1.0, self.seconds_used / self._seconds_expected) if self._seconds_expected else 1.0
        )
        return self.seconds_used + seconds * slowdown <= self.share * budget

    @contextmanager
    def measure(self, seconds: float) -> Iterator[None]:
        """Measure what is done within, which was expected to take so long."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds_expected += seconds
            self.seconds_used += time.perf_counter() - started


class BudgetedProposer:
    """A proposer within its allowance: it is asked only what the budget has room for."""

    def __init__(self, proposer: Proposer, budget: ProposerBudget) -> None:
        self.proposer, self.budget = proposer, budget
        self.search = budget.search
        ops = self.search.problem.arrays.ops
        self._plan_seconds = float(getattr(proposer, "plan_seconds", _DEFAULT_SECONDS)) * ops
        self._move_seconds = float(getattr(proposer, "move_seconds", _DEFAULT_SECONDS)) * ops
        self.lacks_moves = False
        """Whether it has said that it knows nothing of moves."""

    def plans(self) -> list[Plan]:
        """What it proposes, if there is time for it."""
        if not self.budget.allows(self._plan_seconds):
            return []
        seed = int(self.search.rng.integers(2**31))
        with self.budget.measure(self._plan_seconds):
            return list(self.proposer.propose(self.search.problem, _PLANS_PER_PROPOSER, seed))

    def guide(self, every: int) -> MoveGuide | None:
        """Its moves, for a walk; None if there is no time to ask it even once."""
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
        """Plans × ops × devices of what it thinks, or None."""
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
            f"proposer {name!r} gives moves that are no probabilities: "
            "expected rows of numbers >= 0 that sum to 1"
        )
    return checked
