"""Gradients of micro-batches, and their sum in an order that does not depend on who adds them.

Micro-batches are the leaves of a binary tree, in their order: 0 and 1 are added, 2 and 3, then both
sums. A worker adds what is complete within its run of micro-batches, and the driver adds the rest.
So each sum is made of the same two parts wherever it is made, and to the last bit the same; and
a worker sends few sums in place of many gradients. What is left over where the number of leaves is
no power of two is added from the left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from placewright.policies import Episodes, Policy
    from placewright.problem import Problem
    from placewright.training.algorithms import Algorithm, Regularization


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
class GradientSum:
    """The sum of the gradients of micro-batches one after the other.

    Args:
        first: The index of the first micro-batch.
        size: How many they are.
        total: Their episodes; gradients and figures are sums over them.
    """

    first: int
    size: int
    total: LossGradient

    @classmethod
    def of(cls, index: int, gradient: LossGradient) -> GradientSum:
        """That of one micro-batch."""
        count = gradient.episodes
        figures = {name: value * count for name, value in gradient.figures.items()}
        values = gradient.values * gradient.values.dtype.type(count)
        return cls(index, 1, LossGradient(count, values, gradient.is_used, figures))

    def is_left_of(self, other: GradientSum) -> bool:
        """Whether both are the halves of a node of the tree, this one the left half."""
        return (
            self.size == other.size
            and self.first + self.size == other.first
            and self.first % (2 * self.size) == 0
        )

    def __add__(self, other: GradientSum) -> GradientSum:
        mine, theirs = self.total, other.total
        total = LossGradient(
            mine.episodes + theirs.episodes,
            mine.values + theirs.values,
            tuple(one or two for one, two in zip(mine.is_used, theirs.is_used, strict=True)),
            {name: value + theirs.figures[name] for name, value in mine.figures.items()},
        )
        return GradientSum(self.first, self.size + other.size, total)


def add_gradients(sums: Iterable[GradientSum]) -> list[GradientSum]:
    """As few sums as the tree has for these micro-batches, which are in their order."""
    added: list[GradientSum] = []
    for each in sums:
        added.append(each)
        while len(added) > 1 and added[-2].is_left_of(added[-1]):
            right = added.pop()
            added[-1] += right
    return added


def mean_gradient(sums: Sequence[GradientSum]) -> LossGradient:
    """The mean gradient of all micro-batches, each weighted by its episodes."""
    first, *rest = add_gradients(sums)
    for each in rest:
        first += each
    total = first.total
    figures = {name: value / total.episodes for name, value in total.figures.items()}
    values = total.values / total.values.dtype.type(total.episodes)
    return LossGradient(total.episodes, values, total.is_used, figures)


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


def set_gradient(policy: Policy, gradient: LossGradient) -> None:
    """Give a policy's parameters their gradients; None to those that the loss leaves out."""
    import torch

    begin = 0
    for parameter, is_used in zip(policy.parameters(), gradient.is_used, strict=True):
        end = begin + parameter.numel()
        values = torch.from_numpy(gradient.values[begin:end]).reshape(parameter.shape)
        parameter.grad = values.to(parameter.device, parameter.dtype) if is_used else None
        begin = end
