"""Recipes by name: one for each published experiment, and our tuned defaults.

Steps of the papers are shares of the budget here: we assume runs of 1,000 updates for Hierarchical
and of 10,000 for ColocRL, since the papers do not say.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from placewright import policies
from placewright.errors import ConfigError, nearest
from placewright.training.baselines import BatchNormalised, MovingAverage
from placewright.training.recipes.base import Recipe
from placewright.training.recipes.go import go_paper, go_recipe
from placewright.training.recipes.placeto import (
    linear_recipe,
    placeto_any,
    placeto_joint,
    placeto_paper,
    placeto_recipe,
    placeto_steps,
)
from placewright.training.rewards import FixedPenalty, GradedPenalty
from placewright.training.schedules import Constant, Staircase, Step

if TYPE_CHECKING:
    from collections.abc import Callable


def colocrl_recipe() -> Recipe:
    """Our default for ColocRL; the paper's method is `colocrl_paper`, without self-imitation.

    Noise and rate are the best of the seven settings that `benchmarks/learning/sweep.py` tried with
    three seeds each, after 17 settings with one seed, on networks that no table reports.
    """
    return Recipe(
        "colocrl",
        policies.find_config("colocrl")(shared=True),
        reward=GradedPenalty(),
        baseline=BatchNormalised,
        episodes=4,
        learning_rate=Constant(3e-3),
        logit_noise=Constant(4.0),
        self_imitation=Constant(1.0),
    )


def colocrl_paper() -> Recipe:
    """Mirhoseini et al. 2017: moving average, a constant for plans that do not fit, 8 samples.

    Groups are those of its supplement: a call of an LSTM cell, an attention or softmax step, a
    branch of Inception-V3; elsewhere co-location alone. Learning rate and sizes are not published:
    Hierarchical's sizes, and Adam's usual rate.
    """
    return Recipe(
        "colocrl-paper",
        policies.find_config("colocrl")(grouping="cells", max_groups=256, hidden=512),
        reward=FixedPenalty(10.0),
        baseline=partial(MovingAverage, 0.9),
        episodes=8,
        learning_rate=Constant(1e-3),
        drop_infeasible_after=0.5,
    )


def hierarchical_recipe() -> Recipe:
    """Our default for Hierarchical; the paper's is `hierarchical_paper`, without self-imitation.

    Noise in patches and strong self-imitation were the best in the same sweep. Groups stay as they
    start, by co-location: the four episodes of an update share one grouping, so their normalised
    advantages cancel in the grouper's gradient, and with a locality of 16 a sample leaves its group
    once in 90,000 decisions. The grouper of `hierarchical_joint` learns.
    """
    return Recipe(
        "hierarchical",
        policies.find_config("hierarchical")(
            placements=4, locality=16.0, home="colocation", shared=True, patches=True
        ),
        reward=GradedPenalty(),
        baseline=BatchNormalised,
        episodes=4,
        learning_rate=Constant(3e-3),
        logit_noise=Constant(2.0),
        self_imitation=Constant(8.0),
    )


def hierarchical_joint() -> Recipe:
    """A grouper that learns, from rewards alone: initial groups are random, as in the paper.

    Each of the 16 episodes of an update has a grouping of its own, so that advantages tell good
    groupings from bad ones. The rate is a tenth of the paper's, which takes the grouper from 93 %
    of a uniform choice's entropy to 4 % in seven updates. A placer that learns faster
    than the grouper settles on one device before there are groups worth splitting: with hidden
    states of 128 it does at this rate.
    """
    return Recipe(
        "hierarchical-joint",
        policies.find_config("hierarchical")(groups=32, placements=1, hidden=32),
        reward=GradedPenalty(),
        baseline=BatchNormalised,
        episodes=16,
        learning_rate=Constant(1e-2),
    )


def hierarchical_paper() -> Recipe:
    """Mirhoseini, Goldie et al. 2018: the paper's values, learning rate 0.1 included."""
    return Recipe(
        "hierarchical-paper",
        policies.find_config("hierarchical")(
            groups=256, placements=4, hidden=512, temperature=10.0, tanh=5.0
        ),
        reward=FixedPenalty(10.0),
        baseline=partial(MovingAverage, 0.9),
        episodes=4,
        learning_rate=Constant(0.1),
        logit_noise=Step(0.5, 0.5),
        drop_infeasible_after=0.5,
    )


def hierarchical_open() -> Recipe:
    """TensorFlow's open code (grappler): its values and its linear grouper, without its errors.

    It samples one plan per update; from its step 500 on it would take argmax devices, which is left
    out here.
    """
    return Recipe(
        "hierarchical-open",
        policies.find_config("hierarchical")(
            groups=256,
            placements=1,
            hidden=512,
            linear=True,
            outputs=5,
            neighbours=10,
            both=True,
            temperature=1.0,
            tanh=1.0,
        ),
        reward=FixedPenalty(10.0),
        baseline=partial(MovingAverage, 0.9, -10.0),
        episodes=1,
        learning_rate=Staircase(0.1, 0.95, 0.4, 12),
        logit_noise=Step(0.75, 0.5),
    )


RECIPES: dict[str, Callable[[], Recipe]] = {
    "colocrl": colocrl_recipe,
    "colocrl-paper": colocrl_paper,
    "go": go_recipe,
    "go-paper": go_paper,
    "hierarchical": hierarchical_recipe,
    "hierarchical-joint": hierarchical_joint,
    "hierarchical-paper": hierarchical_paper,
    "hierarchical-open": hierarchical_open,
    "pair": linear_recipe,
    "placeto": placeto_recipe,
    "placeto-steps": placeto_steps,
    "placeto-paper": placeto_paper,
    "placeto-any": placeto_any,
    "placeto-joint": placeto_joint,
}
"""Recipes by name."""


def find_recipe(
    name: str,
    groups: int | None = None,
    hidden: int | None = None,
    grouping: str | None = None,
    start_times: bool = False,
) -> Recipe:
    """The recipe of that name, with other settings of its policy if given.

    Args:
        groups: The largest number of groups; the papers' 256 and 512 hidden need a GPU.
        hidden: Size of the hidden states.
        grouping: How ops are grouped.
        start_times: Whether Placeto reads when groups start.

    Raises:
        ConfigError: There is no such recipe, or it has no such setting.
        MissingDependency: There is no torch.
    """
    if name not in RECIPES:
        raise ConfigError(f"no recipe is named {name!r}: {nearest(name, RECIPES)}")
    recipe = RECIPES[name]()
    options = {"groups": groups, "hidden": hidden, "grouping": grouping}
    config = recipe.policy_config
    try:
        for option, value in (*options.items(), ("start_times", start_times or None)):
            if value is None:
                continue
            if option in ("groups", "hidden") and int(value) < 2:
                raise ConfigError(f"is given {option} {value}: expected 2 or more")
            config = config.with_option(option, value)
        if hidden is not None and hidden % 2:
            raise ConfigError(f"is given hidden {hidden}: expected an even number")
    except ConfigError as error:
        raise ConfigError(f"recipe {name!r} {error}") from None
    return replace(recipe, policy_config=config)


def multi_graph_recipe(recipe: Recipe) -> Recipe:
    """The recipe for many graphs: several in each update, and half the episodes of each.

    On 24 graphs of `nmt` (24 groups, 4,000 plans, one seed) the argmax plans of 8 test graphs
    took 0.636 of a single device's time (median) with four graphs per update, and 0.659 with one.
    ColocRL pads its adjacency, as Placeto's authors had it do. GO takes one graph per update.

    Raises:
        ConfigError: Its policy is made for one graph.
    """
    try:
        config = recipe.policy_config.for_many_graphs()
    except ConfigError as error:
        raise ConfigError(f"recipe {recipe.name!r} {error}") from None
    recipe = replace(recipe, policy_config=config)
    if recipe.family_problems == 1:
        return recipe
    episodes = max(2, recipe.episodes // 2)
    return replace(recipe, problems=recipe.family_problems, episodes=episodes)
