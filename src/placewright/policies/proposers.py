"""Policies as proposers: they suggest plans and moves to the `auto` solver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from placewright.plan import Plan
from placewright.policies.shipped import shipped_linear
from placewright.policies.transfer.linear import LinearConfig, LinearPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from placewright.policies.policy import Policy
    from placewright.problem import Problem


class PlanProposer(Protocol):
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
class PolicyProposer:
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
        for samples in (0, count - 1) if count > 1 else (0,):
            episodes = self.policy.act(problem, max(samples, 1), seed, greedy=not samples)
            last_plans = np.flatnonzero(np.append(np.diff(episodes.episode_of) > 0, True))
            for at in last_plans.tolist():
                priority = None if episodes.priority is None else episodes.priority[at]
                yield Plan.of(problem, episodes.placements[at], priority)

    def move_probabilities(self, problem: Problem, plan: Plan) -> NDArray[np.floating] | None:
        method = getattr(self.policy, "move_probabilities", None)
        probabilities: NDArray[np.floating] | None = (
            None if method is None else method(problem, plan)
        )
        return probabilities


@dataclass(frozen=True)
class LinearProposer:
    """The pair policy: its plans, and where it would put each group, the rest being as it is.

    Args:
        policy: If not given, the one that ships.
        plan_seconds, move_seconds: For each op, measured on one core; plans are made side by side,
            so that several take hardly longer than one.
    """

    policy: LinearPolicy | None = None
    name: str = "pair"
    plan_seconds: float = 2e-4
    move_seconds: float = 1.5e-4

    @property
    def _linear(self) -> LinearPolicy:
        return shipped_linear() if self.policy is None else self.policy

    def propose(self, problem: Problem, count: int, seed: int) -> Iterable[Plan]:
        """Plans in the order of its list schedule, the likeliest first."""
        policy = self._linear
        gumbel = policy.gumbel(problem, count, np.random.default_rng(seed))
        gumbel[:, 0] = 0.0  # the likeliest plan
        rollout = policy.roll_out(problem, gumbel=gumbel)
        for placement, priority in zip(
            policy.placement(problem, rollout), rollout.start, strict=True
        ):
            yield Plan.of(problem, placement, priority)

    def move_probabilities(self, problem: Problem, plan: Plan) -> NDArray[np.float64]:
        return self._linear.move_probabilities(problem, plan)


def untrained_proposer(seed: int = 0) -> LinearProposer:
    """The pair policy before any training: random weights of the size that trained ones have."""
    shipped = LinearProposer()._linear
    size = float(np.sqrt(np.square(shipped.weights).mean()))
    weights = np.random.default_rng(seed).normal(scale=size, size=len(shipped.weights))
    return LinearProposer(LinearPolicy(LinearConfig(), weights), name="untrained")


@dataclass(frozen=True)
class ShuffledProposer:
    """Another's proposals, dealt out to the wrong ops: what is left if it knows nothing of them.

    As sure of itself as the other and as quick, so that a difference is the other's knowledge.
    Each op gets the row of another one, turned so that it says `stay` for the op's own device where
    the row said so; plans keep their loads, and lose who is where.
    """

    proposer: PlanProposer
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
            placement = plan.placement[self._permutation(problem)]
            yield Plan.of(problem, problem.legalize(placement), plan.priority)

    def move_probabilities(self, problem: Problem, plan: Plan) -> NDArray[np.floating] | None:
        probabilities = self.proposer.move_probabilities(problem, plan)
        if probabilities is None:
            return None
        permutation, ops = self._permutation(problem), np.arange(len(plan))
        rows = np.array(probabilities)[permutation]
        other_device, device = plan.placement[permutation], plan.placement
        rows[ops, other_device], rows[ops, device] = (
            rows[ops, device],
            rows[ops, other_device].copy(),
        )
        return rows

    def _permutation(self, problem: Problem) -> NDArray[np.int64]:
        """Each op's other op: any that takes a turn for one that does."""
        scheduled = problem.arrays.scheduled
        permutation = np.arange(len(scheduled))
        permutation[scheduled] = np.random.default_rng(self.seed).permutation(
            np.flatnonzero(scheduled)
        )
        return permutation
