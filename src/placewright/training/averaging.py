"""Polyak averaging of a policy's weights over the last updates of training.

Weights go on wandering about where they have come to; their mean lies in the middle (Polyak and
Juditsky 1992), and what it likes best depends less on the last plans that were drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from placewright.training.trainer import Trainer


class WeightAverage:
    """Watches a trainer; `apply_to` then gives its policy the mean weights.

    Args:
        share: Of the budget, the last part, that is averaged.
    """

    def __init__(self, share: float = 0.3) -> None:
        self.share = share
        self.count = 0
        self._sums: dict[str, torch.Tensor] = {}

    def __call__(self, trainer: Trainer) -> bool:
        """Look at the policy after an update."""
        if trainer.evaluations > (1 - self.share) * (trainer.max_evaluations or 0):
            self.count += 1
            for name, weights in trainer.policy.state_dict().items():
                weight_sum = self._sums.get(name)
                current = weights.detach().double()
                self._sums[name] = current if weight_sum is None else weight_sum + current
        return True

    def apply_to(self, trainer: Trainer) -> None:
        """Give the policy the mean of the weights that were seen, if any were."""
        if self.count:
            mean = {name: (total / self.count).float() for name, total in self._sums.items()}
            trainer.policy.load_state_dict(mean)
