"""Schedules: numbers that change with the share of the budget used.

The papers count updates; ours use the share of the budget, so that a recipe means the same for a
short run and a long one. A run that is resumed with a larger budget continues with shares of that
budget: one that used 5,000 of 5,000 plans and gets 20,000 goes on at a quarter of its schedules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Schedule(Protocol):
    """A number that changes during training."""

    def __call__(self, progress: float) -> float:
        """Its value at this share of the budget, 0 to 1."""
        ...


@dataclass(frozen=True)
class Constant:
    """A constant value."""

    value: float

    def __call__(self, progress: float) -> float:
        return self.value


@dataclass(frozen=True)
class Step:
    """One value until a share of the budget is used, then another."""

    until: float
    value: float
    after: float = 0.0

    def __call__(self, progress: float) -> float:
        return self.value if progress < self.until else self.after


@dataclass(frozen=True)
class Linear:
    """From one value to another linearly, between two shares of the budget."""

    initial: float
    final: float
    begin: float = 0.0
    end: float = 1.0

    def __call__(self, progress: float) -> float:
        fraction = (progress - self.begin) / max(self.end - self.begin, 1e-12)
        return self.initial + (self.final - self.initial) * min(max(fraction, 0.0), 1.0)


@dataclass(frozen=True)
class Decay:
    """A value that loses a share of itself linearly, between two shares of the budget."""

    value: float
    loss: float = 0.9
    begin: float = 0.0
    end: float = 1.0

    def __call__(self, progress: float) -> float:
        fraction = (progress - self.begin) / max(self.end - self.begin, 1e-12)
        return self.value * (1 - self.loss * min(max(fraction, 0.0), 1.0))


@dataclass(frozen=True)
class Until:
    """Another schedule until a share of the budget is used, then 0."""

    schedule: Schedule
    share: float

    def __call__(self, progress: float) -> float:
        return self.schedule(progress) if progress < self.share else 0.0


@dataclass(frozen=True)
class Staircase:
    """A value that is multiplied by `factor` at each of `steps` equal steps after `begin`."""

    value: float
    factor: float
    begin: float
    steps: int

    def __call__(self, progress: float) -> float:
        fraction = max(progress - self.begin, 0.0) / max(1.0 - self.begin, 1e-12)
        return self.value * self.factor ** int(fraction * self.steps)
