"""Rewards and advantages on a GPU: what `rewards` and `baselines` compute with numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from placewright.errors import ConfigError
from placewright.training.baselines import BatchNormalised, TopShare
from placewright.training.rewards import GradedPenalty

if TYPE_CHECKING:
    from placewright.simulator.lane_batch import LaneVerdict
    from placewright.training.baselines import Baseline
    from placewright.training.rewards import Reward


@dataclass(frozen=True, eq=False)
class LaneOutcome:
    """The outcome of plans by the lanes, as tensors.

    The overflow of a plan is the least that it can be: 0 where the bounds leave open if it fits.

    Args:
        seconds: Plans: step times, float64.
        overflow, overflow_share: Plans: as in `Outcome`, float64.
        fits, is_unfit: Plans: whether each certainly fits, and certainly does not.
    """

    seconds: torch.Tensor
    overflow: torch.Tensor
    overflow_share: torch.Tensor
    fits: torch.Tensor
    is_unfit: torch.Tensor

    @classmethod
    def of(cls, verdict: LaneVerdict) -> LaneOutcome:
        """The outcome of the plans of a verdict."""
        excess = verdict.least_excess.double()
        share = (excess / verdict.capacity.clamp(min=1)[:, None]).sum(dim=0)
        overflow = excess.sum(dim=0)
        return cls(verdict.step_time.double(), overflow, share, verdict.fits, overflow > 0)

    @property
    def is_open(self) -> torch.Tensor:
        """Plans: whether the bounds leave open if each fits."""
        return ~(self.fits | self.is_unfit)


def graded_rewards(
    reward: GradedPenalty, outcome: LaneOutcome, reference_seconds: float
) -> torch.Tensor:
    """Plans: the rewards, float64."""
    infinite = ~torch.isfinite(outcome.seconds)
    slowdown = 1.0 + reward.overflow_weight * outcome.overflow_share
    slowdown = slowdown + reward.overflow_step * (outcome.overflow > 0)
    seconds = outcome.seconds.masked_fill(infinite, 0.0) * slowdown
    return (-(seconds / reference_seconds).sqrt()).masked_fill(infinite, -reward.failure_penalty)


def advantages(baseline: BatchNormalised | TopShare, returns: torch.Tensor) -> torch.Tensor:
    """Episodes: returns less what the baseline expects."""
    if isinstance(baseline, BatchNormalised):
        deviation = returns.std(correction=0).clamp(min=baseline.min_deviation)
        return (returns - returns.mean()) / deviation
    ordered = returns.sort().values
    position = (1 - baseline.share) * (len(returns) - 1)  # as `numpy.quantile` has it
    lower = int(position)
    upper = min(lower + 1, len(returns) - 1)
    threshold = ordered[lower] + (position - lower) * (ordered[upper] - ordered[lower])
    excess = (returns - threshold).clamp(min=0.0)
    size = excess.square().mean().sqrt()
    return excess / size.clamp(min=baseline.min_deviation)


def check_objective(
    reward: Reward, baseline: Baseline
) -> tuple[GradedPenalty, BatchNormalised | TopShare]:
    """Both, if these functions know them.

    Raises:
        ConfigError: They do not.
    """
    if not isinstance(reward, GradedPenalty):
        raise ConfigError(
            f"updates on a GPU know the reward GradedPenalty, not {type(reward).__name__}"
        )
    if not isinstance(baseline, (BatchNormalised, TopShare)):
        raise ConfigError(
            "updates on a GPU know the baselines BatchNormalised and TopShare, not "
            f"{type(baseline).__name__}"
        )
    return reward, baseline
