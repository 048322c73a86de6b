"""REINFORCE for large batches, with the gradients of its terms clipped one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import ConfigError
from placewright.training.algorithms import loss_terms
from placewright.training.multi_graph import MultiGraphEpisodes

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from placewright.policies import Episodes, Policy
    from placewright.problem import Problem
    from placewright.training.algorithms import Regularization


@dataclass(frozen=True)
class BatchedReinforce:
    """REINFORCE for large batches, which clips rewards and other terms one by one.

    The gradient of the rewards and that of entropy and self-imitation often oppose each other.
    Clipped as one, the larger alone decides each step; here each is clipped before they are added.

    Args:
        batch: Episodes that are scored at once, which limits memory; those of several problems are
            not split. The entropy floor holds for each such part.
    """

    batch: int = 256

    @property
    def epochs(self) -> int:
        return 1

    def ends_before(self, epoch: int, figures: dict[str, float]) -> bool:
        return False

    def loss(
        self,
        policy: Policy,
        problem: Problem,
        episodes: Episodes,
        advantage: NDArray[np.float64],
        regularization: Regularization,
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Refuse: a sum of both terms could only be clipped as one.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "BatchedReinforce clips its terms one by one, and micro-batches and controllers clip "
            "their sum: train without them, or use Reinforce"
        )

    def update(
        self,
        policy: Policy,
        problem: Problem,
        episodes: Episodes,
        advantage: NDArray[np.float64],
        optimizer: torch.optim.Optimizer,
        regularization: Regularization,
    ) -> dict[str, float]:
        import torch

        parameters = list(policy.parameters())
        reward_gradient, other_gradient = (
            [torch.zeros_like(parameter) for parameter in parameters] for _ in range(2)
        )
        entropies: dict[str, float] = {}
        first = 0
        for part in _split(policy, episodes, self.batch):
            part_advantage = advantage[first : first + len(part)]
            first, share = first + len(part), len(part) / len(episodes)
            rewards, others, shares = loss_terms(
                policy, problem, part, part_advantage, regularization
            )
            _add_gradient(reward_gradient, share * rewards, parameters, retain=others is not None)
            if others is not None:
                _add_gradient(other_gradient, share * others, parameters)
            for name, value in shares.items():
                entropies[name] = entropies.get(name, 0.0) + share * value
        cosine = _cosine(reward_gradient, other_gradient)
        norms = [
            _clip(gradient, regularization.max_grad_norm)
            for gradient in (reward_gradient, other_gradient)
        ]
        if all(np.isfinite(norms)):
            for parameter, *terms in zip(parameters, reward_gradient, other_gradient, strict=True):
                parameter.grad = terms[0] + terms[1]
            optimizer.step()
        figures = {"gradient": norms[0]}
        if norms[1]:
            figures |= {"gradient/other": norms[1], "gradient/cosine": cosine}
        return {**figures, **entropies}


def _split(policy: Policy, episodes: Episodes, size: int) -> list[Episodes]:
    """Parts of at most this size, in order, that keep tied episodes together."""
    if len(episodes) <= size or isinstance(episodes, MultiGraphEpisodes):
        return [episodes]
    size = max(size // policy.tied_episodes, 1) * policy.tied_episodes
    firsts = range(0, len(episodes), size)
    return [policy.take(episodes, first, min(first + size, len(episodes))) for first in firsts]


def _add_gradient(
    total: list[torch.Tensor],
    loss: torch.Tensor,
    parameters: list[torch.nn.Parameter],
    retain: bool = False,
) -> None:
    """Add the gradient of a loss to a total; a parameter that the loss does not use has none."""
    import torch

    gradients = torch.autograd.grad(loss, parameters, retain_graph=retain, allow_unused=True)
    for into, gradient in zip(total, gradients, strict=True):
        if gradient is not None:
            into += gradient


def _norm(gradients: list[torch.Tensor]) -> float:
    import torch

    return float(torch.linalg.vector_norm(torch.stack([each.norm() for each in gradients])))


def _clip(gradients: list[torch.Tensor], max_norm: float) -> float:
    """Limit the norm of gradients together, in place; returns what it was."""
    norm = _norm(gradients)
    if max_norm > 0 and np.isfinite(norm) and norm > max_norm:
        for gradient in gradients:
            gradient *= max_norm / norm
    return norm


def _cosine(first: list[torch.Tensor], second: list[torch.Tensor]) -> float:
    """The cosine between two gradients; 0 if one of them is."""
    norms = _norm(first) * _norm(second)
    product = sum(float((one * other).sum()) for one, other in zip(first, second, strict=True))
    return product / norms if norms else 0.0
