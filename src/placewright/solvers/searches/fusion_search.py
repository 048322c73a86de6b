"""Fusion search: better fused groups for a plan, without changing its placement.

Simulated annealing over the urgencies by which `transforms.fuse` grows groups; the paper on these
urgencies compares with it (GO, Zhou et al. 2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.errors import ConfigError
from placewright.solvers.balanced import Balanced
from placewright.solvers.fuse_plan import reorder_fused
from placewright.solvers.heft import HEFT
from placewright.solvers.search import thread_count
from placewright.solvers.searches.search_space import DEFAULT_PLANS, check_max_plans
from placewright.solvers.single import SingleDevices
from placewright.transforms import fuse, fuse_greedily
from placewright.transforms.fusible import NEVER_ROLE, fusion_roles

if TYPE_CHECKING:
    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.solvers.search import Search

Urgencies = NDArray[np.int32]

_MAX_URGENCY = 20  # urgencies, besides 0 for never
_HOT, _COLD = 0.01, 1e-4  # the temperature, as a share of the objective


@dataclass(frozen=True)
class FusionSearch:
    """Fused groups for one placement: that of `plan`, or of the best plan so far.

    Devices, order and staging do not change; at the end the priority rules are tried on the best
    groups. A compiler's groups, and no groups, are always evaluated too. If the search has no plan
    yet, it takes the best of single devices, balanced splits and HEFT.

    Args:
        plan: The plan to start from, without its groups; by default the best of the search.
        batch: Neighbours per batch, of which the best may be accepted.
        max_plans: Plans to evaluate; by default the stop rule decides, or 4,000 without one.
    """

    plan: Plan | None = None
    batch: int = 8
    max_plans: int | None = None
    name = "fusion-search"

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ConfigError(f"FusionSearch in batches of {self.batch!r}: expected 1 or more")
        check_max_plans("FusionSearch", self.max_plans)

    def run(self, search: Search) -> None:
        if self.plan is None and search.best is None:
            for solver in (SingleDevices(), Balanced(), HEFT(contended=True)):
                if not search.over:
                    solver.run(search)
        plan = search.best if self.plan is None else self.plan
        assert plan is not None
        annealing = _FusionAnnealing(search, plan)
        max_plans = self.max_plans or (np.inf if search.stop.certain else DEFAULT_PLANS)
        start = search.evaluations
        if not annealing.begin():
            return
        cycle = min(max_plans, DEFAULT_PLANS)  # evaluations until it is reheated
        while not search.over and (used := search.evaluations - start) < max_plans:
            annealing.step(self.batch, _HOT * (_COLD / _HOT) ** (used % cycle / cycle))
        if not search.over and search.best is not None and search.best.fusion is not None:
            search.judge_plan(reorder_fused(search.problem, search.best))


class _FusionAnnealing:
    """The current state: an urgency for each op, and the groups that follow from it."""

    def __init__(self, search: Search, plan: Plan) -> None:
        self.search, self.plan = search, plan
        self.fusible_ops = np.flatnonzero(
            fusion_roles(search.problem) != NEVER_ROLE
        )  # only these have a choice
        self.op_classes = _op_classes(search.problem, self.fusible_ops)
        self.urgency: Urgencies = np.zeros(search.problem.arrays.ops, dtype=np.int32)
        self.groups: NDArray[np.int32] = np.full(len(self.urgency), -1, dtype=np.int32)
        self.key: tuple[int, float] = (0, np.inf)

    def begin(self) -> bool:
        """Evaluate some initial urgencies and take the best; false if that was all."""
        count = len(self.urgency)
        increasing = 1 + np.arange(count) * _MAX_URGENCY // count
        rows = np.stack([np.zeros(count), np.ones(count), increasing, increasing[::-1]]).astype(
            np.int32
        )
        greedy_groups = fuse_greedily(self.search.problem, self.plan.placement)
        self._judge(greedy_groups[None])
        if not self.search.over:
            self._move(rows, temperature=0.0)
        return len(self.fusible_ops) > 1 and not self.search.over

    def step(self, batch: int, temperature: float) -> None:
        """Evaluate neighbours, and perhaps accept the best of them."""
        self._move(np.stack([self._neighbour() for _ in range(batch)]), temperature)

    def _move(self, rows: Urgencies, temperature: float) -> None:
        problem = self.search.problem
        device = np.repeat(self.plan.placement[None], len(rows), axis=0)
        groups = fuse(problem, device, rows, threads=thread_count(rows.size))
        verdict = self._judge(groups)
        if not len(verdict):
            return
        at = min(range(len(verdict)), key=lambda row: verdict[row])
        if verdict[at] <= self.key or self._accepts_worse(verdict[at], temperature):
            self.urgency, self.groups, self.key = rows[at], groups[at], verdict[at]

    def _judge(self, groups: NDArray[np.int32]) -> list[tuple[int, float]]:
        """Overflow and objective of each."""
        plan = self.plan
        device = np.repeat(plan.placement[None], len(groups), axis=0)
        verdict = self.search.judge(device, plan.priority, plan.staging, groups)
        return [verdict.key(at) for at in range(len(verdict.value))]

    def _accepts_worse(self, key: tuple[int, float], temperature: float) -> bool:
        """Whether a worse plan is accepted: never one of more overflow."""
        if key[0] > self.key[0] or not temperature > 0 or not self.key[1] > 0:
            return False
        increase = (key[1] - self.key[1]) / self.key[1]
        return bool(self.search.rng.random() < np.exp(-increase / temperature))

    def _neighbour(self) -> Urgencies:
        """Other urgencies for a few ops, a run of ops, all ops of one class, or a group."""
        rng, urgency = self.search.rng, self.urgency.copy()
        kind = rng.integers(4)
        if kind == 0:
            chosen = rng.choice(self.fusible_ops, size=rng.integers(1, 9))
        elif kind == 1:
            length = 2 ** rng.integers(1, max(2, len(self.fusible_ops).bit_length()))
            begin = rng.integers(len(self.fusible_ops))
            chosen = self.fusible_ops[begin : begin + length]
        elif kind == 2:
            chosen = self.op_classes[rng.integers(len(self.op_classes))]
        else:
            chosen = np.flatnonzero(self.groups == self.groups[rng.choice(self.fusible_ops)])
        shared = rng.random() < 0.7  # the same for all of them, or sampled one by one
        values = rng.integers(1, _MAX_URGENCY + 1, size=1 if shared else len(chosen))
        urgency[chosen] = 0 if rng.random() < 0.25 else values
        return urgency


def _op_classes(problem: Problem, ops: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Ops of one kind and size, with readers of the same kinds: a network's repeated ops."""
    graph = problem.graph
    classes: dict[object, list[int]] = {}
    for at in ops.tolist():
        op = graph.ops[at]
        readers = {
            graph.ops[reader].kind
            for output in range(len(op.outputs))
            for reader in graph.readers.get((at, output), ())
        }
        key = (op.kind, op.phase, op.outputs, tuple(sorted(readers)))
        classes.setdefault(key, []).append(at)
    return [np.array(members) for members in classes.values()]
