"""Recipes of Placeto and of the pair policy, for the shared trainer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from placewright import policies
from placewright.training.algorithms import PPO
from placewright.training.baselines import BatchNormalised, PerGraph, PerStep
from placewright.training.gae import StepNormalised
from placewright.training.recipes.base import Recipe
from placewright.training.rewards import Graded, Penalised
from placewright.training.schedules import Always, Straight, Until


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


def placeto() -> Recipe:
    """Our default for Placeto: wider vectors, the last plan's reward alone, normalised."""
    return Recipe(
        "placeto",
        policies.find("placeto").Shape(hidden=16, rounds=4),
        algorithm=PPO(),
        reward=Graded(),
        baseline=BatchNormalised,
        samples=16,
        rate=Straight(3e-3, 1e-3),
        floor=Until(0.8, 0.1),
        imitate=Always(0.3),
    )


def placeto_steps() -> Recipe:
    """As our default, with every step's plan judged and credit that fades with GAE's λ."""
    return Recipe(
        "placeto-steps",
        policies.find("placeto").Shape(hidden=16, rounds=4, steps=True),
        reward=Graded(),
        algorithm=PPO(),
        baseline=partial(StepNormalised, 0.95),
        samples=16,
        rate=Straight(3e-3, 1e-3),
        floor=Until(0.8, 0.1),
    )


def placeto_any() -> Recipe:
    """Placeto for any devices, beginning with the pair policy that ships.

    Of hundreds of decisions a sixth is drawn: with all of them drawn, 4,000 plans on 72 problems
    left it where it began. It sees where neighbours are on each device, which is rounds of messages
    by other means, so that it needs none of its own.
    """
    return Recipe(
        "placeto-any",
        policies.find("placeto-any").Shape(drawn=0.15, rounds=0, senses=True, tuned=True),
        algorithm=PPO(),
        reward=Graded(step=1.0),
        baseline=BatchNormalised,
        samples=24,
        rate=Straight(3e-3, 3e-4),
    )


def placeto_joint() -> Recipe:
    """Placeto for any devices that chooses the groups with the placement.

    Of up to 300 small groups each is placed alone or merges with the one whose tensor takes it
    longest to bring; which merge is drawn, judged and learned with where they go.
    """
    made = placeto_any()
    shape = policies.find("placeto-any").Shape(rule="coarse", most=300, drawn=0.3, merge=True)
    return replace(made, name="placeto-joint", shape=shape)


def placeto_paper() -> Recipe:
    """Addanki et al. 2019, and what only their code says: sizes, rates, baseline, penalty.

    Their rewards are seconds on two K80, about one a step; ours are in terms of the serial time.
    Each of their 4 to 8 workers plays one episode of its graph for an update; here all are of one
    graph and graphs take turns.
    """
    return Recipe(
        "placeto-paper",
        policies.find("placeto").Shape(rule="colocation", most=256, steps=True, start="fixed"),
        reward=Penalised(),
        baseline=partial(PerGraph, partial(PerStep, 10)),
        samples=4,
        rate=Straight(1e-3, 1e-4),
        bonus=Straight(1.0, 0.0),
        clip=1.25,
    )
