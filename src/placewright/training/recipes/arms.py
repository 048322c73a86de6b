"""Arms: a recipe with a part of its learning left out, to show what that part adds.

Every arm samples and judges plans as its recipe does. Only what it learns from differs, so that a
difference between two arms with the same number of plans is due to that.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from placewright.errors import ConfigError, nearest
from placewright.training.algorithms import Reinforce
from placewright.training.batched_reinforce import BatchedReinforce
from placewright.training.control_algorithms import NoUpdate, WithoutRewards
from placewright.training.go.hooks import GoHooks
from placewright.training.schedules import Constant, Until

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.training.recipes.base import Recipe

TAUGHT_SHARE = 0.5
"""The share of the budget after which a policy without a teacher is frozen."""


def as_shipped(recipe: Recipe) -> Recipe:
    """The recipe itself."""
    return recipe


def never_learns(recipe: Recipe) -> Recipe:
    """The update is left out: weights stay as they were initialised."""
    frozen = replace(recipe, algorithm=NoUpdate())
    return _with_imitation(frozen, imitation_share=0.0, imitation_steps=0)


def rewards_only(recipe: Recipe) -> Recipe:
    """Neither a teacher nor the policy's own best plan is imitated."""
    plain = replace(recipe, self_imitation=Constant(0.0))
    return _with_imitation(plain, imitation_share=0.0, imitation_steps=0)


def imitation_only(recipe: Recipe) -> Recipe:
    """A teacher or the policy's own best plan is imitated; rewards have no gradient.

    Raises:
        ConfigError: The recipe imitates nothing.
    """
    if not has_teacher(recipe) and not recipe.self_imitation(0.0):
        raise ConfigError(f"recipe {recipe.name!r} imitates nothing: it has no such arm")
    return replace(recipe, algorithm=WithoutRewards(recipe.algorithm))


def taught_then_frozen(recipe: Recipe) -> Recipe:
    """The policy learns first, and then only samples.

    One with a teacher imitates it before its first sample. Any other learns as its recipe says,
    from rewards and its own best plan, for half of its budget.
    """
    if has_teacher(recipe):
        return _with_imitation(replace(recipe, algorithm=NoUpdate()), imitation_steps=0)
    return replace(recipe, learning_rate=Until(recipe.learning_rate, TAUGHT_SHARE))


def clipped_apart(recipe: Recipe) -> Recipe:
    """As shipped, but gradients of rewards and of imitation are clipped one by one.

    Raises:
        ConfigError: The recipe does not use REINFORCE.
    """
    if not isinstance(recipe.algorithm, Reinforce):
        raise ConfigError(f"recipe {recipe.name!r} does not use REINFORCE: it has no such arm")
    return replace(recipe, algorithm=BatchedReinforce())


ARMS: dict[str, Callable[[Recipe], Recipe]] = {
    "never learns": never_learns,
    "rewards only": rewards_only,
    "imitation only": imitation_only,
    "taught then frozen": taught_then_frozen,
    "as shipped": as_shipped,
    "clipped apart": clipped_apart,
}
"""Arms by name."""


def with_arm(recipe: Recipe, arm: str) -> Recipe:
    """The recipe as one of its arms.

    Raises:
        ConfigError: There is no such arm, or the recipe has none of that name.
    """
    if arm not in ARMS:
        raise ConfigError(f"no arm is named {arm!r}: {nearest(arm, ARMS)}")
    return ARMS[arm](recipe)


def has_teacher(recipe: Recipe) -> bool:
    """Whether a demonstration is imitated before the first plan is sampled."""
    return bool(_hook_settings(recipe).get("imitation_share", 0.0))


def _hook_settings(recipe: Recipe) -> dict[str, Any]:
    """The arguments of GO's hooks; none for other hooks."""
    hooks = recipe.hooks
    if not isinstance(hooks, partial) or hooks.func is not GoHooks:
        return {}
    settings = inspect.signature(GoHooks).bind_partial(*hooks.args, **hooks.keywords)
    return dict(settings.arguments)


def _with_imitation(recipe: Recipe, **changes: Any) -> Recipe:
    """The recipe with other settings of its imitation, if it has a teacher."""
    settings = _hook_settings(recipe)
    return replace(recipe, hooks=partial(GoHooks, **settings | changes)) if settings else recipe
