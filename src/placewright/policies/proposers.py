"""The linear policy as a proposer: it suggests plans and moves to the `auto` solver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.plan import Plan
from placewright.policies.shipped import shipped_linear

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from placewright.policies.transfer.linear import LinearPolicy
    from placewright.problem import Problem


@dataclass(frozen=True)
class LinearProposer:
    """Proposes plans of the linear policy, and a device for each group of a given plan.

    Args:
        policy: The shipped one by default.
        plan_seconds, move_seconds: For each op, measured on one core; plans are made in one batch,
            so that several take little longer than one.
    """

    policy: LinearPolicy | None = None
    name: str = "pair"
    plan_seconds: float = 2e-4
    move_seconds: float = 1.5e-4

    @property
    def _linear(self) -> LinearPolicy:
        return shipped_linear() if self.policy is None else self.policy

    def propose(self, problem: Problem, count: int, seed: int) -> Iterable[Plan]:
        """Plans in the order of their list schedules, the likeliest first."""
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
