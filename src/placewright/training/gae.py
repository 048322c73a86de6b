"""Advantages of steps: the credit of each step of an episode in, less what was expected there, out.

For episodes whose every step's plan is judged (Placeto); the shared baselines know one return for
all steps, or a moving average for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class StepNormalised:
    """The batch's own mean of each step, and one deviation for all of them; then GAE.

    Generalised advantage estimation (Schulman et al. 2016) with the batch's mean return of each
    step as the value of all its states: what came of a step counts less the later it came.

    Args:
        trace: GAE's λ; 1 for returns less their means, 0 for each step's own improvement.
        least: A smaller deviation counts as this, so that equal plans do not become noise.
    """

    def __init__(self, trace: float = 1.0, least: float = 1e-6) -> None:
        self.trace, self.least = trace, least

    def advantage(
        self, returns: NDArray[np.float64], counted: NDArray[np.bool_], graph: str
    ) -> NDArray[np.float64]:
        if not counted.any():
            return np.zeros_like(returns)
        off = returns - returns[counted].mean(axis=0)
        # r_t + V_{t+1} - V_t, with r_t the difference of two returns, is off_t - off_{t+1}.
        credit = off - np.concatenate([off[:, 1:], np.zeros((len(off), 1))], axis=1)
        for step in range(credit.shape[1] - 2, -1, -1):
            credit[:, step] += self.trace * credit[:, step + 1]
        spread = max(float(credit[counted].std()), self.least)
        return np.where(counted[:, None], credit / spread, 0.0)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass
