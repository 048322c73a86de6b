"""Recipe of GO for the shared trainer; imitation comes before it."""

from __future__ import annotations

from placewright import policies
from placewright.training.algorithms import PPO
from placewright.training.baselines import BatchNormalised
from placewright.training.recipes.base import Recipe
from placewright.training.rewards import GradedPenalty
from placewright.training.schedules import Linear, Step


def go_recipe() -> Recipe:
    """GO on one problem or many.

    Each decision's ratio is clipped by itself, and the advantage is normalised in the batch, which
    is of one graph. Every episode refines the first plan anew, so all modules are drawn; elites
    that finer passes refine are those of `training.go`.
    """
    return Recipe(
        "go",
        policies.find_config("go")(passes=("module",), stay_bias=3.0, drawn=0),
        algorithm=PPO(),
        reward=GradedPenalty(overflow_step=1.0),
        baseline=BatchNormalised,
        episodes=32,
        learning_rate=Linear(1e-3, 1e-4),
        entropy_floor=Step(0.8, 0.1),
    )
