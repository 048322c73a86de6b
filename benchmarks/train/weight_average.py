"""Polyak averaging of a policy's weights over the last updates of training.

Weights keep moving around an optimum; their mean is closer to it (Polyak and Juditsky 1992), and
its argmax plan depends less on the last samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from placewright.training.trainer import Trainer


class WeightAverage:
    """Averages a trainer's weights; `apply_to` then sets its policy to the mean.

    Args:
        share: The last part of the budget, in which weights are averaged.
    """

    def __init__(self, share: float = 0.3) -> None:
        self.share = share
        self.count = 0
        self._sums: dict[str, torch.Tensor] = {}

    def __call__(self, trainer: Trainer) -> bool:
        """Add the weights after an update."""
        if trainer.evaluations > (1 - self.share) * (trainer.max_evaluations or 0):
            self.count += 1
            for name, weights in trainer.policy.state_dict().items():
                weight_sum = self._sums.get(name)
                current = weights.detach().double()
                self._sums[name] = current if weight_sum is None else weight_sum + current
        return True

    def apply_to(self, trainer: Trainer) -> None:
        """Set the policy to the mean of the added weights, if there are any."""
        if self.count:
            mean = {name: (total / self.count).float() for name, total in self._sums.items()}
            trainer.policy.load_state_dict(mean)
