"""Recipes by name: one for each published experiment, and our tuned defaults.

Steps of the papers are shares of the budget here: Hierarchical's runs are taken to be 1,000 updates
long and ColocRL's 10,000, since the papers do not say.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from placewright import policies
from placewright.errors import ConfigError, nearest
from placewright.training.baselines import BatchNormalised, MovingAverage
from placewright.training.recipes.base import Recipe
from placewright.training.recipes.go import go_recipe
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
    """Our default for ColocRL; the paper's method is `colocrl_paper`, without imitation.

    Noise and rate are the best of the seven settings that `benchmarks/sweep.py` tried with three
    seeds each, after one seed of 17, on networks that no table reports on.
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
    """Mirhoseini et al. 2017: moving average, a constant for what does not fit, 8 samples.

    Learning rate and sizes are not published: Hierarchical's sizes, and Adam's usual rate.
    """
    return Recipe(
        "colocrl-paper",
        policies.find_config("colocrl")(max_groups=256, hidden=512),
        reward=FixedPenalty(10.0),
        baseline=partial(MovingAverage, 0.9),
        episodes=8,
        learning_rate=Constant(1e-3),
        drop_infeasible_after=0.5,
    )


def hierarchical_recipe() -> Recipe:
    """Our default for Hierarchical; the paper's method is `hierarchical_paper`, without imitation.

    Noise in patches and strong imitation were the best in the same sweep. With a locality of 16
    ops begin in their co-location group and seldom leave it.
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


def hierarchical_paper() -> Recipe:
    """Mirhoseini, Goldie et al. 2018: the paper's column of values, learning rate 0.1 included."""
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
    """TensorFlow's open code (grappler): its values and its linear grouper, not its defects.

    It draws one plan an update; from its step 500 it would not draw devices any more, which is left
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
    "hierarchical": hierarchical_recipe,
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

_GROUP_FIELDS = {
    "colocrl": "max_groups",
    "hierarchical": "groups",
    "pair": "max_groups",
    "placeto": "max_groups",
}


def find_recipe(
    name: str, groups: int | None = None, hidden: int | None = None, grouping: str | None = None
) -> Recipe:
    """The recipe of that name, with other sizes if given.

    Args:
        groups: The most groups; the papers' 256 and 512 hidden want a GPU.
        hidden: Size of the placer's states.
        grouping: How ops are grouped, for ColocRL.

    Raises:
        ConfigError: There is no such recipe, or it has no such size.
        MissingDependency: There is no torch.
    """
    if name not in RECIPES:
        raise ConfigError(f"no recipe is named {name!r}: {nearest(name, RECIPES)}")
    base = RECIPES[name]()
    config: Any = base.policy_config
    changes: dict[str, Any] = {}
    group_field = _GROUP_FIELDS.get(name.partition("-")[0])
    if groups is not None and group_field is None:
        raise ConfigError(f"recipe {name!r} places every op by itself: it takes no groups")
    if groups is not None and group_field is not None:
        changes[group_field] = groups
    if hidden is not None and not hasattr(config, "hidden"):
        raise ConfigError(f"recipe {name!r} has no hidden states: leave the size out")
    if hidden is not None:
        changes["hidden"] = hidden
    if grouping is not None and not hasattr(config, "grouping"):
        raise ConfigError(f"recipe {name!r} learns its groups: it takes no grouping rule")
    if grouping is not None:
        changes["grouping"] = grouping
    for field_name, size in changes.items():
        if isinstance(size, int) and size < 2:
            raise ConfigError(f"recipe {name!r} is given {field_name} {size}: expected 2 or more")
    if hidden is not None and hidden % 2:
        raise ConfigError(f"recipe {name!r} is given hidden {hidden}: expected an even number")
    return replace(base, policy_config=replace(config, **changes))


def multi_graph_recipe(recipe: Recipe) -> Recipe:
    """The recipe for many graphs: four in each update, and half the episodes of each.

    On 24 graphs of `nmt` (24 groups, 4,000 plans, one seed) the likeliest plans of 8 test graphs
    took 0.636 of a single device's time (median), and 0.659 with one graph after the other.
    ColocRL pads its adjacency, as Placeto's authors had it do.

    Raises:
        ConfigError: Its policy is made for one graph.
    """
    config: Any = recipe.policy_config
    if recipe.name.startswith("hierarchical"):
        raise ConfigError(f"recipe {recipe.name!r} places one graph: it cannot learn from several")
    if hasattr(config, "padded"):
        recipe = replace(recipe, policy_config=replace(config, padded=True))
    return replace(recipe, problems=4, episodes=max(2, recipe.episodes // 2))
