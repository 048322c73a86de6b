"""Optimizer steps: updates a weight from its gradients by SGD, momentum or Adam."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from placewright.frontends.op_costs import check_optimizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.runtime.program.runners import InputRead, Values


@dataclass(frozen=True)
class OptimizerRule:
    """How weights are updated, with the parameters of `torch.optim`.

    Args:
        name: `sgd`, `momentum` or `adam`.
        learning_rate: The learning rate.
    """

    name: str = "sgd"
    learning_rate: float = 1e-3
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    @classmethod
    def of(cls, optimizer: str | OptimizerRule | None) -> OptimizerRule:
        """The rule of an optimizer's name, `sgd` for None, or the rule itself.

        Raises:
            ConfigError: It is unknown.
        """
        rule = optimizer if isinstance(optimizer, OptimizerRule) else cls(optimizer or "sgd")
        check_optimizer(rule.name)
        return rule


@dataclass
class OptimizerState:
    """The optimizer's state of one weight: momenta, and the number of steps for Adam."""

    momenta: list[torch.Tensor] = field(default_factory=list)
    steps: torch.Tensor | None = None

    def move_to(self, device: torch.device) -> None:
        """Move to the weight's device."""
        self.momenta = [momentum.to(device) for momentum in self.momenta]
        self.steps = None if self.steps is None else self.steps.to(device)


class WeightUpdate:
    """Runs an update, and holds the optimizer's state of its weight on the weight's device.

    Updates of the same weight in programs for other shapes may share the state.

    Args:
        gradients: How to read the parts of the gradient from the inputs, of which the first is the
            weight.
    """

    def __init__(self, rule: OptimizerRule, gradients: Sequence[InputRead]) -> None:
        self.rule, self.gradients = rule, gradients
        self.state = OptimizerState()

    @property
    def momenta(self) -> list[torch.Tensor]:
        return self.state.momenta

    @torch.no_grad()
    def __call__(self, values: Values) -> tuple[torch.Tensor, ...]:
        weight, rule = values[0], self.rule
        gradient = self.gradients[0](values)
        for read in self.gradients[1:]:
            gradient = gradient + read(values)
        if rule.name != "sgd" and not self.momenta:
            count = 1 if rule.name == "momentum" else 2
            self.state.momenta = [torch.zeros_like(weight) for _ in range(count)]
        if self.momenta and self.momenta[0].device != weight.device:
            self.state.move_to(weight.device)
        if rule.name == "adam":
            self._adam(weight, gradient)
        elif rule.name == "momentum":
            (velocity,) = self.momenta
            velocity.mul_(rule.momentum).add_(gradient)
            weight.add_(velocity, alpha=-rule.learning_rate)
        else:
            weight.add_(gradient, alpha=-rule.learning_rate)
        return (weight.new_empty(0),)

    def _adam(self, weight: torch.Tensor, gradient: torch.Tensor) -> None:
        """Kingma and Ba (ICLR 2015), algorithm 1, in the order of operations of `torch.optim`.

        Steps are counted on the weight's device, so that a replay of a captured update counts.
        """
        if self.state.steps is None:
            self.state.steps = torch.zeros((), dtype=torch.float64, device=weight.device)
        mean, square = self.momenta
        beta1, beta2 = self.rule.betas
        steps = self.state.steps.add_(1)
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (square.sqrt() / (1 - beta2**steps).sqrt()).add_(self.rule.eps)
        weight.addcdiv_(mean * (self.rule.learning_rate / (1 - beta1**steps)), root, value=-1)
