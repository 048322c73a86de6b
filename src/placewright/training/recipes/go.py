"""Recipe of GO: imitation of demonstrations, then PPO on episodes that start at elites."""

from __future__ import annotations

from functools import partial

from placewright import policies
from placewright.training.algorithms import PPO
from placewright.training.baselines import StartNormalised
from placewright.training.go.hooks import GoHooks
from placewright.training.go.imitation import Imitation
from placewright.training.go.issue_order import IssueOrderEnvironment
from placewright.training.recipes.base import Recipe
from placewright.training.rewards import GradedPenalty
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
