"""Trains the linear policy by REINFORCE on many problems, without torch.

REINFORCE (Williams 1992) with the gradient written out: that of a softmax over weighted features is
the chosen pair's features less the mean of all pairs' features.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.policies.transfer.linear import LinearConfig, LinearPolicy
from placewright.training.environment import from_verdict, serial_seconds
from placewright.training.rewards import GradedPenalty, Reward

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from placewright.policies.transfer.rollout import Rollout
    from placewright.problem import Problem

_BETA1, _BETA2 = 0.9, 0.99  # Adam's averages; few updates, so a short memory of squares


@dataclass(frozen=True)
class LinearTrainer:
    """How the shipped linear policy is trained; the shared trainer, in torch, rounds differently.

    Args:
        episodes: Episodes of one problem per update.
        learning_rate: Adam's learning rate, which falls linearly to a tenth of it.
        entropy_bonus: What a nat of entropy of each decision is worth, in deviations of the reward.
        average_share: The share of the updates, the last ones, whose weights are averaged.
    """

    config: LinearConfig = field(default_factory=LinearConfig)
    reward: Reward = field(default_factory=lambda: GradedPenalty(overflow_step=1.0))
    episodes: int = 16
    learning_rate: float = 0.1
    entropy_bonus: float = 0.0
    average_share: float = 0.3

    def run(
        self,
        problems: Sequence[Problem],
        max_evaluations: int,
        seed: int = 0,
        on_update: Callable[[int, LinearPolicy], None] | None = None,
    ) -> LinearPolicy:
        """Train a fresh policy on random problems until `max_evaluations` plans are judged.

        Args:
            on_update: Called after each update with the plans judged so far and the policy.
        """
        rng = np.random.default_rng([seed, 1])
        policy = self.config.build(problems[0], seed)
        first_moment, second_moment, weight_sum = (np.zeros_like(policy.weights) for _ in range(3))
        updates = max(1, max_evaluations // self.episodes)
        averaged_updates = 0
        for update in range(1, updates + 1):
            problem = problems[int(rng.integers(len(problems)))]
            gradient = self._gradient(policy, problem, rng)
            first_moment = _BETA1 * first_moment + (1 - _BETA1) * gradient
            second_moment = _BETA2 * second_moment + (1 - _BETA2) * gradient**2
            step = (
                first_moment
                / (1 - _BETA1**update)
                / (np.sqrt(second_moment / (1 - _BETA2**update)) + 1e-8)
            )
            policy.weights += self.learning_rate * (1 - 0.9 * update / updates) * step
            if update > (1 - self.average_share) * updates:
                weight_sum += policy.weights
                averaged_updates += 1
            if on_update is not None:
                on_update(update * self.episodes, policy)
        if averaged_updates:
            policy.weights[:] = weight_sum / averaged_updates
        return policy

    def _gradient(
        self, policy: LinearPolicy, problem: Problem, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """Of the expected reward, in deviations of it."""
        rollout = policy.roll_out(
            problem, gumbel=policy.gumbel(problem, self.episodes, rng), keep_features=True
        )
        verdict = simulator.judge(problem, policy.placement(problem, rollout), rollout.start)
        reward = self.reward(from_verdict(problem, verdict), serial_seconds(problem))
        advantage = (reward - reward.mean()) / max(float(reward.std()), 1e-9)
        log_prob_gradient, entropy_gradient = gradients(policy, problem, rollout)
        credit = advantage[:, None] * log_prob_gradient + self.entropy_bonus * entropy_gradient
        gradient: NDArray[np.float64] = credit.mean(axis=0)
        return gradient


def gradients(
    policy: LinearPolicy, problem: Problem, rollout: Rollout
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Episodes × features, twice: how log-probability and entropy change with each weight."""
    features = rollout.features.astype(float)
    legal = policy.legal(problem)[:, None]
    logits = np.where(legal, features @ policy.weights, -1e9)
    log_prob = logits - logits.max(axis=-1, keepdims=True)
    log_prob -= np.log(np.exp(log_prob).sum(axis=-1, keepdims=True))
    probability = np.exp(log_prob)
    mean = (probability[..., None] * features).sum(axis=2)
    device_index = rollout.device.T[:, :, None, None].astype(np.int64)
    chosen_features = np.take_along_axis(features, device_index, axis=2)[:, :, 0]
    # d entropy / d logit = -p (log p + entropy)
    entropy = -(probability * np.where(legal, log_prob, 0.0)).sum(axis=-1, keepdims=True)
    slope = -probability * np.where(legal, log_prob + entropy, 0.0)
    return (chosen_features - mean).sum(axis=0), (slope[..., None] * features).sum(axis=(0, 2))
