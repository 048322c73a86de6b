"""Recipes: one function for each published experiment, and our own tuned ones.

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
from placewright.training.recipes.go import go
from placewright.training.recipes.placeto import (
    pair,
    placeto,
    placeto_any,
    placeto_joint,
    placeto_paper,
    placeto_steps,
)
from placewright.training.rewards import Constant, Graded
from placewright.training.schedules import Always, Staircase, Until

if TYPE_CHECKING:
    from collections.abc import Callable


def colocrl() -> Recipe:
    """Our default for ColocRL; the paper's method is `colocrl_paper`, without imitation.

    Noise and rate are the best of the seven settings that `benchmarks/sweep.py` tried with three
    seeds each, after one seed of 17, on networks that no table reports on.
    """
    return Recipe(
        "colocrl",
        policies.find("colocrl").Shape(shared=True),
        reward=Graded(),
        baseline=BatchNormalised,
        samples=4,
        rate=Always(3e-3),
        noise=Always(4.0),
        imitate=Always(1.0),
    )


def colocrl_paper() -> Recipe:
    """Mirhoseini et al. 2017: moving average, a constant for what does not fit, 8 samples.

    Learning rate and sizes are not published: Hierarchical's sizes, and Adam's usual rate.
    """
    return Recipe(
        "colocrl-paper",
        policies.find("colocrl").Shape(most=256, hidden=512),
        reward=Constant(10.0),
        baseline=partial(MovingAverage, 0.9),
        samples=8,
        rate=Always(1e-3),
        valid_only=0.5,
    )


def hierarchical() -> Recipe:
    """Our default for Hierarchical; the paper's method is `hierarchical_paper`, without imitation.

    Noise in patches and strong imitation were the best in the same sweep. With a locality of 16
    ops begin in their co-location group and seldom leave it.
    """
    return Recipe(
        "hierarchical",
        policies.find("hierarchical").Shape(
            placements=4, locality=16.0, home="colocation", shared=True, patches=True
        ),
        reward=Graded(),
        baseline=BatchNormalised,
        samples=4,
        rate=Always(3e-3),
        noise=Always(2.0),
        imitate=Always(8.0),
    )


def hierarchical_paper() -> Recipe:
    """Mirhoseini, Goldie et al. 2018: the paper's column of values, learning rate 0.1 included."""
    return Recipe(
        "hierarchical-paper",
        policies.find("hierarchical").Shape(
            groups=256, placements=4, hidden=512, temperature=10.0, tanh=5.0
        ),
        reward=Constant(10.0),
        baseline=partial(MovingAverage, 0.9),
        samples=4,
        rate=Always(0.1),
        noise=Until(0.5, 0.5),
        valid_only=0.5,
    )


def hierarchical_open() -> Recipe:
    """TensorFlow's open code (grappler): its values and its linear grouper, not its defects.

    It draws one plan an update; from its step 500 it would not draw devices any more, which is left
    out here.
    """
    return Recipe(
        "hierarchical-open",
        policies.find("hierarchical").Shape(
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
        reward=Constant(10.0),
        baseline=partial(MovingAverage, 0.9, -10.0),
        samples=1,
        rate=Staircase(0.1, 0.95, 0.4, 12),
        noise=Until(0.75, 0.5),
    )


RECIPES: dict[str, Callable[[], Recipe]] = {
    "colocrl": colocrl,
    "colocrl-paper": colocrl_paper,
    "go": go,
    "hierarchical": hierarchical,
    "hierarchical-paper": hierarchical_paper,
    "hierarchical-open": hierarchical_open,
    "pair": pair,
    "placeto": placeto,
    "placeto-steps": placeto_steps,
    "placeto-paper": placeto_paper,
    "placeto-any": placeto_any,
    "placeto-joint": placeto_joint,
}
"""Recipes by name."""

_GROUPS = {"colocrl": "most", "hierarchical": "groups", "pair": "most", "placeto": "most"}


def recipe(
    name: str, groups: int | None = None, hidden: int | None = None, rule: str | None = None
) -> Recipe:
    """The recipe of that name, with other sizes if given.

    Args:
        groups: The most groups; the papers' 256 and 512 hidden want a GPU.
        hidden: Size of the placer's states.
        rule: How ops are grouped, for ColocRL.

    Raises:
        ConfigError: There is no such recipe, or it has no such size.
        MissingDependency: There is no torch.
    """
    if name not in RECIPES:
        raise ConfigError(f"no recipe is named {name!r}: {nearest(name, RECIPES)}")
    made = RECIPES[name]()
    shape: Any = made.shape
    changed: dict[str, Any] = {}
    grouped = _GROUPS.get(name.partition("-")[0])
    if groups is not None and grouped is None:
        raise ConfigError(f"recipe {name!r} places every op by itself: it takes no groups")
    if groups is not None and grouped is not None:
        changed[grouped] = groups
    if hidden is not None and not hasattr(shape, "hidden"):
        raise ConfigError(f"recipe {name!r} has no hidden states: leave the size out")
    if hidden is not None:
        changed["hidden"] = hidden
    if rule is not None and not hasattr(shape, "rule"):
        raise ConfigError(f"recipe {name!r} learns its groups: it takes no grouping rule")
    if rule is not None:
        changed["rule"] = rule
    for what, size in changed.items():
        if isinstance(size, int) and size < 2:
            raise ConfigError(f"recipe {name!r} is given {what} {size}: expected 2 or more")
    if hidden is not None and hidden % 2:
        raise ConfigError(f"recipe {name!r} is given hidden {hidden}: expected an even number")
    return replace(made, shape=replace(shape, **changed))


def of_several(made: Recipe) -> Recipe:
    """The recipe for many graphs: four in each update, and half the episodes of each.

    On 24 graphs of `nmt` (24 groups, 4,000 plans, one seed) the likeliest plans of 8 test graphs
    took 0.636 of a single device's time (median), and 0.659 with one graph after the other.
    ColocRL pads its adjacency, as Placeto's authors had it do.

    Raises:
        ConfigError: Its policy is made for one graph.
    """
    shape: Any = made.shape
    if made.name.startswith("hierarchical"):
        raise ConfigError(f"recipe {made.name!r} places one graph: it cannot learn from several")
    if hasattr(shape, "padded"):
        made = replace(made, shape=replace(shape, padded=True))
    return replace(made, graphs=4, samples=max(2, made.samples // 2))
