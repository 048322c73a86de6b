"""What an update learns from, and what it logs."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placewright.outcome import Outcome
    from placewright.policies import Episodes

LEARNED = "reinforcement"
"""The phase of updates that learn from rewards."""


@dataclass(frozen=True)
class UpdateLog:
    """Figures of one update, for one problem; not a number where an update has none.

    Args:
        plans: Plans judged so far.
        best: The best objective so far of the problem, whether or not the plan fits.
        mean: The mean objective of the plans that were sampled.
        greedy: The objective of the argmax plan after the update.
        entropy: The entropy of the decisions as a share of a uniform choice's, the heads' mean.
        infeasible: The share of the sampled plans that do not fit.
        gradient: The norm of the gradient.
        rate: The learning rate.
        problem: The index of the problem.
        phase: `reinforcement`, or the name of a phase before it.
        stats: Further figures of the algorithm.
    """

    update: int
    plans: int
    best: float
    mean: float
    greedy: float
    entropy: float
    infeasible: float
    gradient: float
    rate: float
    problem: int = 0
    phase: str = LEARNED
    stats: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class EpisodeBatch:
    """The episodes of one update and their outcomes, problem by problem."""

    indices: list[int]
    episodes: list[Episodes]
    outcomes: list[Outcome | Future[Outcome]]

    def judged(self) -> list[Outcome]:
        """The outcomes, once all plans are judged."""
        return [item.result() if isinstance(item, Future) else item for item in self.outcomes]
