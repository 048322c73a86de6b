"""Annealing rounds: which setting of simulated annealing `auto` runs next, and for how long."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from placewright.plan_batch import PlanBatch
from placewright.solvers.fuse_plan import fuse_ops, reorder_fused
from placewright.solvers.searches.annealing import (
    FIT_COOLING,
    elite_plans,
    first_round_length,
    grouping_levels,
    memory_binds,
)
from placewright.solvers.searches.annealing_chains import AnnealingChains, Cooling, MoveShares
from placewright.solvers.searches.local_search import LocalSearch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.problem import Problem
    from placewright.simulator._kernel import ScoutNet
    from placewright.solvers.proposer import BudgetedProposer
    from placewright.solvers.search import Search
    from placewright.transforms import Grouping

SMALL_GRAPH_OPS = 400  # ops up to which bounds are fast, and annealing finds what others would
_LOCAL_SEARCH_OPS = 5_000  # ops up to which local search starts within a second or two
_ROUND_GROWTH = 2  # factor by which an arm's rounds grow
_EVALUATIONS_PER_OP = 1_000  # evaluations per op: the longest round for step times
_MAX_ROUND_FACTOR = 512  # times the first round: the longest round
_LOCAL_SEARCH_COST = (
    3.0  # an evaluation in local search takes this many times longer than in annealing
)
_SCOUT_COST = 1.5  # an evaluation with a scout takes this many times longer: few moves are hopeless
_IDLE_CYCLES = 4  # without a stop rule: cycles through all arms without a gain before the end


@dataclass(frozen=True)
class ArmEffort:
    """How often an arm was used, and its gain when last used."""

    name: str
    uses: int
    gain_rate: float


@dataclass(frozen=True)
class AnnealingSnapshot:
    """The state of annealing between two rounds.

    Args:
        streams: Whether its arms stream weights.
        proposers: Names of the proposers that have arms.
        key: Overflow and objective of the best plan that annealing goes on from.
        memory_margin: Bytes of each device by which resident bytes were misjudged.
    """

    streams: bool
    proposers: tuple[str, ...]
    arms: tuple[ArmEffort, ...]
    round_count: int
    idle_rounds: int
    key: tuple[float, float]
    memory_margin: tuple[int, ...]


class AnnealingRounds:
    """The annealing of one search: which arm next, from which plans, for how long.

    Args:
        levels: Blocks to move as one, if they are known: `grouping_levels` of the problem.
    """

    def __init__(
        self,
        search: Search,
        proposers: list[BudgetedProposer],
        chains: int,
        fuse: bool,
        first_evaluations: int | None,
        levels: Sequence[Grouping] | None = None,
    ) -> None:
        self.levels = levels
        self.search, self.proposers, self.chains, self.fuse = search, proposers, chains, fuse
        problem = search.problem
        self.first_length = first_evaluations or first_round_length(problem)
        # Small problems gain more from many short rounds than from a few long ones.
        max_evaluations = (
            _EVALUATIONS_PER_OP * problem.arrays.ops if problem.objective == "step" else math.inf
        )
        self.max_factor = max(1, min(_MAX_ROUND_FACTOR, max_evaluations / self.first_length))
        self.round_count, self.idle_rounds = 0, 0
        self.pause_at: float = math.inf
        """Evaluations of the search after which no further round begins."""

    @property
    def snapshot(self) -> AnnealingSnapshot | None:
        """What annealing of a restored search needs to go on; None if it has not begun."""
        if not {"arms", "annealer"} <= self.__dict__.keys():
            return None
        return AnnealingSnapshot(
            self._streams,
            tuple(dict.fromkeys(a.proposer.proposer.name for a in self.arms if a.proposer)),
            tuple(ArmEffort(arm.name, arm.uses, arm.gain_rate) for arm in self.arms),
            self.round_count,
            self.idle_rounds,
            self.annealer.key,
            self.annealer.memory_margin,
        )

    def restore(self, snapshot: AnnealingSnapshot) -> None:
        """Go on where the annealing of another process was, on a search that is restored."""
        self._streams = snapshot.streams
        proposers = [each for each in self.proposers if each.proposer.name in snapshot.proposers]
        self.__dict__["arms"] = self._make_arms(proposers)
        efforts = {effort.name: effort for effort in snapshot.arms}
        for arm in self.arms:
            effort = efforts[arm.name]
            arm.uses, arm.gain_rate = effort.uses, effort.gain_rate
        self.round_count, self.idle_rounds = snapshot.round_count, snapshot.idle_rounds
        self.annealer.restore(snapshot.key, snapshot.memory_margin)

    @cached_property
    def annealer(self) -> AnnealingChains:
        levels = grouping_levels(self.search.problem) if self.levels is None else self.levels
        return AnnealingChains(self.search, levels)

    @cached_property
    def arms(self) -> list[AnnealingArm]:
        self._streams = memory_binds(self.search.problem, self.search)
        best = elite_plans(self.search, 1)[0]
        return self._make_arms(
            [
                proposer
                for proposer in self.proposers
                if proposer.network() is not None or proposer.rates_moves(best)
            ]
        )

    def _make_arms(self, proposers: list[BudgetedProposer]) -> list[AnnealingArm]:
        problem, stream = self.search.problem, self._streams
        arms = _default_arms(problem, stream)
        for proposer in proposers:
            arms = _with_proposer(arms, proposer, proposer.network())
        # Slow methods run after two rounds, and depend on the best plan of the first two arms.
        return [*_fit_arms(problem, stream), *arms[:2], *_memory_arms(problem, stream), *arms[2:]]

    def is_paused(self) -> bool:
        """Whether as many plans are evaluated as there may be before a pause."""
        return self.search.evaluations >= self.pause_at

    def run(self, max_rounds: float = math.inf, share: float = 1.0) -> bool:
        """Anneal for `max_rounds` rounds, or until no arm gains; whether the search should go on.

        Between two rounds it may pause, see `pause_at`.

        Args:
            share: The share of the evaluations left that a round may take.
        """
        search, rounds = self.search, 0
        while (
            rounds < max_rounds
            and not self.is_paused()
            and self.idle_rounds < _IDLE_CYCLES * len(self._useful_arms())
        ):
            arm, key_before = _next_arm(self._useful_arms()), self.annealer.key
            search.phase = arm.name
            effort = min(_ROUND_GROWTH**arm.uses, self.max_factor)
            evaluations_left = search.stop.left(search) * share / self.chains
            # A round takes as long with a scout as without one.
            length = self._first_length_of(arm) / (1.0 if arm.scout is None else _SCOUT_COST)
            self._run_arm(arm, int(min(length * effort, evaluations_left)))
            if is_finished(search):
                return False
            if self.fuse:
                judge_fused(search)
            gain = _relative_gain(key_before, self.annealer.key)
            arm.record_gain(gain, effort * (_LOCAL_SEARCH_COST if arm.cooling is None else 1.0))
            self.idle_rounds = 0 if gain > 1e-5 else self.idle_rounds + 1
            self.round_count, rounds = self.round_count + 1, rounds + 1
        return True

    def _useful_arms(self) -> list[AnnealingArm]:
        """All arms, but those for memory only where it is in the way."""
        no_plan_fits = self.search.key[0] > 0
        is_misjudged = no_plan_fits or self.annealer.memory_is_misjudged
        return [
            arm
            for arm in self.arms
            if (no_plan_fits or not arm.overflow_first)
            and (is_misjudged or not arm.simulate_memory)
        ]

    def _first_length_of(self, arm: AnnealingArm) -> int:
        """Evaluations of an arm's first round: a plan that is simulated takes longer."""
        if not arm.simulate_memory:
            return self.first_length
        return min(self.first_length, first_round_length(self.search.problem, True))

    def _run_arm(self, arm: AnnealingArm, evaluations: int) -> None:
        search = self.search
        if arm.cooling is None:
            LocalSearch(max_plans=max(1, evaluations * self.chains)).run(search)
            if (candidate := search.best_by_phase.get(arm.name)) is not None:
                self.annealer.key = min(self.annealer.key, candidate.key)
            return
        plans = elite_plans(search, self.chains, skip=self.round_count)
        start_rows = PlanBatch.of(search.problem, plans, arm.change_order, arm.change_streaming)
        changes = MoveShares.for_search(arm.change_order, arm.change_streaming)
        guide = None if arm.proposer is None else arm.proposer.guide(self.first_length)
        self.annealer.run(
            start_rows,
            evaluations,
            arm.cooling,
            changes,
            arm.size_slope,
            guide,
            arm.scout,
            arm.simulate_memory,
            arm.overflow_first,
        )


@dataclass
class AnnealingArm:
    """One setting of annealing, and its gain when last used."""

    name: str
    change_order: bool
    change_streaming: bool
    cooling: Cooling | None  # None for local search
    size_slope: float
    proposer: BudgetedProposer | None = None  # the source of its moves
    scout: ScoutNet | None = None
    simulate_memory: bool = False  # for the period, where resident bytes do not tell what fits
    overflow_first: bool = False  # where no plan fits
    uses: int = 0
    gain_rate: float = 0.0

    def record_gain(self, gain: float, effort: float) -> None:
        self.uses += 1
        self.gain_rate = gain / effort


def _default_arms(problem: Problem, stream: bool) -> list[AnnealingArm]:
    if problem.objective == "period":
        return [
            AnnealingArm("annealing warm", False, False, Cooling(0.03, 3e-5), 0.5),
            AnnealingArm("annealing cool", False, False, Cooling(0.003, 3e-5), 0.3),
            AnnealingArm("annealing hot", False, False, Cooling(0.1, 1e-4), 1.0),
            AnnealingArm("annealing cold", False, False, Cooling(0.001, 5e-5), 0.3),
        ]
    arms: list[AnnealingArm] = []
    for streaming in [True, False] if stream else [False]:
        prefix = "streaming " if streaming else ""
        arms += [
            AnnealingArm(f"annealing {prefix}cool", False, streaming, Cooling(0.005, 1e-4), 1.0),
            AnnealingArm(f"annealing {prefix}order", True, streaming, Cooling(0.01, 1e-4), 1.0),
            AnnealingArm(f"annealing {prefix}warm", False, streaming, Cooling(0.03, 1e-4), 1.5),
            AnnealingArm(
                f"annealing {prefix}order fine", True, streaming, Cooling(0.003, 1e-5), 0.7
            ),
            AnnealingArm(f"annealing {prefix}order hot", True, streaming, Cooling(0.1, 1e-3), 0.2),
            AnnealingArm(
                f"annealing {prefix}order boiling", True, streaming, Cooling(0.4, 1e-4), 1.0
            ),
        ]
    if SMALL_GRAPH_OPS < problem.arrays.ops <= _LOCAL_SEARCH_OPS:
        arms.insert(3, AnnealingArm(LocalSearch.name, True, False, None, 1.0))
    return arms


def _fit_arms(problem: Problem, stream: bool) -> list[AnnealingArm]:
    """Arms for a first plan that fits, with order and staging buffers."""
    is_period = problem.objective == "period"
    return [
        AnnealingArm(
            f"annealing {'streaming ' if streaming else ''}fit",
            *(True, streaming, FIT_COOLING, 0.5),
            simulate_memory=is_period,
            overflow_first=True,
        )
        for streaming in ([True, False] if stream else [False])
    ]


def _memory_arms(problem: Problem, stream: bool) -> list[AnnealingArm]:
    """Arms for the period: order and staging buffers never shorten it, but decide what fits."""
    return [
        AnnealingArm(
            f"annealing {'streaming ' if streaming else ''}memory",
            *(True, streaming, Cooling(0.1, 1e-3), 0.5),
            simulate_memory=True,
        )
        for streaming in ([True, False] if stream else [False])
        if problem.objective == "period"
    ]


def _with_proposer(
    arms: list[AnnealingArm], proposer: BudgetedProposer, scout: ScoutNet | None
) -> list[AnnealingArm]:
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


def _next_arm(arms: list[AnnealingArm]) -> AnnealingArm:
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


def judge_fused(search: Search) -> None:
    """Evaluate the best plan with ops fused as a compiler does."""
    fused_plan = fuse_ops(search.problem, elite_plans(search, 1)[0])
    if fused_plan is not None:
        search.phase = "fusion"
        search.judge_plan(reorder_fused(search.problem, fused_plan))


def is_finished(search: Search) -> bool:
    """Whether the search is over, or the best plan fits and reaches the known bound."""
    if search.over:
        return True
    overflow, value = search.key
    if overflow or not search.bound_known:
        return False
    return value <= search.bound.seconds * (1 + 1e-6)
