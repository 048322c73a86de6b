"""Auto: runs every method on one search and spends the budget where it gains."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import ConfigError
from placewright.plan_batch import PlanBatch
from placewright.solvers.annealing_rounds import (
    SMALL_GRAPH_OPS,
    AnnealingRounds,
    AnnealingSnapshot,
    is_finished,
    judge_fused,
)
from placewright.solvers.baselines import constructive_solvers
from placewright.solvers.exact.solver import Exact
from placewright.solvers.move_scorer import Scout
from placewright.solvers.ordering.priority_rules import rule_priorities
from placewright.solvers.partition.capacity_repair import repair_rounds
from placewright.solvers.proposer import BudgetedProposer, Proposer, ProposerBudget
from placewright.solvers.search import Search, phase_name
from placewright.solvers.searches.annealing import elite_plans
from placewright.solvers.searches.genetic import Genetic
from placewright.solvers.searches.local_search import LocalSearch
from placewright.solvers.stop import Within
from placewright.transforms.bundles import Bundles

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.solvers.search import Solver

_SLOW_SECONDS = 4e-4  # seconds per op of the slowest constructive method
_BOUND_SECONDS = 3e-4  # seconds per op that the bound may take
_FIRST_ROUNDS = 2  # rounds of annealing before the slower constructive methods
_ROUNDS_BETWEEN = 10  # rounds of annealing between two attempts at a proof
_PROOF_WORK = (1.0, 4.0, 16.0)  # deterministic time of CP-SAT for them: about seconds
_MAX_EXACT_BUNDLES = 40  # bundles up to which CP-SAT is tried
_MIN_EXACT_SECONDS = 3.0  # seconds left, at least: it takes one to start
_HANG_SECONDS = 120.0  # seconds, which this amount of work never takes
_PLANS_TO_ORDER = 3  # placements that the priority rules are tried on
_PLANS_TO_REPAIR = 3  # plans that are repaired where none fits
_RESTART_ROUNDS = 8  # times a first round of annealing: evaluations of the other searches
_RESTART_MAX_PLANS = 10_000  # their limit where annealing evaluates far more plans in that time
_RESTART_MAX_OPS = 10_000  # ops up to which they are tried
_RESTART_MIN_SECONDS = 12.0  # seconds left, without which they are not tried


@dataclass(frozen=True)
class AutoSnapshot:
    """Where `auto` is in its stages.

    Args:
        stage: The stage that is next.
        stage_rounds: Rounds of annealing that this stage has done already.
        is_over: Whether it is at its end: no stage is left, the stop rule said stop, or the bound
            is reached.
        proposer_seconds: Seconds of the proposers, as expected and as measured.
        without_moves: Names of proposers that have no opinion on moves.
    """

    stage: int = 0
    stage_rounds: int = 0
    is_over: bool = False
    annealing: AnnealingSnapshot | None = None
    proposer_seconds: tuple[float, float] = (0.0, 0.0)
    without_moves: tuple[str, ...] = ()

    def revived(self) -> AutoSnapshot:
        """The same with arms that may gain again, as there is a better plan to start from."""
        if self.annealing is None:
            return self
        annealing = replace(self.annealing, idle_rounds=0)
        last = max(0, self.stage - 1) if self.is_over else self.stage
        return replace(self, stage=last, is_over=False, annealing=annealing)


@dataclass(frozen=True)
class Auto:
    """The default method: constructive methods, then simulated annealing from the best plans.

    Constructive methods (single devices, the defaults of other tools, the expert, balanced splits,
    list schedulers, dynamic programming, partitioners and their repair) are all evaluated, so the
    result is no worse than any of them. Then annealing over blocks of several sizes changes devices
    of ops and of weights, staging and order. There are several settings of it (arms): each is
    tried, and the one that gained most per evaluation when last used goes on, in longer and longer
    rounds. The plans tried depend on the seed and on evaluations only, never on the clock.

    Ends when the stop rule says so, when the bound is reached, or when no arm gains any more.

    Args:
        chains: Annealing chains side by side, each on its own thread.
        first_evaluations: Evaluations of the first round; by default a fraction of a second.
        exact: Whether small problems are given to CP-SAT, where it is installed, on one worker and
            for an amount of work that does not depend on the machine.
        fuse: Whether ops may be fused, for a runtime that does so; most do not by default.
        proposers: Further sources of plans and moves, e.g. a trained policy. Their plans are
            evaluated before annealing, and annealing with their moves adds further arms. Their
            time counts, and is a fifth of the budget at most (`solvers/proposer.py`).
    """

    chains: int = 2
    first_evaluations: int | None = None
    exact: bool = True
    fuse: bool = False
    proposers: tuple[Proposer, ...] = (Scout(),)
    name = "auto"

    def __post_init__(self) -> None:
        if not self.chains >= 1:
            raise ConfigError(f"Auto of {self.chains!r} chains: expected at least 1")

    def run(self, search: Search) -> None:
        self.run_until(search)

    def run_until(
        self,
        search: Search,
        evaluations: float = math.inf,
        snapshot: AutoSnapshot | None = None,
    ) -> AutoSnapshot:
        """Search to the end, or pause once this many plans are evaluated; where it is then.

        Args:
            snapshot: Where another process paused, on a search that is restored: this one goes on
                exactly as that one would have.
        """
        snapshot = AutoSnapshot() if snapshot is None else snapshot
        budget = ProposerBudget(search)
        proposers = [BudgetedProposer(proposer, budget) for proposer in self.proposers]
        annealing = AnnealingRounds(
            search, proposers, self.chains, self.fuse, self.first_evaluations
        )
        annealing.pause_at = evaluations
        budget.seconds_expected, budget.seconds_used = snapshot.proposer_seconds
        for proposer in proposers:
            proposer.lacks_moves = proposer.proposer.name in snapshot.without_moves
        if snapshot.annealing is not None:
            annealing.restore(snapshot.annealing)
        stage, rounds, is_over = snapshot.stage, snapshot.stage_rounds, snapshot.is_over
        stages = self._stages(search, annealing)
        while stage < len(stages) and not is_over and not annealing.is_paused():
            count = annealing.round_count
            is_over = not stages[stage](rounds)
            rounds += annealing.round_count - count
            if not (annealing.is_paused() and rounds):  # a pause leaves rounds of annealing to do
                stage, rounds = stage + 1, 0
        is_over |= stage == len(stages)
        if is_over and self.fuse and not search.over:
            judge_fused(search)  # the bound that ended the search holds for unfused ops
        return AutoSnapshot(
            stage,
            rounds,
            is_over,
            annealing.snapshot,
            (budget.seconds_expected, budget.seconds_used),
            tuple(each.proposer.name for each in proposers if each.lacks_moves),
        )

    def _stages(
        self, search: Search, annealing: AnnealingRounds
    ) -> tuple[Callable[[int], bool], ...]:
        """What is done, in this order; each says whether the search should go on.

        Each is given the rounds of annealing that it has done before a pause.
        """
        quick, slow = constructive_solvers(search.problem, with_partitioners=True)
        ops = search.problem.arrays.ops
        is_large, slow_seconds = ops > SMALL_GRAPH_OPS, ops * _SLOW_SECONDS
        proofs = [
            (
                lambda _, work=work: self._prove(search, work),
                lambda rounds: annealing.run(_ROUNDS_BETWEEN - rounds),
                lambda _: _try_priority_rules(search),
            )
            for work in _PROOF_WORK
        ]
        return (
            lambda _: (
                run_solvers(quick, search)
                and _judge_proposals(search, annealing.proposers)
                and repair_plans(search)
            ),
            lambda _: is_large or _compute_bound(search),
            lambda rounds: annealing.run(_FIRST_ROUNDS - rounds, share=0.25),
            lambda _: _compute_bound(search),
            lambda _: run_solvers(slow, search, slow_seconds) and repair_plans(search),
            lambda _: (
                _try_priority_rules(search)
                and _run_restarts(search, annealing.first_length * _RESTART_ROUNDS)
            ),
            lambda rounds: annealing.run(_ROUNDS_BETWEEN - rounds),
            *itertools.chain(*proofs),
            lambda _: annealing.run(),
        )

    def _prove(self, search: Search, work: float) -> bool:
        """Try CP-SAT on a small problem; whether the search should go on."""
        is_small = (
            len(Bundles.of(search.problem)) <= _MAX_EXACT_BUNDLES
            and find_spec("ortools") is not None
        )
        seconds_left = search.stop.seconds_left(search)
        if self.exact and is_small and seconds_left > _MIN_EXACT_SECONDS:
            search.phase = "exact"
            Exact(deterministic=work, seconds=min(seconds_left / 2, _HANG_SECONDS)).run(search)
        return not is_finished(search)


def _judge_proposals(search: Search, proposers: list[BudgetedProposer]) -> bool:
    """Evaluate the proposers' plans; whether the search should go on."""
    for proposer in proposers:
        search.phase = proposer.proposer.name
        for plan in proposer.plans():
            search.judge_plan(plan)
            if is_finished(search):
                return False
    return True


def run_solvers(solvers: list[Solver], search: Search, min_seconds: float = 0.0) -> bool:
    """Run solvers one after the other; whether the search should go on.

    Args:
        min_seconds: Seconds that one solver may take between two looks at the stop rule; with less
            time left none is started.
    """
    for solver in solvers:
        if search.stop.seconds_left(search) < min_seconds:
            return True
        search.phase = phase_name(solver)
        solver.run(search)
        if is_finished(search):
            return False
    return True


def repair_plans(search: Search) -> bool:
    """Make the best plans fit if none does; whether the search should go on."""
    if search.key[0] == 0:
        return True
    for plan in elite_plans(search, _PLANS_TO_REPAIR):
        search.phase = "repair"
        for placement in repair_rounds(search.problem, plan.placement, plan.priority, plan.staging):
            search.judge(placement, plan.priority, plan.staging)
            if is_finished(search):
                return False
    return True


def _run_restarts(search: Search, max_evaluations: int) -> bool:
    """Run other searches from scratch, which find other plans; whether to go on."""
    ops, is_step = search.problem.arrays.ops, search.problem.objective == "step"
    if not SMALL_GRAPH_OPS < ops <= _RESTART_MAX_OPS:
        return True
    max_evaluations = max_evaluations if is_step else min(max_evaluations, _RESTART_MAX_PLANS)
    solvers: list[Solver] = [
        LocalSearch(max_plans=max_evaluations),
        *([Genetic(max_plans=max_evaluations)] if is_step else []),
    ]
    for solver in solvers:
        if search.stop.seconds_left(search) < (
            _RESTART_MIN_SECONDS if is_step else _RESTART_MIN_SECONDS / 3
        ):
            return True
        restart = Search(search.problem, Within(search), search.seed)
        solver.run(restart)
        search.phase = f"{solver.name} restart"
        if restart.best is not None:
            search.count_external(restart.evaluations, PlanBatch.repeat(restart.best))
        if is_finished(search):
            return False
    return True


def _try_priority_rules(search: Search) -> bool:
    """Try the priority rules on the best placements; whether the search should go on."""
    problem = search.problem
    if problem.objective == "period" and not search.key[0]:  # an order changes memory alone
        return True
    for plan in elite_plans(search, _PLANS_TO_ORDER):
        search.phase = "priority rules"
        rules = np.stack(list(rule_priorities(problem, plan.placement, plan.staging).values()))
        search.judge(np.repeat(plan.placement[None], len(rules), axis=0), rules, plan.staging)
        if is_finished(search):
            return False
    return True


def _compute_bound(search: Search) -> bool:
    """Compute the bound if there is time; whether the search should go on."""
    if search.stop.seconds_left(search) > search.problem.arrays.ops * _BOUND_SECONDS:
        _ = search.bound
    return not is_finished(search)
