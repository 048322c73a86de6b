"""Placed: a policy that ships trained as a method, so that it places without training."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from placewright.policies import find
from placewright.policies.shipped import SHIPPED, shipped
from placewright.solvers.ordering.priority_rules import priority_rules
from placewright.solvers.partition.capacity_repair import rounds
from placewright.training.threads import torch_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from placewright.policies import Episodes, Policy
    from placewright.problem import Problem
    from placewright.simulator import Verdict
    from placewright.solvers import Search

_TRIES = 3  # to make plans fit for which the policy's estimate of memory was too low


@dataclass(frozen=True)
class Placed:
    """The plan that a trained policy likes best, and some that it draws; the best is kept.

    Args:
        name: Of the policy that ships.
        drawn: Plans to draw beside the likeliest.
        batch: How many are drawn at once.
    """

    name: str
    drawn: int = 63
    batch: int = 21

    def run(self, search: Search) -> None:
        with nullcontext() if self.name == "pair" else _one_thread():
            self._run(search)

    def _run(self, search: Search) -> None:
        problem, capacity = search.problem, search.problem.arrays.capacity
        policy = shipped(self.name)
        kept_back = np.zeros_like(capacity)
        for _ in range(_TRIES):
            shown = (
                problem.with_arrays(capacity=capacity - kept_back) if kept_back.any() else problem
            )
            over = self._place(search, policy, shown)
            if search.over or not over.any():
                return
            kept_back = 2 * kept_back + np.where(over, np.maximum(over, capacity // 64), 0)

    def _place(self, search: Search, policy: Policy, shown: Problem) -> NDArray[np.int64]:
        """Judge plans for a problem that shows less memory; bytes over on each device of the best.

        A policy only estimates memory: where the simulator finds too much, it is shown less.
        """
        seed = int(search.rng.integers(2**31))
        best, over = (np.inf, np.inf), np.zeros_like(shown.arrays.capacity)
        for first in (-1, *range(0, self.drawn, self.batch)):
            if search.over:
                break
            count = 1 if first < 0 else min(self.batch, self.drawn - first)
            episodes = policy.act(shown, count, seed + 1 + first, greedy=first < 0)
            verdict = self._judge(search, episodes)
            if len(verdict.value) and verdict.key(verdict.best()) < best:
                best = verdict.key(verdict.best())
                capacity = search.problem.arrays.capacity
                over = np.maximum(verdict.peak[verdict.best()] - capacity, 0)
        return over

    def _judge(self, search: Search, episodes: Episodes) -> Verdict:
        """Judge plans in the policy's own order, if it has one, and in the graph's."""
        device = episodes.device
        if episodes.priority is None:
            return search.judge(device)
        graph = np.broadcast_to(np.arange(device.shape[1], dtype=float), device.shape)
        return search.judge(
            np.concatenate([device, device]), np.concatenate([episodes.priority, graph])
        )


def _one_thread() -> AbstractContextManager[None]:
    """Small networks are quickest with one; says what to install if there is no torch."""
    find("placeto-any")
    return torch_threads()


@dataclass(frozen=True)
class PlacedGo:
    """The plans that GO proposes and some that it draws; the best is kept, repaired if need be.

    Args:
        drawn: Plans beside the likeliest.
    """

    drawn: int = 15
    name: str = field(default="go", init=False)

    def run(self, search: Search) -> None:
        with _one_thread():
            from placewright.training.go.proposer import GoProposer

            seed = int(search.rng.integers(2**31))
            plans = GoProposer.shipped().propose(search.problem, 1 + self.drawn, seed)
        device = np.stack([plan.device for plan in plans])
        order = np.stack(
            [np.zeros(len(plan)) if plan.priority is None else plan.priority for plan in plans]
        )
        verdict = search.judge(device, order)
        if len(verdict.value) and verdict.overflow[verdict.best()]:
            self._make_fit(search, device[verdict.best()])

    @staticmethod
    def _make_fit(search: Search, device: NDArray[np.int32]) -> None:
        """How much a plan needs hangs on its order most of all, then on what is where."""
        orders = np.stack(list(priority_rules(search.problem, device).values()))
        verdict = search.judge(np.repeat(device[None], len(orders), axis=0), orders)
        if not len(verdict.value):
            return
        order = orders[verdict.best()]
        for better in rounds(search.problem, device, order):
            if search.over:
                return
            search.judge(better, order)


PLACED: dict[str, Callable[[], Placed | PlacedGo]] = {
    name: PlacedGo if name == "go" else partial(Placed, name) for name in SHIPPED
}
"""Methods that use a policy which ships, by name."""
