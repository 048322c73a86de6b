"""A shipped policy as a solver: places without training."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from placewright.policies import find_policy
from placewright.policies.shipped import SHIPPED, shipped_policy
from placewright.solvers.memory_retry import place_with_margin
from placewright.solvers.ordering.priority_rules import rule_priorities
from placewright.solvers.partition.capacity_repair import repair_rounds
from placewright.training.threads import torch_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from placewright.policies import Episodes, Policy
    from placewright.problem import Problem
    from placewright.simulator import Verdict
    from placewright.solvers import Search

_ATTEMPTS = 3  # to make plans fit for which the policy's estimate of memory was too low


@dataclass(frozen=True)
class PolicySolver:
    """The plan that a trained policy likes best, and some that it draws; the best is kept.

    Args:
        name: Of the policy that ships.
        samples: Plans to draw beside the likeliest.
        batch_size: How many are drawn at once.
    """

    name: str
    samples: int = 63
    batch_size: int = 21

    def run(self, search: Search) -> None:
        with nullcontext() if self.name == "pair" else _single_thread():
            self._run(search)

    def _run(self, search: Search) -> None:
        problem, capacity = search.problem, search.problem.arrays.capacity
        policy = shipped_policy(self.name)

        def place(margin: NDArray[np.int64]) -> NDArray[np.int64]:
            reduced_problem = (
                problem.with_arrays(capacity=capacity - margin) if margin.any() else problem
            )
            return self._place(search, policy, reduced_problem)

        place_with_margin(search, place, _ATTEMPTS)

    def _place(self, search: Search, policy: Policy, reduced_problem: Problem) -> NDArray[np.int64]:
        """Judge plans for a problem that shows less memory; bytes over on each device of the best.

        A policy only estimates memory: where the simulator finds too much, it is shown less.
        """
        seed = int(search.rng.integers(2**31))
        best_key, overflow = (np.inf, np.inf), np.zeros_like(reduced_problem.arrays.capacity)
        for start in (-1, *range(0, self.samples, self.batch_size)):
            if search.over:
                break
            count = 1 if start < 0 else min(self.batch_size, self.samples - start)
            episodes = policy.act(reduced_problem, count, seed + 1 + start, greedy=start < 0)
            verdict = self._judge(search, episodes)
            if len(verdict.value) and verdict.key(verdict.best()) < best_key:
                best_key = verdict.key(verdict.best())
                capacity = search.problem.arrays.capacity
                overflow = np.maximum(verdict.peak[verdict.best()] - capacity, 0)
        return overflow

    def _judge(self, search: Search, episodes: Episodes) -> Verdict:
        """Judge plans in the policy's own order, if it has one, and in the graph's."""
        placements = episodes.placements
        if episodes.priority is None:
            return search.judge(placements)
        graph_order = np.broadcast_to(np.arange(placements.shape[1], dtype=float), placements.shape)
        return search.judge(
            np.concatenate([placements, placements]),
            np.concatenate([episodes.priority, graph_order]),
        )


def _single_thread() -> AbstractContextManager[None]:
    """Small networks are quickest with one; says what to install if there is no torch."""
    find_policy("placeto-any")
    return torch_threads()


@dataclass(frozen=True)
class GoPolicySolver:
    """The plans that GO proposes and some that it draws; the best is kept, repaired if need be.

    Args:
        samples: Plans beside the likeliest.
    """

    samples: int = 15
    name: str = field(default="go", init=False)

    def run(self, search: Search) -> None:
        with _single_thread():
            from placewright.training.go.proposer import GoProposer

            seed = int(search.rng.integers(2**31))
            plans = GoProposer.shipped().propose(search.problem, 1 + self.samples, seed)
        placements = np.stack([plan.placement for plan in plans])
        priorities = np.stack(
            [np.zeros(len(plan)) if plan.priority is None else plan.priority for plan in plans]
        )
        verdict = search.judge(placements, priorities)
        if len(verdict.value) and verdict.overflow[verdict.best()]:
            self._repair(search, placements[verdict.best()])

    @staticmethod
    def _repair(search: Search, placement: NDArray[np.int32]) -> None:
        """How much a plan needs hangs on its order most of all, then on what is where."""
        priorities = np.stack(list(rule_priorities(search.problem, placement).values()))
        verdict = search.judge(np.repeat(placement[None], len(priorities), axis=0), priorities)
        if not len(verdict.value):
            return
        priority = priorities[verdict.best()]
        for repaired in repair_rounds(search.problem, placement, priority):
            if search.over:
                return
            search.judge(repaired, priority)


POLICY_SOLVERS: dict[str, Callable[[], PolicySolver | GoPolicySolver]] = {
    name: GoPolicySolver if name == "go" else partial(PolicySolver, name) for name in SHIPPED
}
"""Methods that use a policy which ships, by name."""
