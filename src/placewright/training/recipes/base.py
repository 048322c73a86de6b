"""A recipe: all settings of a training run except the problem, the seed and the budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from placewright.training.algorithms import Algorithm, Reinforce
from placewright.training.baselines import BatchNormalised
from placewright.training.rewards import GradedPenalty, Reward
from placewright.training.schedules import Constant, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.policies import Policy
    from placewright.problem import Problem
    from placewright.training.baselines import Baseline


class PolicyConfig(Protocol):
    """What a fresh policy is made from."""

    def build(self, problem: Problem, seed: int = 0) -> Policy: ...


@dataclass(frozen=True)
class Recipe:
    """How a policy is trained.

    Args:
        policy_config: Makes the policy.
        episodes: Episodes of a problem per update.
        problems: Problems per update, where there are several; they take turns.
        greedy_every: Updates from one argmax plan that is judged to the next, which tells how training
            goes and may be the best plan; 0 for none.
        learning_rate: Adam's learning rate.
        logit_noise: How much logits are shaken while acting.
        bonus, floor, imitate: See `Pressure`.
        discount: What an improvement a step later is worth now, where plans are judged per step.
        max_grad_norm: The most that all gradients together may measure.
        drop_infeasible_after: The share of the budget after which plans that do not fit are left out of
            updates and baseline; 1 for never.
    """

    name: str
    policy_config: PolicyConfig
    algorithm: Algorithm = field(default_factory=Reinforce)
    reward: Reward = field(default_factory=GradedPenalty)
    baseline: Callable[[], Baseline] = BatchNormalised
    episodes: int = 4
    problems: int = 1
    greedy_every: int = 1
    learning_rate: Schedule = field(default_factory=lambda: Constant(1e-3))
    logit_noise: Schedule = field(default_factory=lambda: Constant(0.0))
    entropy_bonus: Schedule = field(default_factory=lambda: Constant(0.0))
    entropy_floor: Schedule = field(default_factory=lambda: Constant(0.0))
    self_imitation: Schedule = field(default_factory=lambda: Constant(0.0))
    discount: float = 1.0
    max_grad_norm: float = 1.0
    drop_infeasible_after: float = 1.0
