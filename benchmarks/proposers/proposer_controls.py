"""Controls for `compare.py`: no proposals, an untrained policy, and proposals for the wrong ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.plan import Plan
from placewright.policies.proposers import LinearProposer
from placewright.policies.shipped import shipped_linear
from placewright.policies.transfer.linear import LinearConfig, LinearPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from placewright.problem import Problem


def untrained_proposer(seed: int = 0) -> LinearProposer:
    """The linear policy before any training: random weights of the size of the trained ones."""
    shipped = shipped_linear()
    size = float(np.sqrt(np.square(shipped.weights).mean()))
    weights = np.random.default_rng(seed).normal(scale=size, size=len(shipped.weights))
    return LinearProposer(LinearPolicy(LinearConfig(), weights), name="untrained")


@dataclass(frozen=True)
class NullProposer:
    """Proposes no plans and rates no moves: `auto` must try the plans that it tries alone."""

    name: str = "null"
    plan_seconds = move_seconds = 0.0

    def propose(self, problem: Problem, count: int, seed: int) -> Iterable[Plan]:
        return ()

    def move_probabilities(self, problem: Problem, plan: Plan) -> NDArray[np.floating] | None:
        return None


@dataclass(frozen=True)
class ShuffledProposer:
    """The proposals of another proposer, permuted over the ops.

    It is as certain and as fast as the other, so that a difference is the other's knowledge of the
    ops. Each op gets the row of another one, with the two devices exchanged so that it stays as
    likely as that op; plans keep their loads.

    Args:
        proposer: One that knows its `plan_seconds` and `move_seconds`.
    """

    proposer: Any
    seed: int = 0

    @property
    def name(self) -> str:
        return f"{self.proposer.name} shuffled"

    @property
    def plan_seconds(self) -> float:
        return float(self.proposer.plan_seconds)

    @property
    def move_seconds(self) -> float:
        return float(self.proposer.move_seconds)

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
        """The other op of each op; unscheduled ops keep their own."""
        scheduled = problem.arrays.scheduled
        permutation = np.arange(len(scheduled))
        permutation[scheduled] = np.random.default_rng(self.seed).permutation(
            np.flatnonzero(scheduled)
        )
        return permutation
