"""A learning curve for the page: the updates of a policy, thinned to a few hundred points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_POINTS = 400  # points drawn: a screen does not resolve more


class TrainingUpdate(Protocol):
    """What one update of a policy was like, as the trainer tells."""

    @property
    def plans(self) -> int: ...
    @property
    def best(self) -> float: ...
    @property
    def mean(self) -> float: ...
    @property
    def greedy(self) -> float: ...
    @property
    def entropy(self) -> float: ...
    @property
    def infeasible(self) -> float: ...


@dataclass(frozen=True)
class LearningCurve:
    """How a policy learned.

    Args:
        recipe: What it was trained by.
        updates: In turn.
    """

    recipe: str
    updates: Sequence[TrainingUpdate]

    def data(self) -> dict[str, Any]:
        """Plain numbers for the page: of many updates, the means of equal stretches of them."""
        columns = ("plans", "best", "mean", "greedy", "entropy", "infeasible")
        rows = np.array([[getattr(row, name) for name in columns] for row in self.updates])
        if len(rows) > MAX_POINTS:
            chunks = np.array_split(rows, MAX_POINTS)
            averaged = np.stack([_mean(chunk) for chunk in chunks])
            averaged[:, :2] = [
                chunk[-1, :2] for chunk in chunks
            ]  # counts and bests are not averaged
            rows = averaged
        return {
            "recipe": self.recipe,
            "rows": [[_number(value) for value in row] for row in rows.tolist()],
        }


def _mean(part: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The mean of each column's finite numbers."""
    finite = np.isfinite(part)
    total = np.where(finite, part, 0.0).sum(axis=0)
    return np.where(finite.any(axis=0), total / np.maximum(finite.sum(axis=0), 1), np.nan)


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if np.isfinite(value) else None
