"""The pair policy's own training: problems in, a trained policy out, without torch.

REINFORCE (Williams 1992) with the gradient written out: that of a softmax over weighted features is
the chosen pair's features less the mean of all pairs' features.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.policies.transfer.linear import Pair, Shape
from placewright.training.environment import from_verdict, serial_seconds
from placewright.training.rewards import Graded, Reward

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from placewright.policies.transfer.rollout import Walk
    from placewright.problem import Problem

_FIRST, _SECOND = 0.9, 0.99  # Adam's averages; few updates, so a short memory of squares


@dataclass(frozen=True)
class PairTraining:
    """How a pair policy is trained.

    Args:
        samples: Episodes of one problem per update.
        rate: Adam's learning rate, which falls to a tenth of it in a straight line.
        bonus: What a nat of entropy of each decision is worth, in deviations of the reward.
        averaged: The share of the updates, the last ones, whose weights are averaged in the end.
    """

    shape: Shape = field(default_factory=Shape)
    reward: Reward = field(default_factory=lambda: Graded(step=1.0))
    samples: int = 16
    rate: float = 0.1
    bonus: float = 0.0
    averaged: float = 0.3

    def run(
        self,
        problems: Sequence[Problem],
        plans: int,
        seed: int = 0,
        watch: Callable[[int, Pair], None] | None = None,
    ) -> Pair:
        """Train a fresh policy on problems drawn at random until so many plans are judged.

        Args:
            watch: Called after each update with the plans judged so far and the policy.
        """
        rng = np.random.default_rng([seed, 1])
        policy = self.shape.build(problems[0], seed)
        first, second, total = (np.zeros_like(policy.weights) for _ in range(3))
        updates = max(1, plans // self.samples)
        kept = 0
        for update in range(1, updates + 1):
            problem = problems[int(rng.integers(len(problems)))]
            gradient = self._gradient(policy, problem, rng)
            first = _FIRST * first + (1 - _FIRST) * gradient
            second = _SECOND * second + (1 - _SECOND) * gradient**2
            step = first / (1 - _FIRST**update) / (np.sqrt(second / (1 - _SECOND**update)) + 1e-8)
            policy.weights += self.rate * (1 - 0.9 * update / updates) * step
            if update > (1 - self.averaged) * updates:
                total += policy.weights
                kept += 1
            if watch is not None:
                watch(update * self.samples, policy)
        if kept:
            policy.weights[:] = total / kept
        return policy

    def _gradient(
        self, policy: Pair, problem: Problem, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """Of the expected reward, in deviations of it."""
        walk = policy.walk(problem, luck=policy.luck(problem, self.samples, rng), keep=True)
        verdict = simulator.judge(problem, policy.placement(problem, walk), walk.start)
        reward = self.reward(from_verdict(problem, verdict), serial_seconds(problem))
        advantage = (reward - reward.mean()) / max(float(reward.std()), 1e-9)
        of_log, of_entropy = gradients(policy, problem, walk)
        credit = advantage[:, None] * of_log + self.bonus * of_entropy
        gradient: NDArray[np.float64] = credit.mean(axis=0)
        return gradient


def gradients(
    policy: Pair, problem: Problem, walk: Walk
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Episodes × features, twice: how log-probability and entropy change with each weight."""
    features = walk.features.astype(float)
    legal = policy.legal(problem)[:, None]
    logits = np.where(legal, features @ policy.weights, -1e9)
    sure = logits - logits.max(axis=-1, keepdims=True)
    sure -= np.log(np.exp(sure).sum(axis=-1, keepdims=True))
    likely = np.exp(sure)
    mean = (likely[..., None] * features).sum(axis=2)
    at = walk.device.T[:, :, None, None].astype(np.int64)
    chosen = np.take_along_axis(features, at, axis=2)[:, :, 0]
    # d entropy / d logit = -p (log p + entropy)
    entropy = -(likely * np.where(legal, sure, 0.0)).sum(axis=-1, keepdims=True)
    slope = -likely * np.where(legal, sure + entropy, 0.0)
    return (chosen - mean).sum(axis=0), (slope[..., None] * features).sum(axis=(0, 2))
