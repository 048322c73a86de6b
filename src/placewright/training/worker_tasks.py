"""What workers do in training: sample and judge episodes, and compute gradients of their loss.

Both tasks are pure: each item carries its seed or its episodes, and the task the weights. So a
micro-batch has the same episodes and the same gradient wherever it is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placewright.policies import Episodes, Policy
    from placewright.problem import Problem
    from placewright.training.algorithms import Algorithm, Regularization
    from placewright.training.environment import JudgedPlans, PlanSimulation
    from placewright.training.replica import PolicyReplica
    from placewright.training.sampling import EpisodeRequest


@dataclass(frozen=True, eq=False)
class SampledEpisodes:
    """Episodes that a worker sampled.

    Args:
        judged: Their plans, judged; None where plans are measured.
        simulated: Plans that were simulated inside the episodes.
    """

    episodes: Episodes
    judged: JudgedPlans | None
    simulated: int


@dataclass(frozen=True, eq=False)
class SampleEpisodes:
    """Samples episodes and judges their plans, one result per request.

    Args:
        simulation: How plans are judged; None leaves them to the driver.
        threads: Threads that judge plans.
    """

    replica: PolicyReplica
    simulation: PlanSimulation | None
    threads: int = 1

    def __call__(self, problem: Problem, items: Sequence[EpisodeRequest]) -> list[SampledEpisodes]:
        policy, counter = self.replica.build()
        results = []
        for request in items:
            counter.plans = 0
            episodes = request.sample(policy, problem)
            judged = None
            if self.simulation is not None:
                judged = self.simulation.judge(
                    problem,
                    episodes.placements,
                    episodes.priority,
                    episodes.fusion,
                    threads=self.threads,
                )
            results.append(SampledEpisodes(episodes, judged, counter.plans))
        return results


@dataclass(frozen=True, eq=False)
class LossGradient:
    """The gradient of the loss of some episodes.

    Args:
        episodes: How many they are.
        values: Parameters one after the other, flat; zeros for those that the loss leaves out.
        is_used: Parameters: whether the loss depends on each.
        figures: The loss's figures, means over the episodes.
    """

    episodes: int
    values: NDArray[np.floating]
    is_used: tuple[bool, ...]
    figures: dict[str, float]


@dataclass(frozen=True, eq=False)
class ComputeGradients:
    """Computes the gradient of the loss of each item: episodes, and their advantages."""

    replica: PolicyReplica
    algorithm: Algorithm
    regularization: Regularization

    def __call__(
        self, problem: Problem, items: Sequence[tuple[Episodes, NDArray[np.float64]]]
    ) -> list[LossGradient]:
        policy, _ = self.replica.build()
        return [
            loss_gradient(policy, problem, *item, self.algorithm, self.regularization)
            for item in items
        ]


def loss_gradient(
    policy: Policy,
    problem: Problem,
    episodes: Episodes,
    advantage: NDArray[np.float64],
    algorithm: Algorithm,
    regularization: Regularization,
) -> LossGradient:
    """The gradient of the loss of episodes, as arrays."""
    import torch

    loss, figures = algorithm.loss(policy, problem, episodes, advantage, regularization)
    parameters = list(policy.parameters())
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    flat = [
        (torch.zeros_like(parameter) if gradient is None else gradient).detach().flatten()
        for parameter, gradient in zip(parameters, gradients, strict=True)
    ]
    is_used = tuple(gradient is not None for gradient in gradients)
    return LossGradient(len(episodes), torch.cat(flat).cpu().numpy(), is_used, figures)


def set_gradient(policy: Policy, parts: Sequence[LossGradient]) -> dict[str, float]:
    """Give a policy's parameters the mean gradient of parts, each weighted by its episodes.

    Parts are added in their order and in double precision, so that the sum depends on them alone.

    Returns:
        The mean figures.
    """
    import torch

    count = sum(part.episodes for part in parts)
    total = np.zeros(len(parts[0].values))
    figures = dict.fromkeys(parts[0].figures, 0.0)
    for part in parts:
        total += part.values.astype(np.float64) * (part.episodes / count)
        for name, value in part.figures.items():
            figures[name] += value * (part.episodes / count)
    begin = 0
    for index, parameter in enumerate(policy.parameters()):
        end = begin + parameter.numel()
        used = any(part.is_used[index] for part in parts)
        values = torch.from_numpy(total[begin:end]).reshape(parameter.shape)
        parameter.grad = values.to(parameter.device, parameter.dtype) if used else None
        begin = end
    return figures
