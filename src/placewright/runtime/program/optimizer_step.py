"""A weight and its gradients in, the weight changed by an optimizer's rule out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.runtime.program.runners import Read, Values


@dataclass(frozen=True)
class Rule:
    """How weights are updated, with the numbers that `torch.optim` takes.

    Args:
        name: `sgd`, `momentum` or `adam`.
        rate: The learning rate.
    """

    name: str = "sgd"
    rate: float = 1e-3
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8


@dataclass
class States:
    """What an optimizer keeps for one weight: momenta, and steps where it counts them."""

    momenta: list[torch.Tensor] = field(default_factory=list)
    steps: torch.Tensor | None = None

    def go_to(self, device: torch.device) -> None:
        """Move where the weight is."""
        self.momenta = [one.to(device) for one in self.momenta]
        self.steps = None if self.steps is None else self.steps.to(device)


class Update:
    """Runs an update; it keeps the optimizer's states of its weight, on the weight's device.

    Another one of the same weight, in a program for another shape, may be given the same states.

    Args:
        gradients: Where to find the parts of the gradient among the values that are read, of which
            the first is the weight.
    """

    def __init__(self, rule: Rule, gradients: Sequence[Read]) -> None:
        self.rule, self.gradients = rule, gradients
        self.kept = States()

    @property
    def states(self) -> list[torch.Tensor]:
        return self.kept.momenta

    @torch.no_grad()
    def __call__(self, values: Values) -> tuple[torch.Tensor, ...]:
        weight, rule = values[0], self.rule
        gradient = self.gradients[0](values)
        for more in self.gradients[1:]:
            gradient = gradient + more(values)
        if rule.name != "sgd" and not self.states:
            count = 1 if rule.name == "momentum" else 2
            self.kept.momenta = [torch.zeros_like(weight) for _ in range(count)]
        if self.states and self.states[0].device != weight.device:
            self.kept.go_to(weight.device)
        if rule.name == "adam":
            self._adam(weight, gradient)
        elif rule.name == "momentum":
            (speed,) = self.states
            speed.mul_(rule.momentum).add_(gradient)
            weight.add_(speed, alpha=-rule.rate)
        else:
            weight.add_(gradient, alpha=-rule.rate)
        return (weight.new_empty(0),)

    def _adam(self, weight: torch.Tensor, gradient: torch.Tensor) -> None:
        """Kingma and Ba (ICLR 2015), algorithm 1, in the order of operations of `torch.optim`.

        Steps are counted where the weight is, so that a captured update counts when it is replayed.
        """
        if self.kept.steps is None:
            self.kept.steps = torch.zeros((), dtype=torch.float64, device=weight.device)
        mean, square = self.states
        first, second = self.rule.betas
        steps = self.kept.steps.add_(1)
        mean.lerp_(gradient, 1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        root = (square.sqrt() / (1 - second**steps).sqrt()).add_(self.rule.eps)
        weight.addcdiv_(mean * (self.rule.rate / (1 - first**steps)), root, value=-1)
