"""Auto: every method we have on one search, its budget spent where it gains."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import ConfigError
from placewright.solvers.baselines import baselines
from placewright.solvers.exact.solver import Exact
from placewright.solvers.fuse_plan import fused, ordered
from placewright.solvers.ordering.priority_rules import priority_rules
from placewright.solvers.partition.capacity_repair import rounds
from placewright.solvers.proposer import (
    Allowance,
    Asked,
    Proposer,
)
from placewright.solvers.search import Search, called
from placewright.solvers.searches.annealing import elite, first_length, levels, memory_binds
from placewright.solvers.searches.annealing_chains import (
    Changes,
    Cooling,
    Rows,
    Walker,
)
from placewright.solvers.searches.genetic import Genetic
from placewright.solvers.searches.local_search import LocalSearch
from placewright.solvers.stop import Within
from placewright.transforms.bundles import Teams

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.problem import Problem
    from placewright.simulator._kernel import ScoutNet
    from placewright.solvers.search import Solver

_QUICK_OPS = 400  # up to which bounds are quick, and walks find what other searches would
_SLOW_SECONDS = 4e-4  # for each op, that the slowest constructive method takes
_BOUND_SECONDS = 1e-3  # for each op, that the bound may take
_FIRST_ROUNDS = 2  # of walking, before the slower constructive methods
_ROUNDS_BETWEEN = 10  # of walking, between two attempts at a proof
_PROOFS = (1.0, 4.0, 16.0)  # CP-SAT's own measure of work for them: about seconds
_SMALL = 40  # teams of ops that CP-SAT is asked about at most
_WORTH_ASKING = 3.0  # seconds left: it takes one to start
_HANGS = 120.0  # seconds, which the work it is given never takes
_ORDERED = 3  # placements that the priority rules are tried on
_REPAIRED = 3  # plans that are repaired where none fits
_LOCAL_OPS = 5_000  # up to which local search begins within a second or two
_OTHERS = 8  # times a first walk: plans that other searches judge
_OTHERS_PERIODS = 10_000  # plans of them at most where a walk judges far more in the same time
_OTHERS_OPS = 10_000  # up to which they are tried
_OTHERS_SECONDS = 12.0  # seconds left, without which they are not
_GROWTH = 2  # each time an arm is used, its round is so many times longer
_ENOUGH = 1_000  # evaluations for each op: no walk through step times is longer
_LONGEST = 512  # times the first round: no round is longer
_DEARER = 3.0  # how much longer an evaluation takes in local search than in a walk
_SCOUTED = 1.5  # how much longer an evaluation takes with a scout, whose moves are seldom hopeless
_IDLE_CYCLES = 4  # without a stop rule: cycles through all arms that gain nothing before the end


@dataclass(frozen=True)
class Auto:
    """The method to use: constructive methods, and walks from the best of them.

    Constructive methods (every single device, the defaults of other tools, the expert, balanced
    splits, list schedulers, dynamic programming, partitioners and their repair) are all judged, so
    the result is no worse than any of them. Then walks over blocks of several sizes change devices
    of ops and of weights, staging and order. There are several kinds of walk (arms): each is tried,
    and the one that gained most per evaluation when it was last used goes on, for longer and longer
    rounds. What is tried depends on the seed and on evaluations alone, never on the clock.

    Ends when the stop rule says so, when the bound is reached, or when nothing gains any more.

    Args:
        chains: Walks side by side, each on a thread of its own.
        first: Evaluations of the first walk; by default a fraction of a second's worth.
        exact: Whether small problems are put to CP-SAT, where it is installed, on one worker and
            for an amount of work that does not depend on the machine.
        fuse: Whether ops may be fused, for a runtime that does so; off, since most do not unasked.
        proposers: Further sources of plans and moves, such as a trained policy. Their plans are
            judged before the walks, and walks whose moves they draw are further arms. Their seconds
            count, and are a fifth of the budget at most (`solvers/proposer.py`).
    """

    chains: int = 2
    first: int | None = None
    exact: bool = True
    fuse: bool = False
    proposers: tuple[Proposer, ...] = ()
    name = "auto"

    def __post_init__(self) -> None:
        if not self.chains >= 1:
            raise ConfigError(f"Auto of {self.chains!r} chains: expected at least 1")

    def run(self, search: Search) -> None:
        allowance = Allowance(search)
        asked = [Asked(proposer, allowance) for proposer in self.proposers]
        walks = _Walks(self, search, asked)
        quick, slow = baselines(search.problem, installed=True)
        ops = search.problem.arrays.ops
        large, takes = ops > _QUICK_OPS, ops * _SLOW_SECONDS
        stages: tuple[Callable[[], bool], ...] = (
            lambda: _run(quick, search) and _propose(search, asked) and _repair(search),
            lambda: large or _bound(search),
            lambda: walks.run(_FIRST_ROUNDS, share=0.25),
            lambda: _bound(search),
            lambda: _run(slow, search, takes) and _repair(search),
            lambda: _order(search) and _others(search, walks.length * _OTHERS),
            lambda: walks.run(_ROUNDS_BETWEEN),
            *(partial(self._prove_and_walk, walks, work) for work in _PROOFS),
            walks.run,
        )
        for stage in stages:
            if not stage():
                break
        if self.fuse and not search.over:  # the bound that ended it holds for single ops
            _fuse(search)

    def _prove_and_walk(self, walks: _Walks, work: float) -> bool:
        search = walks.search
        return self._prove(search, work) and walks.run(_ROUNDS_BETWEEN) and _order(search)

    def _prove(self, search: Search, work: float) -> bool:
        """Ask CP-SAT about a small problem; whether the search should go on."""
        small = len(Teams.of(search.problem)) <= _SMALL and find_spec("ortools") is not None
        left = search.stop.seconds_left(search)
        if self.exact and small and left > _WORTH_ASKING:
            search.trying = "exact"
            Exact(deterministic=work, seconds=min(left / 2, _HANGS)).run(search)
        return not finished(search)


def _propose(search: Search, asked: list[Asked]) -> bool:
    """Judge what the proposers propose; whether the search should go on."""
    for each in asked:
        search.trying = each.proposer.name
        for plan in each.plans():
            search.propose(plan)
            if finished(search):
                return False
    return True


def _run(solvers: list[Solver], search: Search, takes: float = 0.0) -> bool:
    """Run solvers in turn; whether the search should go on.

    Args:
        takes: Seconds that one may take, since it does not look at the stop rule all the time;
            with less time left none is begun.
    """
    for solver in solvers:
        if search.stop.seconds_left(search) < takes:
            return True
        search.trying = called(solver)
        solver.run(search)
        if finished(search):
            return False
    return True


def _repair(search: Search) -> bool:
    """Make the best plans fit if none does; whether the search should go on."""
    if search.key[0] == 0:
        return True
    for plan in elite(search, _REPAIRED):
        search.trying = "repair"
        for better in rounds(search.problem, plan.device, plan.priority, plan.staging):
            search.judge(better, plan.priority, plan.staging)
            if finished(search):
                return False
    return True


def _others(search: Search, most: int) -> bool:
    """Let other searches begin anew, so that none finds what we miss; whether to go on."""
    ops, step = search.problem.arrays.ops, search.problem.objective == "step"
    if not _QUICK_OPS < ops <= _OTHERS_OPS:
        return True
    most = most if step else min(most, _OTHERS_PERIODS)
    solvers: list[Solver] = [LocalSearch(most=most), *([Genetic(most=most)] if step else [])]
    for solver in solvers:
        if search.stop.seconds_left(search) < (_OTHERS_SECONDS if step else _OTHERS_SECONDS / 3):
            return True
        alone = Search(search.problem, Within(search), search.seed)
        solver.run(alone)
        search.trying = f"{solver.name} alone"
        if alone.best is not None:
            plan = alone.best
            search.walked(alone.evaluations, plan.device, plan.priority, plan.staging)
        if finished(search):
            return False
    return True


def _fuse(search: Search) -> None:
    """Propose the best plan with ops fused into their only readers."""
    together = fused(search.problem, elite(search, 1)[0])
    if together is not None:
        search.trying = "fused"
        search.propose(ordered(search.problem, together))


def _order(search: Search) -> bool:
    """Try the priority rules on the best placements; whether the search should go on."""
    problem = search.problem
    if problem.objective == "period":  # which no order changes
        return True
    for plan in elite(search, _ORDERED):
        search.trying = "order rules"
        rules = np.stack(list(priority_rules(problem, plan.device, plan.staging).values()))
        search.judge(np.repeat(plan.device[None], len(rules), axis=0), rules, plan.staging)
        if finished(search):
            return False
    return True


class _Walks:
    """The walks of one search: which kind next, from where, and for how long."""

    def __init__(self, auto: Auto, search: Search, asked: list[Asked]) -> None:
        self.chains, self.fuse, self.search, self.asked = auto.chains, auto.fuse, search, asked
        problem = search.problem
        self.length = auto.first or first_length(problem)
        # Small problems gain more from many short walks than from few long ones.
        enough = _ENOUGH * problem.arrays.ops if problem.objective == "step" else math.inf
        self.longest = max(1, min(_LONGEST, enough / self.length))
        self.rounds, self.idle = 0, 0

    @cached_property
    def walker(self) -> Walker:
        return Walker(self.search, levels(self.search.problem))

    @cached_property
    def arms(self) -> list[_Arm]:
        problem = self.search.problem
        arms = _arms(problem, memory_binds(problem, self.search))
        for each in self.asked:
            scout = each.network()
            if scout is not None or each.guide(self.length) is not None:
                arms = _proposed(arms, each, scout)
        return arms

    def run(self, most: float = math.inf, share: float = 1.0) -> bool:
        """Walk so many rounds, or until nothing gains; whether the search should go on.

        Args:
            share: Of the evaluations left, for each round at most.
        """
        search, walked = self.search, 0
        while walked < most and self.idle < _IDLE_CYCLES * len(self.arms):
            arm, before = _next(self.arms), self.walker.key
            search.trying = arm.name
            effort = min(_GROWTH**arm.used, self.longest)
            left = search.stop.left(search) * share / self.chains
            # A round takes as long with a scout as without one.
            length = self.length / (1.0 if arm.scout is None else _SCOUTED)
            self._use(arm, int(min(length * effort, left)))
            if finished(search):
                return False
            if self.fuse:
                _fuse(search)
            gain = _gain(before, self.walker.key)
            arm.learn(gain, effort * (_DEARER if arm.cooling is None else 1.0))
            self.idle = 0 if gain > 1e-5 else self.idle + 1
            self.rounds, walked = self.rounds + 1, walked + 1
        return True

    def _use(self, arm: _Arm, evaluations: int) -> None:
        search = self.search
        if arm.cooling is None:
            LocalSearch(most=max(1, evaluations * self.chains)).run(search)
            if (found := search.parts.get(arm.name)) is not None:
                self.walker.key = min(self.walker.key, found.key)
            return
        plans = elite(search, self.chains, skip=self.rounds)
        start = Rows.of(search.problem, plans, arm.order, arm.stream)
        changes = Changes.fit(arm.order, arm.stream)
        guide = None if arm.asked is None else arm.asked.guide(self.length)
        self.walker.walk(start, evaluations, arm.cooling, changes, arm.slope, guide, arm.scout)


@dataclass
class _Arm:
    """A kind of walk, and what it was worth when last used."""

    name: str
    order: bool
    stream: bool
    cooling: Cooling | None  # None for local search, which is no walk
    slope: float
    asked: Asked | None = None  # whose moves are tried
    scout: ScoutNet | None = None
    used: int = 0
    worth: float = 0.0

    def learn(self, gain: float, effort: float) -> None:
        self.used += 1
        self.worth = gain / effort


def _arms(problem: Problem, stream: bool) -> list[_Arm]:
    if problem.objective == "period":
        return [
            _Arm("walk warm", False, False, Cooling(0.03, 3e-5), 0.5),
            _Arm("walk cool", False, False, Cooling(0.003, 3e-5), 0.3),
            _Arm("walk hot", False, False, Cooling(0.1, 1e-4), 1.0),
            _Arm("walk cold", False, False, Cooling(0.001, 5e-5), 0.3),
        ]
    arms: list[_Arm] = []
    for streamed in [True, False] if stream else [False]:
        kind = "stream " if streamed else ""
        arms += [
            _Arm(f"walk {kind}cool", False, streamed, Cooling(0.005, 1e-4), 1.0),
            _Arm(f"walk {kind}order", True, streamed, Cooling(0.01, 1e-4), 1.0),
            _Arm(f"walk {kind}warm", False, streamed, Cooling(0.03, 1e-4), 1.5),
            _Arm(f"walk {kind}order fine", True, streamed, Cooling(0.003, 1e-5), 0.7),
            _Arm(f"walk {kind}order hot", True, streamed, Cooling(0.1, 1e-3), 0.2),
            _Arm(f"walk {kind}order boiling", True, streamed, Cooling(0.4, 1e-4), 1.0),
        ]
    if _QUICK_OPS < problem.arrays.ops <= _LOCAL_OPS:
        arms.insert(3, _Arm(LocalSearch.name, True, False, None, 1.0))
    return arms


def _proposed(arms: list[_Arm], asked: Asked, scout: ScoutNet | None) -> list[_Arm]:
    """Arms, with those of a proposer: its moves in the first two kinds of walk without streaming.

    Before the plain ones if it has a scout, whose time is the walk's own, and else behind them.
    """
    plain = [arm for arm in arms if not arm.stream and arm.cooling is not None][:2]
    proposed = [
        replace(arm, name=f"{arm.name} by {asked.proposer.name}", asked=asked, scout=scout)
        for arm in plain
    ]
    if scout is None:
        at = max(map(arms.index, plain)) + 1
        return [*arms[:at], *proposed, *arms[at:]]
    at = arms.index(plain[0])
    others = [arm for arm in arms[at:] if arm not in plain]
    return [*arms[:at], *proposed, *others, *plain]


def _next(arms: list[_Arm]) -> _Arm:
    """Each arm once; then mostly the worthiest, and every other time the one used least."""
    fresh = [arm for arm in arms if not arm.used]
    if fresh:
        return fresh[0]
    rounds = sum(arm.used for arm in arms)
    if rounds % 2:
        return min(arms, key=lambda arm: arm.used)
    return max(arms, key=lambda arm: arm.worth)


def _gain(before: tuple[float, float], after: tuple[float, float]) -> float:
    """What share of the objective, or of the bytes over, was gained."""
    at = 0 if before[0] > 0 else 1
    return (before[at] - after[at]) / before[at] if before[at] > 0 else 0.0


def _bound(search: Search) -> bool:
    """Work out the bound if there is time for it; whether the search should go on."""
    if search.stop.seconds_left(search) > search.problem.arrays.ops * _BOUND_SECONDS:
        _ = search.bound
    return not finished(search)


def finished(search: Search) -> bool:
    """Whether the stop rule says so, or the best plan fits and is as good as the known bound."""
    if search.over:
        return True
    overflow, value = search.key
    if overflow or not search.bound_known:
        return False
    return value <= search.bound.seconds * (1 + 1e-6)
