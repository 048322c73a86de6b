"""Auto: every method we have on one search, its budget spent where it gains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from placewright.errors import ConfigError
from placewright.solvers.annealing import elite, first_length, levels, memory_binds
from placewright.solvers.baselines import baselines
from placewright.solvers.walk import Changes, Cooling, Rows, Walker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.solvers.search import Search

    Proposer = Callable[[Problem], Iterable[Plan]]

_LONGEST = 64  # times the first round: no round is longer
_IDLE_CYCLES = 2  # without a stop rule: cycles through all arms that gain nothing before the end


@dataclass(frozen=True)
class Auto:
    """The method to use: constructive methods first, then walks from the best of them.

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
        proposers: Further sources of plans, such as a trained policy; judged before the walks.
    """

    chains: int = 2
    first: int | None = None
    proposers: tuple[Proposer, ...] = ()
    name = "auto"

    def __post_init__(self) -> None:
        if not self.chains >= 1:
            raise ConfigError(f"Auto of {self.chains!r} chains: expected at least 1")

    def run(self, search: Search) -> None:
        for solver in baselines(search.problem):
            search.trying = solver.name
            solver.run(search)
            if finished(search):
                return
        for at, propose in enumerate(self.proposers):
            search.trying = getattr(propose, "name", f"proposer {at}")
            for plan in propose(search.problem):
                search.propose(plan)
                if finished(search):
                    return
        self._walk(search)

    def _walk(self, search: Search) -> None:
        problem = search.problem
        walker = Walker(search, levels(problem))
        arms = [_Arm(*arm) for arm in _arms(problem, memory_binds(problem, search))]
        length, idle, round_ = self.first or first_length(problem), 0, 0
        while idle < _IDLE_CYCLES * len(arms):
            arm = _next(arms)
            search.trying = arm.name
            before = search.key
            plans = elite(search, self.chains, skip=round_)
            start = Rows.of(problem, plans, arm.order, arm.stream)
            evaluations = min(length * 2**arm.used, length * _LONGEST)
            changes = Changes.fit(arm.order, arm.stream)
            walker.walk(start, evaluations, arm.cooling, changes, arm.slope)
            if finished(search):
                return
            gain = _gain(before, search.key)
            arm.learn(gain, evaluations / length)
            idle = 0 if gain > 1e-5 else idle + 1
            round_ += 1


@dataclass
class _Arm:
    """A kind of walk, and what it was worth when last used."""

    name: str
    order: bool
    stream: bool
    cooling: Cooling
    slope: float
    used: int = 0
    worth: float = 0.0

    def learn(self, gain: float, effort: float) -> None:
        self.used += 1
        self.worth = gain / effort


def _arms(problem: Problem, stream: bool) -> list[tuple[str, bool, bool, Cooling, float]]:
    if problem.objective == "period":
        return [
            ("walk warm", False, False, Cooling(0.03, 1e-4), 1.0),
            ("walk fine", False, False, Cooling(0.03, 1e-5), 0.5),
            ("walk hot", False, False, Cooling(0.1, 1e-4), 1.0),
            ("walk cool", False, False, Cooling(0.01, 1e-4), 1.0),
        ]
    arms = []
    for streamed in [True, False] if stream else [False]:
        kind = "stream " if streamed else ""
        arms += [
            (f"walk {kind}cool", False, streamed, Cooling(0.005, 1e-4), 1.0),
            (f"walk {kind}order", True, streamed, Cooling(0.01, 1e-4), 1.0),
            (f"walk {kind}warm", False, streamed, Cooling(0.03, 1e-4), 1.5),
            (f"walk {kind}order fine", True, streamed, Cooling(0.003, 1e-5), 0.7),
            (f"walk {kind}order hot", True, streamed, Cooling(0.1, 1e-4), 1.0),
        ]
    return arms


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


def finished(search: Search) -> bool:
    """Whether the stop rule says so, or the best plan fits and is as good as the bound."""
    if search.over:
        return True
    overflow, value = search.key
    return overflow == 0 and value <= search.bound.seconds * (1 + 1e-6)
