"""Controls of an algorithm: they show what sampling and imitation find by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.training.algorithms import Regularization, loss_terms

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from placewright.policies import Episodes, Policy
    from placewright.problem import Problem
    from placewright.training.algorithms import Algorithm


@dataclass(frozen=True)
class NoUpdate:
    """Leaves the policy as it is: what sampling finds without learning."""

    @property
    def epochs(self) -> int:
        return 0

    def ends_before(self, epoch: int, figures: dict[str, float]) -> bool:
        return True

    def loss(
        self,
        policy: Policy,
        problem: Problem,
        episodes: Episodes,
        advantage: NDArray[np.float64],
        regularization: Regularization,
    ) -> tuple[torch.Tensor, dict[str, float]]:
        loss, _, entropies = loss_terms(policy, problem, episodes, advantage, Regularization())
        return loss, entropies

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

        with torch.no_grad():
            _, _, entropies = loss_terms(policy, problem, episodes, advantage, Regularization())
        return {"gradient": 0.0, **entropies}


@dataclass(frozen=True)
class WithoutRewards:
    """Another algorithm whose advantages are all 0: what imitation finds without rewards."""

    algorithm: Algorithm

    @property
    def epochs(self) -> int:
        return self.algorithm.epochs

    def ends_before(self, epoch: int, figures: dict[str, float]) -> bool:
        return self.algorithm.ends_before(epoch, figures)

    def loss(
        self,
        policy: Policy,
        problem: Problem,
        episodes: Episodes,
        advantage: NDArray[np.float64],
        regularization: Regularization,
    ) -> tuple[torch.Tensor, dict[str, float]]:
        nothing = np.zeros_like(advantage)
        return self.algorithm.loss(policy, problem, episodes, nothing, regularization)

    def update(
        self,
        policy: Policy,
        problem: Problem,
        episodes: Episodes,
        advantage: NDArray[np.float64],
        optimizer: torch.optim.Optimizer,
        regularization: Regularization,
    ) -> dict[str, float]:
        return self.algorithm.update(
            policy, problem, episodes, np.zeros_like(advantage), optimizer, regularization
        )
