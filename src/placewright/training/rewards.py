"""Rewards: a number for each judged plan; larger is better.

All are -√(t / t_ref) for a plan that fits (Mirhoseini et al. 2017 found the root better than the
time or its logarithm). The papers measure t in seconds, of which a step on one of their GPUs took
about one; t_ref, the serial time on the fastest device, makes one setting serve all problems.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.outcome import Outcome


class Reward(Protocol):
    """What plans are worth."""

    def __call__(self, outcome: Outcome, reference_seconds: float) -> NDArray[np.float64]: ...


@dataclass(frozen=True)
class FixedPenalty:
    """A constant for whatever does not fit, as in ColocRL and Hierarchical.

    Args:
        failure_penalty: The constant's size: √100 in the papers, for 100 seconds.
    """

    failure_penalty: float = 10.0

    def __call__(self, outcome: Outcome, reference_seconds: float) -> NDArray[np.float64]:
        seconds = np.where(outcome.feasible, outcome.seconds, 0.0)
        return np.where(
            outcome.feasible, -np.sqrt(seconds / reference_seconds), -self.failure_penalty
        )


@dataclass(frozen=True)
class GradedPenalty:
    """A plan over memory takes longer the more it is over: t·(1 + step + c · share of bytes over).

    Args:
        overflow_weight: How much longer a plan takes that is over by a device's whole memory.
        overflow_step: What being over at all adds, so that a byte over never pays.
        failure_penalty: The reward's size for plans that could not be run.
    """

    overflow_weight: float = 10.0
    overflow_step: float = 0.0
    failure_penalty: float = 10.0

    def __call__(self, outcome: Outcome, reference_seconds: float) -> NDArray[np.float64]:
        finite = np.isfinite(outcome.seconds)
        slowdown = (
            1.0
            + self.overflow_weight * outcome.overflow_share
            + self.overflow_step * (outcome.overflow > 0)
        )
        seconds = np.where(finite, outcome.seconds, 0.0) * slowdown
        return np.where(finite, -np.sqrt(seconds / reference_seconds), -self.failure_penalty)


@dataclass(frozen=True)
class CappedPenalty:
    """-(t + c · GiB over), at most a cap, as in Placeto; t as a share of t_ref.

    The paper counts the fullest device's bytes over; ours are those of all devices together.
    """

    overflow_weight: float = 2.0
    cap: float = 10.0

    def __call__(self, outcome: Outcome, reference_seconds: float) -> NDArray[np.float64]:
        return -np.minimum(
            outcome.seconds / reference_seconds + self.overflow_weight * outcome.overflow / 2**30,
            self.cap,
        )


def step_returns(
    reward: NDArray[np.float64], episode_of: NDArray[np.int64], episodes: int, discount: float = 1.0
) -> NDArray[np.float64]:
    """Episodes × steps: what each step is to be credited with, from the plans' rewards.

    An episode of one plan has one step, worth its reward. One of S + 1 plans has S steps; each is
    worth how much better the last plan is than the one it was taken from: the sum of all later
    improvements (Placeto's intermediate rewards), each a discount less the later it came.
    """
    rows = reward.reshape(episodes, -1)
    if (episode_of != np.repeat(np.arange(episodes), rows.shape[1])).any():
        raise ValueError("episodes have unequal numbers of plans, or plans are out of order")
    if rows.shape[1] == 1:
        return rows
    if discount == 1.0:
        return rows[:, -1:] - rows[:, :-1]
    credit = np.diff(rows, axis=1)
    for step in range(credit.shape[1] - 2, -1, -1):
        credit[:, step] += discount * credit[:, step + 1]
    return credit
