"""Rewards: a number for each judged plan; larger is better.

Most are -√(t / t_ref) for a plan that fits (Mirhoseini et al. 2017 found the root better than the
time or its logarithm). The papers measure t in seconds, and a step on one of their GPUs took about
one; with t_ref, the serial time on the fastest device, one setting works for all problems.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.outcome import Outcome


class Reward(Protocol):
    """The reward of each plan."""

    def __call__(self, outcome: Outcome, reference_seconds: float) -> NDArray[np.float64]: ...


@dataclass(frozen=True)
class FixedPenalty:
    """A constant for plans that do not fit, as in ColocRL and Hierarchical.

    Args:
        failure_penalty: The constant: √100 in the papers, for 100 seconds.
    """

    failure_penalty: float = 10.0

    def __call__(self, outcome: Outcome, reference_seconds: float) -> NDArray[np.float64]:
        seconds = np.where(outcome.feasible, outcome.seconds, 0.0)
        return np.where(
            outcome.feasible, -np.sqrt(seconds / reference_seconds), -self.failure_penalty
        )


@dataclass(frozen=True)
class GradedPenalty:
    """A plan that does not fit takes longer with its overflow: t·(1 + step + c · overflow share).

    Args:
        overflow_weight: The slowdown of an overflow of a device's whole memory.
        overflow_step: The slowdown of any overflow, so that a small one never pays.
        failure_penalty: The negative reward of plans that could not be run.
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
    """-(t + c · GiB of overflow), limited by a cap, as in Placeto; t relative to t_ref.

    The paper counts the overflow of the fullest device; ours is that of all devices together.
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
    """Episodes × steps: the return of each step, from the plans' rewards.

    An episode of one plan has one step, whose return is the reward. One of S + 1 plans has S steps;
    the return of each is the improvement from its plan to the last one: the sum of all later
    improvements (Placeto's intermediate rewards), each discounted.
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
