"""Policy preferences: where trained policies would put each op of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import MissingDependency

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.solvers.proposer import Proposer


@dataclass(frozen=True, eq=False)
class PolicyPreference:
    """Where one policy would put each op.

    Args:
        policy: Its name.
        probabilities: Ops × devices, with the rest of the plan as it is; 0 for devices that an op
            may not be on.
    """

    policy: str
    probabilities: NDArray[np.floating[Any]]

    def best_device(self, op: int) -> tuple[int, float]:
        """The device that it prefers for an op, and the probability."""
        row = self.probabilities[op]
        return int(row.argmax()), float(row.max())


def preferences(
    problem: Problem, plan: Plan, policies: Mapping[str, Callable[[], Proposer]]
) -> tuple[list[PolicyPreference], list[str]]:
    """The preferences of policies for a plan, and why others have none."""
    by_policy, unavailable = [], []
    for name, load in policies.items():
        try:
            probabilities = load().move_probabilities(problem, plan)
        except MissingDependency as error:
            unavailable.append(f"policy {name} is not asked: {error}")
            continue
        if probabilities is not None:
            # A group of ops may be preferred where one of its ops is not allowed.
            allowed = np.where(problem.arrays.allowed, probabilities, 0.0)
            total = allowed.sum(axis=1, keepdims=True)
            by_policy.append(PolicyPreference(name, allowed / np.where(total > 0, total, 1.0)))
    if not by_policy:
        unavailable.append("no policy that ships can say what it prefers")
    return by_policy, unavailable
