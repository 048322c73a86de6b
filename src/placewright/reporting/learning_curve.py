"""A learning curve on its way into a page: updates in, a few hundred points out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

POINTS = 400  # that are drawn: more than a screen tells apart


class Update(Protocol):
    """What one update of a policy was like, as the trainer tells."""

    @property
    def plans(self) -> int: ...
    @property
    def best(self) -> float: ...
    @property
    def mean(self) -> float: ...
    @property
    def likeliest(self) -> float: ...
    @property
    def entropy(self) -> float: ...
    @property
    def invalid(self) -> float: ...


@dataclass(frozen=True)
class Learning:
    """How a policy learned.

    Args:
        recipe: What it was trained by.
        updates: In turn.
    """

    recipe: str
    updates: Sequence[Update]

    def data(self) -> dict[str, Any]:
        """Plain numbers for the page: of many updates, the means of equal stretches of them."""
        columns = ("plans", "best", "mean", "likeliest", "entropy", "invalid")
        rows = np.array([[getattr(row, name) for name in columns] for row in self.updates])
        if len(rows) > POINTS:
            parts = np.array_split(rows, POINTS)
            thin = np.stack([_mean(part) for part in parts])
            thin[:, :2] = [part[-1, :2] for part in parts]  # counts and bests are not averaged
            rows = thin
        return {
            "recipe": self.recipe,
            "rows": [[_number(value) for value in row] for row in rows.tolist()],
        }


def _mean(part: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The mean of each column's finite numbers."""
    known = np.isfinite(part)
    total = np.where(known, part, 0.0).sum(axis=0)
    return np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan)


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if np.isfinite(value) else None
