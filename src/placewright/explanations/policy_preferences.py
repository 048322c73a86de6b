"""A problem and a plan in, where trained policies would put each op out."""

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
class Preferred:
    """What one policy thinks.

    Args:
        policy: Its name.
        likely: Ops × devices: how likely each is the right one, the rest of the plan as it is;
            devices that an op may not be on are left out.
    """

    policy: str
    likely: NDArray[np.floating[Any]]

    def best(self, op: int) -> tuple[int, float]:
        """The device that it likes best for an op, and how surely."""
        row = self.likely[op]
        return int(row.argmax()), float(row.max())


def preferences(
    problem: Problem, plan: Plan, policies: Mapping[str, Callable[[], Proposer]]
) -> tuple[list[Preferred], list[str]]:
    """What each of these policies thinks of a plan; and why others are silent."""
    found, silent = [], []
    for name, load in policies.items():
        try:
            likely = load().move_probabilities(problem, plan)
        except MissingDependency as error:
            silent.append(f"policy {name} is not asked: {error}")
            continue
        if likely is not None:
            # A group of ops may be liked where one of them may not be.
            lawful = np.where(problem.arrays.allowed, likely, 0.0)
            total = lawful.sum(axis=1, keepdims=True)
            found.append(Preferred(name, lawful / np.where(total > 0, total, 1.0)))
    if not found:
        silent.append("no policy that ships can say what it prefers")
    return found, silent
