"""A trained policy as a solver: the shipped ones, or the policy of a training run."""

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
    from placewright.policies.go.policy import Go
    from placewright.problem import Problem
    from placewright.simulator import Verdict
    from placewright.solvers import Search

_ATTEMPTS = 3  # to find plans that fit, where the policy's estimate of memory was too low


@dataclass(frozen=True)
class PolicySolver:
    """Judges the argmax plan of a trained policy and samples of it; the best is kept.

    Args:
        name: The name of a shipped policy, or of the recipe that trained `policy`.
        samples: Plans to sample besides the argmax plan.
        batch_size: Plans per batch.
        policy: A trained policy; the shipped one of that name by default.
    """

    name: str
    samples: int = 63
    batch_size: int = 21
    policy: Policy | None = None

    def run(self, search: Search) -> None:
        with nullcontext() if self.name == "pair" else _single_thread():
            self._run(search)

    def _run(self, search: Search) -> None:
        problem, capacity = search.problem, search.problem.arrays.capacity
        policy = self.policy or shipped_policy(self.name)

        def place(margin: NDArray[np.int64]) -> NDArray[np.int64]:
            reduced_problem = (
                problem.with_arrays(capacity=capacity - margin) if margin.any() else problem
            )
            return self._place(search, policy, reduced_problem)

        place_with_margin(search, place, _ATTEMPTS)

    def _place(self, search: Search, policy: Policy, reduced_problem: Problem) -> NDArray[np.int64]:
        """Judge plans for a problem with less memory.

        A policy only estimates memory: where the simulator finds an overflow, it is given less.

        Returns:
            The overflow of the best plan on each device, in bytes.
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
                overflow = verdict.excess[verdict.best()]
        return overflow

    def _judge(self, search: Search, episodes: Episodes) -> Verdict:
        """Judge plans in the policy's own order, if it has one, and in the graph's order."""
        placements = episodes.placements
        if episodes.priority is None:
            return search.judge(placements)
        graph_order = np.broadcast_to(np.arange(placements.shape[1], dtype=float), placements.shape)
        return search.judge(
            np.concatenate([placements, placements]),
            np.concatenate([episodes.priority, graph_order]),
        )


def _single_thread() -> AbstractContextManager[None]:
    """Torch with one thread, the fastest for small networks; an error if there is no torch."""
    find_policy("placeto-any")
    return torch_threads()


@dataclass(frozen=True)
class GoPolicySolver:
    """Judges the plans that GO proposes; the best is kept, and repaired if it does not fit.

    Args:
        samples: Plans besides the argmax plan.
        policy: A trained policy; the shipped one by default.
    """

    samples: int = 15
    policy: Go | None = None
    name: str = field(default="go", init=False)

    def run(self, search: Search) -> None:
        with _single_thread():
            from placewright.training.go.proposer import GoProposer

            seed = int(search.rng.integers(2**31))
            proposer = GoProposer.shipped() if self.policy is None else GoProposer(self.policy)
            plans = proposer.propose(search.problem, 1 + self.samples, seed)
        placements = np.stack([plan.placement for plan in plans])
        priorities = np.stack(
            [np.zeros(len(plan)) if plan.priority is None else plan.priority for plan in plans]
        )
        verdict = search.judge(placements, priorities)
        if len(verdict.value) and verdict.overflow[verdict.best()]:
            self._repair(search, placements[verdict.best()])

    @staticmethod
    def _repair(search: Search, placement: NDArray[np.int32]) -> None:
        """Try other orders, on which memory depends most, and then move ops."""
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
"""Solvers that use a shipped policy, by name."""
