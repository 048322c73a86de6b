"""A recipe: everything that a training run is but the problem, the seed and the budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from placewright.training.algorithms import Algorithm, Reinforce
from placewright.training.baselines import BatchNormalised
from placewright.training.rewards import Graded, Reward
from placewright.training.schedules import Always, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.policies import Policy
    from placewright.problem import Problem
    from placewright.training.baselines import Baseline


class Shape(Protocol):
    """What a fresh policy is made from."""

    def build(self, problem: Problem, seed: int = 0) -> Policy: ...


@dataclass(frozen=True)
class Recipe:
    """How a policy is trained.

    Args:
        shape: Makes the policy.
        samples: Episodes of a problem per update.
        graphs: Problems per update, where there are several; they take turns.
        asked: Updates from one argmax plan that is judged to the next, which tells how training
            goes and may be the best plan; 0 for none.
        rate: Adam's learning rate.
        noise: How much logits are shaken while acting.
        bonus, floor, imitate: See `Pressure`.
        discount: What an improvement a step later is worth now, where plans are judged per step.
        clip: The most that all gradients together may measure.
        valid_only: The share of the budget after which plans that do not fit are left out of
            updates and baseline; 1 for never.
    """

    name: str
    shape: Shape
    algorithm: Algorithm = field(default_factory=Reinforce)
    reward: Reward = field(default_factory=Graded)
    baseline: Callable[[], Baseline] = BatchNormalised
    samples: int = 4
    graphs: int = 1
    asked: int = 1
    rate: Schedule = field(default_factory=lambda: Always(1e-3))
    noise: Schedule = field(default_factory=lambda: Always(0.0))
    bonus: Schedule = field(default_factory=lambda: Always(0.0))
    floor: Schedule = field(default_factory=lambda: Always(0.0))
    imitate: Schedule = field(default_factory=lambda: Always(0.0))
    discount: float = 1.0
    clip: float = 1.0
    valid_only: float = 1.0
