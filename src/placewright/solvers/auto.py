"""Auto: runs every method on one search and spends the budget where it gains."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import ConfigError
from placewright.plan_batch import PlanBatch
from placewright.solvers.baselines import constructive_solvers
from placewright.solvers.exact.solver import Exact
from placewright.solvers.fuse_plan import fuse_ops, reorder_fused
from placewright.solvers.ordering.priority_rules import rule_priorities
from placewright.solvers.partition.capacity_repair import repair_rounds
from placewright.solvers.proposer import (
    BudgetedProposer,
    Proposer,
    ProposerBudget,
)
from placewright.solvers.scout import Scout
from placewright.solvers.search import Search, phase_name
from placewright.solvers.searches.annealing import (
    elite_plans,
    first_round_length,
    grouping_levels,
    memory_binds,
)
from placewright.solvers.searches.annealing_chains import (
    AnnealingChains,
    Cooling,
    MoveShares,
)
from placewright.solvers.searches.genetic import Genetic
from placewright.solvers.searches.local_search import LocalSearch
from placewright.solvers.stop import Within
from placewright.transforms.bundles import Bundles

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.problem import Problem
    from placewright.simulator._kernel import ScoutNet
    from placewright.solvers.search import Solver

_SMALL_GRAPH_OPS = (
    400  # ops up to which bounds are fast, and annealing finds what other searches would
)
_SLOW_SECONDS = 4e-4  # seconds per op of the slowest constructive method
_BOUND_SECONDS = 1e-3  # seconds per op that the bound may take
_FIRST_ROUNDS = 2  # rounds of annealing before the slower constructive methods
_ROUNDS_BETWEEN = 10  # rounds of annealing between two attempts at a proof
_PROOF_WORK = (1.0, 4.0, 16.0)  # deterministic time of CP-SAT for them: about seconds
_MAX_EXACT_BUNDLES = 40  # bundles up to which CP-SAT is tried
_MIN_EXACT_SECONDS = 3.0  # seconds left, at least: it takes one to start
_HANG_SECONDS = 120.0  # seconds, which this amount of work never takes
_PLANS_TO_ORDER = 3  # placements that the priority rules are tried on
_PLANS_TO_REPAIR = 3  # plans that are repaired where none fits
_LOCAL_SEARCH_OPS = 5_000  # ops up to which local search starts within a second or two
_RESTART_ROUNDS = 8  # times a first round of annealing: evaluations of the other searches
_RESTART_MAX_PLANS = 10_000  # their limit where annealing evaluates far more plans in that time
_RESTART_MAX_OPS = 10_000  # ops up to which they are tried
_RESTART_MIN_SECONDS = 12.0  # seconds left, without which they are not tried
_ROUND_GROWTH = 2  # factor by which an arm's rounds grow
_EVALUATIONS_PER_OP = 1_000  # evaluations per op: the longest round for step times
_MAX_ROUND_FACTOR = 512  # times the first round: the longest round
_LOCAL_SEARCH_COST = (
    3.0  # an evaluation in local search takes this many times longer than in annealing
)
_SCOUT_COST = 1.5  # an evaluation with a scout takes this many times longer: few moves are hopeless
_IDLE_CYCLES = 4  # without a stop rule: cycles through all arms without a gain before the end


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
        budget = ProposerBudget(search)
        proposers = [BudgetedProposer(proposer, budget) for proposer in self.proposers]
        annealing = _AnnealingRounds(self, search, proposers)
        quick, slow = constructive_solvers(search.problem, with_partitioners=True)
        ops = search.problem.arrays.ops
        is_large, slow_seconds = ops > _SMALL_GRAPH_OPS, ops * _SLOW_SECONDS
        stages: tuple[Callable[[], bool], ...] = (
            lambda: (
                _run_solvers(quick, search)
                and _judge_proposals(search, proposers)
                and _repair_plans(search)
            ),
            lambda: is_large or _compute_bound(search),
            lambda: annealing.run(_FIRST_ROUNDS, share=0.25),
            lambda: _compute_bound(search),
            lambda: _run_solvers(slow, search, slow_seconds) and _repair_plans(search),
            lambda: (
                _try_priority_rules(search)
                and _run_restarts(search, annealing.first_length * _RESTART_ROUNDS)
            ),
            lambda: annealing.run(_ROUNDS_BETWEEN),
            *(partial(self._prove_and_anneal, annealing, work) for work in _PROOF_WORK),
            annealing.run,
        )
        for stage in stages:
            if not stage():
                break
        if self.fuse and not search.over:  # the bound that ended the search holds for unfused ops
            _judge_fused(search)

    def _prove_and_anneal(self, annealing: _AnnealingRounds, work: float) -> bool:
        search = annealing.search
        return (
            self._prove(search, work)
            and annealing.run(_ROUNDS_BETWEEN)
            and _try_priority_rules(search)
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


def _run_solvers(solvers: list[Solver], search: Search, min_seconds: float = 0.0) -> bool:
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


def _repair_plans(search: Search) -> bool:
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
    if not _SMALL_GRAPH_OPS < ops <= _RESTART_MAX_OPS:
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


def _judge_fused(search: Search) -> None:
    """Evaluate the best plan with ops fused as a compiler does."""
    fused_plan = fuse_ops(search.problem, elite_plans(search, 1)[0])
    if fused_plan is not None:
        search.phase = "fusion"
        search.judge_plan(reorder_fused(search.problem, fused_plan))


def _try_priority_rules(search: Search) -> bool:
    """Try the priority rules on the best placements; whether the search should go on."""
    problem = search.problem
    if problem.objective == "period":  # which no order changes
        return True
    for plan in elite_plans(search, _PLANS_TO_ORDER):
        search.phase = "priority rules"
        rules = np.stack(list(rule_priorities(problem, plan.placement, plan.staging).values()))
        search.judge(np.repeat(plan.placement[None], len(rules), axis=0), rules, plan.staging)
        if is_finished(search):
            return False
    return True


class _AnnealingRounds:
    """The annealing of one search: which arm next, from which plans, for how long."""

    def __init__(self, auto: Auto, search: Search, proposers: list[BudgetedProposer]) -> None:
        self.chains, self.fuse, self.search, self.proposers = (
            auto.chains,
            auto.fuse,
            search,
            proposers,
        )
        problem = search.problem
        self.first_length = auto.first_evaluations or first_round_length(problem)
        # Small problems gain more from many short rounds than from a few long ones.
        max_evaluations = (
            _EVALUATIONS_PER_OP * problem.arrays.ops if problem.objective == "step" else math.inf
        )
        self.max_factor = max(1, min(_MAX_ROUND_FACTOR, max_evaluations / self.first_length))
        self.round_count, self.idle_rounds = 0, 0

    @cached_property
    def walker(self) -> AnnealingChains:
        return AnnealingChains(self.search, grouping_levels(self.search.problem))

    @cached_property
    def arms(self) -> list[_Arm]:
        problem = self.search.problem
        arms = _default_arms(problem, memory_binds(problem, self.search))
        for proposer in self.proposers:
            scout = proposer.network()
            if scout is not None or proposer.guide(self.first_length) is not None:
                arms = _with_proposer(arms, proposer, scout)
        return arms

    def run(self, max_rounds: float = math.inf, share: float = 1.0) -> bool:
        """Anneal for `max_rounds` rounds, or until no arm gains; whether the search should go on.

        Args:
            share: The share of the evaluations left that a round may take.
        """
        search, rounds = self.search, 0
        while rounds < max_rounds and self.idle_rounds < _IDLE_CYCLES * len(self.arms):
            arm, key_before = _next_arm(self.arms), self.walker.key
            search.phase = arm.name
            effort = min(_ROUND_GROWTH**arm.uses, self.max_factor)
            evaluations_left = search.stop.left(search) * share / self.chains
            # A round takes as long with a scout as without one.
            length = self.first_length / (1.0 if arm.scout is None else _SCOUT_COST)
            self._run_arm(arm, int(min(length * effort, evaluations_left)))
            if is_finished(search):
                return False
            if self.fuse:
                _judge_fused(search)
            gain = _relative_gain(key_before, self.walker.key)
            arm.record_gain(gain, effort * (_LOCAL_SEARCH_COST if arm.cooling is None else 1.0))
            self.idle_rounds = 0 if gain > 1e-5 else self.idle_rounds + 1
            self.round_count, rounds = self.round_count + 1, rounds + 1
        return True

    def _run_arm(self, arm: _Arm, evaluations: int) -> None:
        search = self.search
        if arm.cooling is None:
            LocalSearch(max_plans=max(1, evaluations * self.chains)).run(search)
            if (candidate := search.best_by_phase.get(arm.name)) is not None:
                self.walker.key = min(self.walker.key, candidate.key)
            return
        plans = elite_plans(search, self.chains, skip=self.round_count)
        start_rows = PlanBatch.of(search.problem, plans, arm.change_order, arm.change_streaming)
        changes = MoveShares.for_search(arm.change_order, arm.change_streaming)
        guide = None if arm.proposer is None else arm.proposer.guide(self.first_length)
        self.walker.run(
            start_rows, evaluations, arm.cooling, changes, arm.size_slope, guide, arm.scout
        )


@dataclass
class _Arm:
    """One setting of annealing, and its gain when last used."""

    name: str
    change_order: bool
    change_streaming: bool
    cooling: Cooling | None  # None for local search
    size_slope: float
    proposer: BudgetedProposer | None = None  # the source of its moves
    scout: ScoutNet | None = None
    uses: int = 0
    gain_rate: float = 0.0

    def record_gain(self, gain: float, effort: float) -> None:
        self.uses += 1
        self.gain_rate = gain / effort


def _default_arms(problem: Problem, stream: bool) -> list[_Arm]:
    if problem.objective == "period":
        return [
            _Arm("annealing warm", False, False, Cooling(0.03, 3e-5), 0.5),
            _Arm("annealing cool", False, False, Cooling(0.003, 3e-5), 0.3),
            _Arm("annealing hot", False, False, Cooling(0.1, 1e-4), 1.0),
            _Arm("annealing cold", False, False, Cooling(0.001, 5e-5), 0.3),
        ]
    arms: list[_Arm] = []
    for streaming in [True, False] if stream else [False]:
        prefix = "streaming " if streaming else ""
        arms += [
            _Arm(f"annealing {prefix}cool", False, streaming, Cooling(0.005, 1e-4), 1.0),
            _Arm(f"annealing {prefix}order", True, streaming, Cooling(0.01, 1e-4), 1.0),
            _Arm(f"annealing {prefix}warm", False, streaming, Cooling(0.03, 1e-4), 1.5),
            _Arm(f"annealing {prefix}order fine", True, streaming, Cooling(0.003, 1e-5), 0.7),
            _Arm(f"annealing {prefix}order hot", True, streaming, Cooling(0.1, 1e-3), 0.2),
            _Arm(f"annealing {prefix}order boiling", True, streaming, Cooling(0.4, 1e-4), 1.0),
        ]
    if _SMALL_GRAPH_OPS < problem.arrays.ops <= _LOCAL_SEARCH_OPS:
        arms.insert(3, _Arm(LocalSearch.name, True, False, None, 1.0))
    return arms


def _with_proposer(
    arms: list[_Arm], proposer: BudgetedProposer, scout: ScoutNet | None
) -> list[_Arm]:
    """The arms, and the first two arms without streaming again with a proposer's moves.

    These come first if it has a scout, which runs inside annealing, else behind the plain ones.
    """
    plain_arms = [arm for arm in arms if not arm.change_streaming and arm.cooling is not None][:2]
    proposer_arms = [
        replace(arm, name=f"{arm.name} by {proposer.proposer.name}", proposer=proposer, scout=scout)
        for arm in plain_arms
    ]
    if scout is None:
        position = max(map(arms.index, plain_arms)) + 1
        return [*arms[:position], *proposer_arms, *arms[position:]]
    position = arms.index(plain_arms[0])
    other_arms = [arm for arm in arms[position:] if arm not in plain_arms]
    return [*arms[:position], *proposer_arms, *other_arms, *plain_arms]


def _next_arm(arms: list[_Arm]) -> _Arm:
    """Each arm once; then the arm of the largest gain and the least used arm alternately."""
    unused = [arm for arm in arms if not arm.uses]
    if unused:
        return unused[0]
    rounds = sum(arm.uses for arm in arms)
    if rounds % 2:
        return min(arms, key=lambda arm: arm.uses)
    return max(arms, key=lambda arm: arm.gain_rate)


def _relative_gain(before: tuple[float, float], after: tuple[float, float]) -> float:
    """The gain as a share of the objective, or of the overflow."""
    component = 0 if before[0] > 0 else 1
    return (
        (before[component] - after[component]) / before[component] if before[component] > 0 else 0.0
    )


def _compute_bound(search: Search) -> bool:
    """Compute the bound if there is time; whether the search should go on."""
    if search.stop.seconds_left(search) > search.problem.arrays.ops * _BOUND_SECONDS:
        _ = search.bound
    return not is_finished(search)


def is_finished(search: Search) -> bool:
    """Whether the search is over, or the best plan fits and reaches the known bound."""
    if search.over:
        return True
    overflow, value = search.key
    if overflow or not search.bound_known:
        return False
    return value <= search.bound.seconds * (1 + 1e-6)
