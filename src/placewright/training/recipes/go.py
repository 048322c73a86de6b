"""Recipes of GO, for the shared trainer; imitation comes before it (`go_imitation`)."""

from __future__ import annotations

from placewright import policies
from placewright.training.algorithms import PPO
from placewright.training.baselines import BatchNormalised
from placewright.training.recipes.base import Recipe
from placewright.training.rewards import Graded
from placewright.training.schedules import Straight, Until


def go() -> Recipe:
    """GO on one problem or many.

    Each decision's ratio is clipped by itself, and the advantage is normalised in the batch, which
    is of one graph. Every episode refines the first plan anew, so all modules are drawn; elites
    that finer passes refine are those of `training.go`.
    """
    return Recipe(
        "go",
        policies.find("go").Shape(passes=("module",), stay=3.0, drawn=0),
        algorithm=PPO(),
        reward=Graded(step=1.0),
        baseline=BatchNormalised,
        samples=32,
        rate=Straight(1e-3, 1e-4),
        floor=Until(0.8, 0.1),
    )
