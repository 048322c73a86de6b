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
from placewright.solvers.balanced import Balanced
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
    simple_plans,
)
from placewright.transforms import JointProblem, join_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from placewright.solvers.auto import Auto
    from placewright.solvers.search import Solver
    from placewright.solvers.workloads.call_plans import Residency
    from placewright.solvers.workloads.workload_search import WorkloadSearch

_JOINT_SHARE = 0.4  # of the budget: the first joint search
_ALONE_SHARE = 0.25  # of what is left then: all calls alone together
_TURN_SHARE = 0.2  # of what is left: one turn of a call or of the joint search
_TURN_ROUNDS = 3  # rounds of annealing in a turn
_IDLE_TURNS = 3  # turns of everything without a gain before the end
_POOL = 4  # placements of weights whose calls take turns
_ALL_RESIDENCIES = 512  # placements of weights that are all tried where nothing fits yet
_FIT_TRIES = 200  # neighbours tried otherwise
_FIT_EVALUATIONS = 400  # evaluations for one call to fit


@dataclass(frozen=True)
class WorkloadSolver:
    """The method for workloads; each part evaluates its plans exactly, in every call.

    1. Baselines: each single device; the weights where `streamed`, `balanced` and Accelerate put
       them for one call, imposed on the others.
    2. The joint problem (`transforms/join_calls.py`), by `auto`.
    3. Each call alone, by `auto`, its weights then imposed on the others.
    4. Turns: the best placements of weights are fixed, and the calls annealed one by one; then the
       joint problem goes on from there.

    Args:
        auto: The method for single problems, without proofs and fused ops.
    """

    auto: Auto

    def run(self, search: WorkloadSearch) -> None:
        auto = replace(self.auto, exact=False)
        joint = join_calls(search.workload)
        joint_search = Search(joint.problem, Slice.of(search, _JOINT_SHARE), search.seed)
        stages: tuple[Callable[[], None], ...] = (
            lambda: _judge_baselines(search, joint),
            lambda: _search_jointly(search, joint, joint_search, auto),
            lambda: _bound_if_cheap(search),
            lambda: _solve_alone(search, auto),
            lambda: _find_fitting(search),
            lambda: _take_turns(search, joint, joint_search, auto),
        )
        for stage in stages:
            stage()
            if search.is_finished():
                return


def solve_jointly(search: WorkloadSearch, solver: Solver) -> None:
    """Run another method than `auto` on the joint problem and evaluate its plans."""
    joint = join_calls(search.workload)
    joint_search = Search(joint.problem, Slice.of(search, 1.0), search.seed)
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
        search.judge(joint.split(Plan.of(joint.problem, placement)))
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


def _search_jointly(
    search: WorkloadSearch, joint: JointProblem, joint_search: Search, auto: Auto
) -> None:
    joint_search.stop = Slice.of(search, _JOINT_SHARE, joint_search)
    auto.run(joint_search)
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


def _bound_if_cheap(search: WorkloadSearch) -> None:
    ops = sum(problem.arrays.ops for problem in search.workload.problems)
    if search.stop.seconds_left(search) > ops * 1e-3:
        _ = search.bound


def _solve_alone(search: WorkloadSearch, auto: Auto) -> None:
    """Each call alone, as if the others had no say in where weights are; then with them."""
    workload = search.workload
    for at, problem in enumerate(workload.problems):
        share = _ALONE_SHARE / (len(workload) - _ALONE_SHARE * at)
        alone = Search(problem, Slice.of(search, share), search.seed)
        auto.run(alone)
        search.evaluations += alone.evaluations
        search.phase = f"{workload.calls[at].name} alone"
        for plan in itertools.islice(_plans_of(alone), _POOL):
            _impose(search, at, plan)
            if search.over:
                return
        if search.is_finished():
            return


class _Turns:
    """The annealing of one call for one placement of the weights, which can go on later."""

    def __init__(self, search: WorkloadSearch, at: int, plans: CallPlans, auto: Auto) -> None:
        pinned = pin_weights(search.workload, at, plans.residency)
        self.outer, self.at = search, at
        self.inner = Search(pinned, Slice.of(search, _TURN_SHARE), int(search.rng.integers(2**31)))
        self.inner.phase = "start"
        self.inner.judge_plan(plans.calls[at].plan)
        rows = simple_plans(pinned)
        self.inner.phase = "simple"
        self.inner.judge(rows.placement, staging=rows.staging)
        budget = ProposerBudget(self.inner)
        proposers = [BudgetedProposer(proposer, budget) for proposer in auto.proposers]
        self.rounds = AnnealingRounds(
            self.inner, proposers, auto.chains, False, auto.first_evaluations
        )
        self.outer.evaluations += self.inner.evaluations

    def run(self, plans: CallPlans, share: float) -> CallPlans:
        """Anneal for a turn; the plans with the best of this call."""
        before = self.inner.evaluations
        self.inner.stop = Slice.of(self.outer, share, self.inner)
        if not self.inner.over:
            self.rounds.run(_TURN_ROUNDS)
        self.outer.evaluations += self.inner.evaluations - before
        best = self.inner.best
        if best is None or self.inner.key >= (
            plans.calls[self.at].overflow,
            plans.calls[self.at].value,
        ):
            return plans
        call = evaluate_call(self.outer.workload, self.at, best)
        self.outer.evaluations += 1
        return self.outer.record(plans.with_call(self.at, call))


def _take_turns(
    search: WorkloadSearch, joint: JointProblem, joint_search: Search, auto: Auto
) -> None:
    """Anneal calls with fixed weights, then the joint problem, until nothing gains."""
    workload = search.workload
    turns: dict[tuple[int, bytes], _Turns] = {}
    uses: dict[bytes, int] = {}
    joint_rounds: AnnealingRounds | None = None
    idle = 0
    while idle < _IDLE_TURNS * _POOL and not search.is_finished():
        key_before = search.key
        for name in _next_residencies(search, uses):
            uses[name] = uses.get(name, 0) + 1
            for at in np.argsort([-count for count in _loads(search, name)]).tolist():
                plans = search.by_residency.get(name)
                if plans is None:
                    break
                search.phase = f"{workload.calls[at].name} in turn"
                if (at, name) not in turns:
                    turns[at, name] = _Turns(search, at, plans, auto)
                turns[at, name].run(plans, _TURN_SHARE / len(workload))
                if search.is_finished():
                    return
        if search.best is not None:
            joint_search.stop = Slice.of(search, _TURN_SHARE, joint_search)
            before = joint_search.evaluations
            joint_search.phase = "calls in turn"
            joint_search.judge_plan(joint.join([call.plan for call in search.best.calls]))
            if joint_rounds is None:
                budget = ProposerBudget(joint_search)
                proposers = [BudgetedProposer(each, budget) for each in auto.proposers]
                joint_rounds = AnnealingRounds(
                    joint_search, proposers, auto.chains, False, auto.first_evaluations
                )
            if not joint_search.over:
                joint_rounds.run(_TURN_ROUNDS)
            search.evaluations += joint_search.evaluations - before
            _adopt_joint(search, joint, joint_search)
        gain = key_before[1] - search.key[1]
        has_gained = search.key[0] < key_before[0] or gain > 1e-5 * search.key[1]
        idle = 0 if has_gained else idle + 1


def _next_residencies(search: WorkloadSearch, uses: dict[bytes, int]) -> Iterable[bytes]:
    """The best placement of weights, and of the next best the one that had fewest turns."""
    ranked = sorted(search.by_residency, key=lambda name: search.by_residency[name].key)[:_POOL]
    others = sorted(ranked[1:], key=lambda name: uses.get(name, 0))
    return [*ranked[:1], *others[:1]]


def _loads(search: WorkloadSearch, name: bytes) -> list[float]:
    """The part of each call in the objective."""
    plans = search.by_residency[name]
    counts = search.workload.counts.tolist()
    return [count * call.value for count, call in zip(counts, plans.calls, strict=True)]


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
