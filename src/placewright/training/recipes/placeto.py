"""Recipes of Placeto and of the linear policy for the shared trainer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from placewright import policies
from placewright.training.algorithms import PPO
from placewright.training.baselines import BatchNormalised, PerGraph, PerStep
from placewright.training.gae import StepNormalised
from placewright.training.recipes.base import Recipe
from placewright.training.rewards import CappedPenalty, GradedPenalty
from placewright.training.schedules import Constant, Linear, Step


def linear_recipe() -> Recipe:
    """The pair policy on one problem; the one that ships was trained by `PairTraining` on many."""
    return Recipe(
        "pair",
        policies.find_config("pair")(),
        reward=GradedPenalty(overflow_step=1.0),
        episodes=16,
        learning_rate=Linear(0.1, 0.01),
        max_grad_norm=0.0,
    )


def placeto_recipe() -> Recipe:
    """Our default for Placeto: wider vectors, the last plan's reward alone, normalised."""
    return Recipe(
        "placeto",
        policies.find_config("placeto")(hidden=16, rounds=4),
        algorithm=PPO(),
        reward=GradedPenalty(),
        baseline=BatchNormalised,
        episodes=16,
        learning_rate=Linear(3e-3, 1e-3),
        entropy_floor=Step(0.8, 0.1),
        self_imitation=Constant(0.3),
    )


def placeto_steps() -> Recipe:
    """As our default, with every step's plan judged and credit that fades with GAE's λ."""
    return Recipe(
        "placeto-steps",
        policies.find_config("placeto")(hidden=16, rounds=4, steps=True),
        reward=GradedPenalty(),
        algorithm=PPO(),
        baseline=partial(StepNormalised, 0.95),
        episodes=16,
        learning_rate=Linear(3e-3, 1e-3),
        entropy_floor=Step(0.8, 0.1),
    )


def placeto_any() -> Recipe:
    """Placeto for any devices, beginning with the pair policy that ships.

    Of hundreds of decisions a sixth is drawn: with all of them drawn, 4,000 plans on 72 problems
    left it where it began. It sees where neighbours are on each device, which is rounds of messages
    by other means, so that it needs none of its own.
    """
    return Recipe(
        "placeto-any",
        policies.find_config("placeto-any")(drawn=0.15, rounds=0, senses=True, tuned=True),
        algorithm=PPO(),
        reward=GradedPenalty(overflow_step=1.0),
        baseline=BatchNormalised,
        episodes=24,
        learning_rate=Linear(3e-3, 3e-4),
    )


def placeto_joint() -> Recipe:
    """Placeto for any devices that chooses the groups with the placement.

    Of up to 300 small groups each is placed alone or merges with the one whose tensor takes it
    longest to bring; which merge is drawn, judged and learned with where they go.
    """
    base = placeto_any()
    config = policies.find_config("placeto-any")(
        grouping="coarse", max_groups=300, drawn=0.3, merge=True
    )
    return replace(base, name="placeto-joint", policy_config=config)


def placeto_paper() -> Recipe:
    """Addanki et al. 2019, and what only their code says: sizes, rates, baseline, penalty.

    Their rewards are seconds on two K80, about one a step; ours are in terms of the serial time.
    Each of their 4 to 8 workers plays one episode of its graph for an update; here all are of one
    graph and graphs take turns.
    """
    return Recipe(
        "placeto-paper",
        policies.find_config("placeto")(
            grouping="colocation", max_groups=256, steps=True, start="fixed"
        ),
        reward=CappedPenalty(),
        baseline=partial(PerGraph, partial(PerStep, 10)),
        episodes=4,
        learning_rate=Linear(1e-3, 1e-4),
        entropy_bonus=Linear(1.0, 0.0),
        max_grad_norm=1.25,
    )
