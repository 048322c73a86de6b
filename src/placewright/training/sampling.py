"""Requests for episodes: what a policy is to sample, as data that any process can act on.

A request may be split into micro-batches. The micro-batch at an index has a seed of its own, so
that its episodes do not depend on where, or after which others, they are sampled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from placewright.policies import Episodes, Policy
    from placewright.problem import Problem


@dataclass(frozen=True, eq=False)
class EpisodeRequest:
    """Episodes of one problem to sample.

    Args:
        noise: Noise on the logits, as a share of their size.
        initial: Where the episodes start, for policies that take it (`Policy.initial_decisions`).
        slot_weights: The weight of each slot of decisions, for policies that take it (GO).
    """

    count: int
    seed: int
    noise: float = 0.0
    initial: Mapping[str, NDArray[np.int64]] | None = None
    slot_weights: NDArray[np.float64] | None = None

    def sample(self, policy: Policy, problem: Problem) -> Episodes:
        """The episodes of a policy."""
        starts: dict[str, Any] = {"initial": self.initial, "slot_weights": self.slot_weights}
        given = {name: value for name, value in starts.items() if value is not None}
        return policy.act(problem, self.count, self.seed, noise=self.noise, **given)

    def split(self, size: int) -> list[EpisodeRequest]:
        """The same number of episodes in micro-batches of this size; the last may be smaller."""
        parts = []
        for index, first in enumerate(range(0, self.count, size)):
            last = min(first + size, self.count)
            starts = self.initial
            if starts is not None:
                starts = {task: rows[first:last] for task, rows in starts.items()}
            seed = episode_seed(self.seed, index)
            parts.append(replace(self, count=last - first, seed=seed, initial=starts))
        return parts


def episode_seed(*numbers: int) -> int:
    """One seed from several numbers: of a run, an update, a problem, a micro-batch."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def sample_all(
    policy: Policy, problems: list[Problem], requests: list[EpisodeRequest]
) -> list[Episodes]:
    """The episodes of each problem; all problems in one batch where the policy can do that."""
    if any(request.initial is not None for request in requests):
        pairs = zip(requests, problems, strict=True)
        return [request.sample(policy, problem) for request, problem in pairs]
    seeds = [request.seed for request in requests]
    return policy.act_all(problems, requests[0].count, seeds, noise=requests[0].noise)
