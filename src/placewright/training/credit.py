"""Credit: what each episode's decisions get for its reward, relative to the baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.training.rewards import step_returns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.outcome import Outcome
    from placewright.policies import Episodes, Policy
    from placewright.problem import Problem
    from placewright.training.baselines import Baseline
    from placewright.training.recipes.base import Recipe


def advantages_of(
    recipe: Recipe,
    baseline: Baseline,
    policy: Policy,
    problem: Problem,
    reference_seconds: float,
    episodes: Episodes,
    outcome: Outcome,
    progress: float,
) -> tuple[NDArray[np.float64], bool]:
    """Episodes × steps: advantages; and whether any episode is learned from.

    Args:
        baseline: It is updated.
        reference_seconds: Seconds that rewards are relative to.
        progress: The share of the budget used.
    """
    reward = recipe.reward(outcome, reference_seconds)
    credit = step_returns(reward, episodes.episode_of, len(episodes), recipe.discount)
    last_step = len(outcome.seconds) // len(episodes) - 1
    included = np.ones(len(episodes), dtype=bool)
    if progress >= recipe.drop_infeasible_after and recipe.drop_infeasible_after < 1:
        included = outcome.feasible.reshape(len(episodes), -1)[:, last_step]
    graph, starts = problem.graph.fingerprint, policy.start_groups(episodes)
    return baseline.advantage(credit, included, graph, starts), bool(included.any())
