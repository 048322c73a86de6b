"""Generalised advantage estimation (GAE): advantages of each step of an episode.

For episodes whose plans are judged at every step (Placeto); the other baselines have one return for
all steps, or a moving average for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.training.baselines import StatelessBaseline

if TYPE_CHECKING:
    from numpy.typing import NDArray


class StepNormalised(StatelessBaseline):
    """The batch's mean of each step, and one deviation for all of them; then GAE.

    Generalised advantage estimation (Schulman et al. 2016) with the batch's mean return of each
    step as the value of all its states: a later consequence of a step counts less.

    Args:
        gae_lambda: GAE's λ; 1 for returns less their means, 0 for each step's own improvement.
        min_deviation: A smaller deviation counts as this, so that equal plans do not become noise.
    """

    def __init__(self, gae_lambda: float = 1.0, min_deviation: float = 1e-6) -> None:
        self.gae_lambda, self.min_deviation = gae_lambda, min_deviation

    def advantage(
        self,
        returns: NDArray[np.float64],
        included: NDArray[np.bool_],
        graph: str,
        starts: NDArray[np.int64] | None = None,
    ) -> NDArray[np.float64]:
        if not included.any():
            return np.zeros_like(returns)
        residual = returns - returns[included].mean(axis=0)
        # r_t + V_{t+1} - V_t, r_t being a difference of returns, is the residuals' difference.
        credit = residual - np.concatenate([residual[:, 1:], np.zeros((len(residual), 1))], axis=1)
        for step in range(credit.shape[1] - 2, -1, -1):
            credit[:, step] += self.gae_lambda * credit[:, step + 1]
        deviation = max(float(credit[included].std()), self.min_deviation)
        return np.where(included[:, None], credit / deviation, 0.0)
