"""Recipes of GO: as it ships (imitation, then PPO from elites), and as the paper describes it."""

from __future__ import annotations

from functools import partial

from placewright import policies
from placewright.training.algorithms import PPO
from placewright.training.baselines import MovingAverage, StartNormalised
from placewright.training.go.hooks import GoHooks
from placewright.training.go.imitation import Imitation
from placewright.training.go.issue_order import IssueOrderEnvironment
from placewright.training.recipes.base import Recipe
from placewright.training.rewards import FixedPenalty, GradedPenalty
from placewright.training.schedules import Constant, Decay

MAX_UNITS = 5000
"""Units of a graph in training; larger graphs are merged along heavy edges."""


def go_recipe(
    policy_config: policies.PolicyConfig | None = None,
    episodes: int = 16,
    learning_rates: tuple[float, float] = (1e-3, 1e-3),
    imitation_share: float = 0.3,
    imitation_epochs: int = 1,
    imitation_steps: int = 1,
    imitation: Imitation | None = None,
) -> Recipe:
    """GO as it ships, on one problem or many.

    Each decision's ratio is clipped by itself, and the advantage is relative to episodes of the
    batch that start alike.

    Args:
        policy_config: As shipped by default: all passes, devices and priorities, op times, three
            initial plans.
        learning_rates: Of imitation and of PPO; each falls to a tenth linearly.
        imitation_share, imitation_epochs, imitation_steps, imitation: See `GoHooks`.
    """
    return Recipe(
        "go",
        policy_config
        or policies.find_config("go")(
            tasks=("device", "priority"), starts=3, timed=True, max_groups=MAX_UNITS
        ),
        algorithm=PPO(),
        reward=GradedPenalty(overflow_step=1.0),
        baseline=StartNormalised,
        episodes=episodes,
        family_problems=1,
        learning_rate=Decay(learning_rates[1], begin=imitation_share),
        entropy_floor=Constant(0.1),
        hooks=partial(
            GoHooks,
            imitation_share,
            imitation_epochs,
            imitation_steps,
            Decay(learning_rates[0], end=imitation_share),
            imitation or Imitation(),
        ),
        environment=IssueOrderEnvironment,
    )


def go_paper() -> Recipe:
    """Zhou et al. 2020: every op decided at once in three passes, PPO, no teacher, no first plans.

    The reward is minus the root of the step time, -10 for a plan that does not fit; the advantage
    is relative to the moving average of the graph's rewards. Features are ours, without the times
    of ops under a plan. The paper's sizes and rates are not published: these are those of a
    re-implementation (hidden 128, three attention layers of 8 heads, segments of 256, clip 0.2,
    entropy 0.01, rate 1e-4), with a moving average instead of its value network.
    """
    return Recipe(
        "go-paper",
        policies.find_config("go")(
            hidden=128,
            rounds=2,
            layers=3,
            heads=8,
            segment=256,
            passes=("unit", "unit", "unit"),
            ranked=False,
            stay_bias=0.0,
            margin=0.0,
            max_groups=MAX_UNITS,
            drawn=0,
            correlated=False,
        ),
        algorithm=PPO(),
        reward=FixedPenalty(10.0),
        baseline=partial(MovingAverage, 0.9),
        episodes=16,
        family_problems=1,
        learning_rate=Constant(1e-4),
        entropy_bonus=Constant(0.01),
        max_grad_norm=0.5,
    )
