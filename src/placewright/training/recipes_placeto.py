"""Recipes of the pair policy, for the shared trainer."""

from __future__ import annotations

from placewright import policies
from placewright.training.recipe import Recipe
from placewright.training.rewards import Graded
from placewright.training.schedules import Straight


def pair() -> Recipe:
    """The pair policy on one problem; the one that ships was trained by `PairTraining` on many."""
    return Recipe(
        "pair",
        policies.find("pair").Shape(),
        reward=Graded(step=1.0),
        samples=16,
        rate=Straight(0.1, 0.01),
        clip=0.0,
    )
