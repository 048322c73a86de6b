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
    """The linear policy on one problem; `benchmarks/train` has the trainer of the shipped one."""
    return Recipe(
        "pair",
        policies.find_config("pair")(),
        reward=GradedPenalty(overflow_step=1.0),
        episodes=16,
        learning_rate=Linear(0.1, 0.01),
        max_grad_norm=0.0,
    )


def placeto_recipe() -> Recipe:
    """Our default for Placeto: wider vectors, and the reward of the last plan, normalised."""
    return Recipe(
        "placeto",
        policies.find_config("placeto")(hidden=16, rounds=4, means=True),
        algorithm=PPO(),
        reward=GradedPenalty(),
        baseline=BatchNormalised,
        episodes=16,
        learning_rate=Linear(3e-3, 1e-3),
        entropy_floor=Step(0.8, 0.1),
        self_imitation=Constant(0.3),
    )


def placeto_steps() -> Recipe:
    """As our default, with the plan of every step judged, and GAE."""
    return Recipe(
        "placeto-steps",
        policies.find_config("placeto")(hidden=16, rounds=4, steps=True, means=True),
        reward=GradedPenalty(),
        algorithm=PPO(),
        baseline=partial(StepNormalised, 0.95),
        episodes=16,
        learning_rate=Linear(3e-3, 1e-3),
        entropy_floor=Step(0.8, 0.1),
    )


def placeto_any() -> Recipe:
    """Placeto for any devices, starting from the shipped linear policy.

    Of hundreds of decisions a sixth is sampled: with all of them sampled, 4,000 plans on 72
    problems did not improve it. It reads where neighbours are on each device, which replaces rounds
    of messages.
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

    Each of up to 300 small groups is placed alone or merges with the source of its slowest
    transfer; merges are sampled, judged and learned together with devices.
    """
    base = placeto_any()
    config = policies.find_config("placeto-any")(
        grouping="coarse", max_groups=300, drawn=0.3, merge=True
    )
    return replace(base, name="placeto-joint", policy_config=config)


def placeto_paper() -> Recipe:
    """Addanki et al. 2019, with sizes, rates, baseline and penalty from their code.

    Messages go along the tensors of the forward pass and against them, so that ancestors,
    descendants and the rest are three different sets, as in the paper, also in a training graph.
    Their rewards are seconds on two K80, about one per step; ours are relative to the serial time.
    Each of their 4 to 8 workers runs one episode of its graph per update; here all are of one
    graph and graphs take turns.
    """
    return Recipe(
        "placeto-paper",
        policies.find_config("placeto")(
            grouping="colocation", max_groups=256, steps=True, start="fixed", edges="forward"
        ),
        reward=CappedPenalty(),
        baseline=partial(PerGraph, partial(PerStep, 10)),
        episodes=4,
        learning_rate=Linear(1e-3, 1e-4),
        entropy_bonus=Linear(1.0, 0.0),
        max_grad_norm=1.25,
    )
