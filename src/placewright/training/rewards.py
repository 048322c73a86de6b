"""Rewards: judged plans in, a number for each out; larger is better.

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

    from placewright.training.environment import Judged


class Reward(Protocol):
    """What plans are worth."""

    def __call__(self, judged: Judged, reference: float) -> NDArray[np.float64]: ...


@dataclass(frozen=True)
class Constant:
    """A constant for whatever does not fit, as in ColocRL and Hierarchical.

    Args:
        failing: The constant's size: √100 in the papers, for 100 seconds.
    """

    failing: float = 10.0

    def __call__(self, judged: Judged, reference: float) -> NDArray[np.float64]:
        seconds = np.where(judged.valid, judged.seconds, 0.0)
        return np.where(judged.valid, -np.sqrt(seconds / reference), -self.failing)


@dataclass(frozen=True)
class Graded:
    """A plan over memory takes longer the more it is over: t·(1 + step + c · share of bytes over).

    Args:
        c: How much longer a plan takes that is over by a device's whole memory.
        step: What being over at all adds, so that a byte over never pays.
        failing: The reward's size for plans that could not be run.
    """

    c: float = 10.0
    step: float = 0.0
    failing: float = 10.0

    def __call__(self, judged: Judged, reference: float) -> NDArray[np.float64]:
        ran = np.isfinite(judged.seconds)
        longer = 1.0 + self.c * judged.share + self.step * (judged.over > 0)
        seconds = np.where(ran, judged.seconds, 0.0) * longer
        return np.where(ran, -np.sqrt(seconds / reference), -self.failing)


@dataclass(frozen=True)
class Penalised:
    """-(t + c · GiB over), at most a cap, as in Placeto; t as a share of t_ref.

    The paper counts the fullest device's bytes over; ours are those of all devices together.
    """

    c: float = 2.0
    cap: float = 10.0

    def __call__(self, judged: Judged, reference: float) -> NDArray[np.float64]:
        return -np.minimum(judged.seconds / reference + self.c * judged.over / 2**30, self.cap)


def returns(
    reward: NDArray[np.float64], owner: NDArray[np.int64], episodes: int, discount: float = 1.0
) -> NDArray[np.float64]:
    """Episodes × steps: what each step is to be credited with, from the plans' rewards.

    An episode of one plan has one step, worth its reward. One of S + 1 plans has S steps; each is
    worth how much better the last plan is than the one it was taken from: the sum of all later
    improvements (Placeto's intermediate rewards), each a discount less the later it came.
    """
    rows = reward.reshape(episodes, -1)
    if (owner != np.repeat(np.arange(episodes), rows.shape[1])).any():
        raise ValueError("episodes have unequal numbers of plans, or plans are out of order")
    if rows.shape[1] == 1:
        return rows
    if discount == 1.0:
        return rows[:, -1:] - rows[:, :-1]
    credit = np.diff(rows, axis=1)
    for step in range(credit.shape[1] - 2, -1, -1):
        credit[:, step] += discount * credit[:, step + 1]
    return credit
