"""A recipe: all settings of a training run except the problem, the seed and the budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from placewright.training.algorithms import Algorithm, Regularization, Reinforce
from placewright.training.baselines import BatchNormalised
from placewright.training.environment import Environment
from placewright.training.hooks import TrainerHooks
from placewright.training.rewards import GradedPenalty, Reward
from placewright.training.schedules import Constant, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.policies import Episodes, PolicyConfig
    from placewright.training.baselines import Baseline


@dataclass(frozen=True)
class Recipe:
    """How a policy is trained.

    Args:
        policy_config: Builds the policy.
        episodes: Episodes of a problem per update.
        problems: Problems per update, where there are several; they take turns.
        family_problems: Problems per update in training on a family of graphs.
        greedy_every: Updates between two argmax plans that are judged, which show how training
            goes and may be the best plan; 0 for none.
        learning_rate: Adam's learning rate.
        logit_noise: Noise on the logits while acting, as a share of their size.
        entropy_bonus, entropy_floor, self_imitation: See `Regularization`.
        discount: The discount of an improvement one step later, where plans are judged per step.
        max_grad_norm: The largest norm of all gradients together.
        drop_infeasible_after: The share of the budget after which plans that do not fit are left
            out of updates and baseline; 1 for never.
        hooks: Makes the hooks of a trainer, for phases and episodes of its own.
        environment: Makes the environment of a problem.
    """

    name: str
    policy_config: PolicyConfig
    algorithm: Algorithm = field(default_factory=Reinforce)
    reward: Reward = field(default_factory=GradedPenalty)
    baseline: Callable[[], Baseline] = BatchNormalised
    episodes: int = 4
    problems: int = 1
    family_problems: int = 4
    greedy_every: int = 1
    learning_rate: Schedule = field(default_factory=lambda: Constant(1e-3))
    logit_noise: Schedule = field(default_factory=lambda: Constant(0.0))
    entropy_bonus: Schedule = field(default_factory=lambda: Constant(0.0))
    entropy_floor: Schedule = field(default_factory=lambda: Constant(0.0))
    self_imitation: Schedule = field(default_factory=lambda: Constant(0.0))
    discount: float = 1.0
    max_grad_norm: float = 1.0
    drop_infeasible_after: float = 1.0
    hooks: Callable[[], TrainerHooks] = TrainerHooks
    environment: Callable[..., Environment] = Environment

    def regularization(self, progress: float, best_episode: Episodes | None) -> Regularization:
        """The further terms of the loss at a share of the budget."""
        return Regularization(
            self.entropy_bonus(progress),
            self.entropy_floor(progress),
            self.max_grad_norm,
            self.self_imitation(progress),
            best_episode,
        )
