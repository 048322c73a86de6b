"""Finds a plan for a workload: joint search, each call alone, then call by call in turn."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from placewright.plan import Plan
from placewright.solvers.accelerate_map import Accelerate
from placewright.solvers.annealing_rounds import AnnealingRounds
from placewright.solvers.auto import repair_plans, run_solvers
from placewright.solvers.balanced import Balanced
from placewright.solvers.baselines import constructive_solvers
from placewright.solvers.proposer import BudgetedProposer, ProposerBudget
from placewright.solvers.search import Search, phase_name
from placewright.solvers.searches.annealing import anneal_to_fit
from placewright.solvers.stop import MaxEvaluations, Slice
from placewright.solvers.streamed import Streamed
from placewright.solvers.workloads.call_plans import (
    CallPlans,
    evaluate_call,
    pin_weights,
    residency_of,
)
from placewright.solvers.workloads.call_turns import CallTurns
from placewright.solvers.workloads.resident_search import search_resident_weights
from placewright.transforms import JointProblem, join_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from placewright.solvers.auto import Auto
    from placewright.solvers.search import Solver
    from placewright.solvers.workloads.call_plans import Residency
    from placewright.solvers.workloads.workload_search import WorkloadSearch

_RESIDENT_SHARE = 0.25  # of the budget: which weights stay on a GPU that cannot hold all
_FIRST_TURNS_SHARE = 0.1  # of the budget: turns of the baselines' placements of weights
_JOINT_SHARE = 0.2  # of what is left then: the first joint search
_ALONE_SHARE = 0.4  # of what is left then: all calls alone, and the others under their weights
_PLANS_ALONE = 2  # plans of a call alone whose weights are imposed on the others
_SECOND_TURNS_SHARE = 0.35  # of what is left then: turns of the best placements so far
_TURN_SHARE = 0.15  # of what is left: a turn of one placement, or of the joint search
_JOINT_ROUNDS = 3  # rounds of annealing of the joint problem in a turn
_IDLE_TURNS = 3  # turns of everything without a gain before the end
_POOL = 4  # placements of weights that take turns
_ALL_RESIDENCIES = 512  # placements of weights that are all tried where nothing fits yet
_FIT_TRIES = 200  # neighbours tried otherwise
_FIT_EVALUATIONS = 400  # evaluations for one call to fit


@dataclass(frozen=True)
class WorkloadSolver:
    """The method for workloads; each part evaluates its plans exactly, in every call.

    1. Baselines: each single device; the weights where `streamed`, `balanced` and Accelerate put
       them for one call, imposed on the others. Where one GPU cannot hold all weights, those that
       stay are searched by themselves (`resident_search.py`). Then the calls take turns under the
       best of these placements: weights are fixed, and the calls annealed one by one.
    2. The joint problem (`transforms/joint_problem.py`) from there: quick methods and annealing.
    3. Each call alone likewise, its weights then imposed on the others.
    4. Turns again, and the joint problem from the best of them, until nothing gains.

    Args:
        auto: The settings of annealing.
    """

    auto: Auto

    def run(self, search: WorkloadSearch) -> None:
        auto = replace(self.auto, exact=False)
        joint = join_calls(search.workload)
        joint_search = Search(
            joint.problem, Slice.of(search, 1.0), search.seed, search.report_progress
        )
        rounds = _annealing_rounds(joint_search, auto)
        turns = CallTurns(search, auto)
        stages: tuple[Callable[[], None], ...] = (
            lambda: _judge_baselines(search, joint),
            search.compute_quick_bound,
            lambda: search_resident_weights(search, _RESIDENT_SHARE),
            lambda: turns.halve(_FIRST_TURNS_SHARE),
            lambda: _search_jointly(search, joint, rounds),
            lambda: _solve_alone(search, turns),
            lambda: _find_fitting(search),
            lambda: turns.halve(_SECOND_TURNS_SHARE),
            lambda: _take_turns(search, joint, rounds, turns),
        )
        for stage in stages:
            stage()
            if search.is_finished():
                return


def solve_jointly(search: WorkloadSearch, solver: Solver) -> None:
    """Run another method than `auto` on the joint problem and evaluate its plans."""
    joint = join_calls(search.workload)
    joint_search = Search(joint.problem, Slice.of(search, 1.0), search.seed, search.report_progress)
    search.phase = phase_name(solver)
    solver.run(joint_search)
    search.evaluations += joint_search.evaluations
    for plan in _plans_of(joint_search):
        if search.over:
            return
        search.judge(joint.split(plan))


def _judge_baselines(search: WorkloadSearch, joint: JointProblem) -> None:
    workload = search.workload
    search.phase = "single"
    for placement in joint.problem.single_device_placements():
        search.single_devices.append(search.judge(joint.split(Plan.of(joint.problem, placement))))
        if search.over:
            return
    for solver in (Streamed(), Balanced(), Accelerate()):
        for at, problem in enumerate(workload.problems):
            search.phase = phase_name(solver)
            alone = Search(problem, Slice.of(search, 0.1), search.seed)
            solver.run(alone)
            search.evaluations += alone.evaluations
            if alone.best is not None:
                _impose(search, at, alone.best)
            if search.over:
                return


def _impose(search: WorkloadSearch, at: int, plan: Plan) -> None:
    """Evaluate a call's plan with simple plans of the other calls for its weights."""
    residency = residency_of(search.workload, at, plan)
    search.judge_residency(residency, {at: plan})


def _search_jointly(search: WorkloadSearch, joint: JointProblem, rounds: AnnealingRounds) -> None:
    joint_search = rounds.search
    joint_search.stop = Slice.of(search, _JOINT_SHARE, joint_search)
    _judge_in_joint(search, joint, joint_search, _POOL)
    _run_quickly(rounds)
    search.evaluations += joint_search.evaluations
    _adopt_joint(search, joint, joint_search)


def _adopt_joint(search: WorkloadSearch, joint: JointProblem, joint_search: Search) -> None:
    """Evaluate the best plans of the joint search in the calls."""
    search.phase = f"joint {joint_search.found_by}"
    for plan in _plans_of(joint_search):
        if search.over:
            return
        plans = search.judge(joint.split(plan))
        name = plans.residency.tobytes()
        if search.by_residency.get(name) is plans:
            own = {at: call.plan for at, call in enumerate(plans.calls)}
            search.judge_residency(plans.residency, own)


def _plans_of(search: Search) -> Iterator[Plan]:
    """The best plans of a search and of its phases, best first, each once, without fused ops."""
    candidates = [*search.top_plans, *search.best_by_phase.values()]
    names: set[bytes] = set()
    for candidate in sorted(candidates, key=lambda each: each.key):
        plan = candidate.plan
        priority = b"" if plan.priority is None else plan.priority.tobytes()
        staging = b"" if plan.staging is None else plan.staging.tobytes()
        name = plan.placement.tobytes() + priority + staging
        if plan.fusion is None and name not in names:
            names.add(name)
            yield plan


def _solve_alone(search: WorkloadSearch, turns: CallTurns) -> None:
    """Each call alone, as if the others had no say in where weights are; then a turn with them."""
    workload = search.workload
    for at, problem in enumerate(workload.problems):
        share = _ALONE_SHARE / (len(workload) - _ALONE_SHARE * at)
        alone = Search(problem, Slice.of(search, share / 2), search.seed, search.report_progress)
        _run_quickly(_annealing_rounds(alone, turns.auto))
        search.evaluations += alone.evaluations
        search.phase = f"{workload.calls[at].name} alone"
        for plan in itertools.islice(_plans_of(alone), _PLANS_ALONE):
            _impose(search, at, plan)
            if search.is_finished():
                return
        if alone.best is not None:
            name = residency_of(workload, at, alone.best).tobytes()
            if name in search.by_residency:
                turns.run(name, share / 2, without=at)
        if search.is_finished():
            return


def _take_turns(
    search: WorkloadSearch, joint: JointProblem, rounds: AnnealingRounds, turns: CallTurns
) -> None:
    """Anneal calls with fixed weights, then the joint problem, until nothing gains."""
    joint_search = rounds.search
    idle = 0
    while idle < _IDLE_TURNS * _POOL and not search.is_finished():
        key_before = search.key
        for name in turns.next_placements(_POOL):
            turns.run(name, _TURN_SHARE)
            if search.is_finished():
                return
        before = joint_search.evaluations
        joint_search.stop = Slice.of(search, _TURN_SHARE, joint_search)
        _judge_in_joint(search, joint, joint_search, 1)
        if not joint_search.over:
            rounds.run(_JOINT_ROUNDS)
        search.evaluations += joint_search.evaluations - before
        _adopt_joint(search, joint, joint_search)
        gain = key_before[1] - search.key[1]
        has_gained = search.key[0] < key_before[0] or gain > 1e-5 * search.key[1]
        idle = 0 if has_gained else idle + 1


def _run_quickly(rounds: AnnealingRounds) -> None:
    """The quick methods and annealing: `auto` without what takes seconds, as bounds do."""
    quick, _ = constructive_solvers(rounds.search.problem)
    if run_solvers(quick, rounds.search) and repair_plans(rounds.search):
        rounds.run()


def _annealing_rounds(search: Search, auto: Auto) -> AnnealingRounds:
    budget = ProposerBudget(search)
    proposers = [BudgetedProposer(proposer, budget) for proposer in auto.proposers]
    return AnnealingRounds(search, proposers, auto.chains, False, auto.first_evaluations)


def _judge_in_joint(
    search: WorkloadSearch, joint: JointProblem, joint_search: Search, count: int
) -> None:
    """Evaluate the best plans of the calls in the joint problem, so that it goes on from them."""
    ranked = sorted(search.by_residency.values(), key=lambda plans: plans.key)
    for rank, plans in enumerate(ranked[:count]):
        joint_search.phase = f"calls in turn {rank}"
        joint_search.judge_plan(joint.join([call.plan for call in plans.calls]))


def _find_fitting(search: WorkloadSearch) -> None:
    """Where nothing fits yet: other placements of the weights, each call annealed to fit."""
    if search.key[0] == 0 or search.over:
        return
    search.phase = "fit"
    for residency in _residencies(search):
        plans = search.judge_residency(residency)
        plans = _fit_calls(search, plans)
        if search.over or search.key[0] == 0:
            return


def _fit_calls(search: WorkloadSearch, plans: CallPlans) -> CallPlans:
    for at, call in enumerate(plans.calls):
        if not call.overflow:
            continue
        pinned = pin_weights(search.workload, at, plans.residency)
        limit = Slice.of(search, 1.0) | MaxEvaluations(_FIT_EVALUATIONS)
        inner = Search(pinned, limit, int(search.rng.integers(2**31)))
        inner.judge_plan(call.plan)
        anneal_to_fit(inner)
        search.evaluations += inner.evaluations
        if inner.best is not None and inner.key < (call.overflow, call.value):
            plans = plans.with_call(at, evaluate_call(search.workload, at, inner.best))
            search.record(plans)
        if search.over:
            break
    return plans


def _residencies(search: WorkloadSearch) -> Iterator[Residency]:
    """All placements of the weights if they are few, else neighbours of the best."""
    workload = search.workload
    groups, positions = workload.weight_groups, workload.weight_positions[0]
    allowed = workload.problems[0].arrays.allowed[positions]
    first = np.unique(groups, return_index=True)[1]
    choices = [np.flatnonzero(allowed[weight]).tolist() for weight in first]
    if math.prod(len(devices) for devices in choices) <= _ALL_RESIDENCIES:
        for combination in itertools.product(*choices):
            yield np.array(combination, dtype=np.int32)[groups]
        return
    for _ in range(_FIT_TRIES):
        assert search.best is not None
        residency = search.best.residency.copy()
        for _ in range(int(search.rng.integers(1, 4))):
            group = int(search.rng.integers(len(choices)))
            residency[groups == group] = int(search.rng.choice(choices[group]))
        yield residency
