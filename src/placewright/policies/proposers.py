"""Proposers: policies as `auto` asks them, for plans and for moves worth trying."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from placewright.plan import Plan
from placewright.policies.shipped import shipped_pair
from placewright.policies.transfer.linear import Pair, Shape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from placewright.policies.policy import Policy
    from placewright.problem import Problem


class Proposer(Protocol):
    """What `auto` asks for; `solvers/proposer.py` says what each means."""

    @property
    def name(self) -> str: ...

    @property
    def plan_seconds(self) -> float: ...

    @property
    def move_seconds(self) -> float: ...

    def propose(self, problem: Problem, count: int, seed: int) -> Iterable[Plan]: ...

    def move_probabilities(self, problem: Problem, plan: Plan) -> NDArray[np.floating] | None: ...


@dataclass(frozen=True)
class FromPolicy:
    """Any policy: its likeliest plan and some that it draws, and its moves if it knows of any.

    Args:
        policy: Trained. One with a method `move_probabilities(problem, plan)` is asked for them.
        plan_seconds, move_seconds: For each op, that it takes to make some plans, and to say what
            it thinks of the moves of one.
    """

    policy: Policy
    plan_seconds: float = 1e-3
    move_seconds: float = 1e-3

    @property
    def name(self) -> str:
        return self.policy.name

    def propose(self, problem: Problem, count: int, seed: int) -> Iterable[Plan]:
        """The likeliest plan first."""
        for drawn in (0, count - 1) if count > 1 else (0,):
            episodes = self.policy.act(problem, max(drawn, 1), seed, greedy=not drawn)
            last = np.flatnonzero(np.append(np.diff(episodes.owner) > 0, True))
            for at in last.tolist():
                order = None if episodes.priority is None else episodes.priority[at]
                yield Plan.of(problem, episodes.device[at], order)

    def move_probabilities(self, problem: Problem, plan: Plan) -> NDArray[np.floating] | None:
        ask = getattr(self.policy, "move_probabilities", None)
        likely: NDArray[np.floating] | None = None if ask is None else ask(problem, plan)
        return likely


@dataclass(frozen=True)
class PairProposer:
    """The pair policy: its plans, and where it would put each group, the rest being as it is.

    Args:
        policy: If not given, the one that ships.
        plan_seconds, move_seconds: For each op, measured on one core; plans are made side by side,
            so that several take hardly longer than one.
    """

    policy: Pair | None = None
    name: str = "pair"
    plan_seconds: float = 2e-4
    move_seconds: float = 1.5e-4

    @property
    def _pair(self) -> Pair:
        return shipped_pair() if self.policy is None else self.policy

    def propose(self, problem: Problem, count: int, seed: int) -> Iterable[Plan]:
        """Plans in the order of its list schedule, the likeliest first."""
        policy = self._pair
        luck = policy.luck(problem, count, np.random.default_rng(seed))
        luck[:, 0] = 0.0  # the likeliest plan
        walk = policy.walk(problem, luck=luck)
        for device, order in zip(policy.placement(problem, walk), walk.start, strict=True):
            yield Plan.of(problem, device, order)

    def move_probabilities(self, problem: Problem, plan: Plan) -> NDArray[np.float64]:
        return self._pair.move_probabilities(problem, plan)


def untrained(seed: int = 0) -> PairProposer:
    """The pair policy before any training: random weights of the size that trained ones have."""
    trained = PairProposer()._pair
    size = float(np.sqrt(np.square(trained.weights).mean()))
    weights = np.random.default_rng(seed).normal(scale=size, size=len(trained.weights))
    return PairProposer(Pair(Shape(), weights), name="untrained")


@dataclass(frozen=True)
class Shuffled:
    """Another's proposals, dealt out to the wrong ops: what is left if it knows nothing of them.

    As sure of itself as the other and as quick, so that a difference is the other's knowledge.
    Each op gets the row of another one, turned so that it says `stay` for the op's own device where
    the row said so; plans keep their loads, and lose who is where.
    """

    proposer: Proposer
    seed: int = 0

    @property
    def name(self) -> str:
        return f"{self.proposer.name} shuffled"

    @property
    def plan_seconds(self) -> float:
        return self.proposer.plan_seconds

    @property
    def move_seconds(self) -> float:
        return self.proposer.move_seconds

    def propose(self, problem: Problem, count: int, seed: int) -> Iterable[Plan]:
        for plan in self.proposer.propose(problem, count, seed):
            device = plan.device[self._deal(problem)]
            yield Plan.of(problem, problem.settle(device), plan.priority)

    def move_probabilities(self, problem: Problem, plan: Plan) -> NDArray[np.floating] | None:
        likely = self.proposer.move_probabilities(problem, plan)
        if likely is None:
            return None
        deal, ops = self._deal(problem), np.arange(len(plan))
        rows = np.array(likely)[deal]
        theirs, mine = plan.device[deal], plan.device
        rows[ops, theirs], rows[ops, mine] = rows[ops, mine], rows[ops, theirs].copy()
        return rows

    def _deal(self, problem: Problem) -> NDArray[np.int64]:
        """Each op's other op: any that takes a turn for one that does."""
        turn = problem.arrays.turn
        deal = np.arange(len(turn))
        deal[turn] = np.random.default_rng(self.seed).permutation(np.flatnonzero(turn))
        return deal
