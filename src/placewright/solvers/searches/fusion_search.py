"""Fusion search: a plan in, the same placement with better fused groups out.

Simulated annealing over the urgencies by which `transforms.fuse` grows groups, as the paper that
brought these urgencies compares with (GO, Zhou et al. 2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placewright.errors import ConfigError
from placewright.solvers.balanced import Balanced
from placewright.solvers.fuse_plan import ordered
from placewright.solvers.heft import HEFT
from placewright.solvers.search import threads
from placewright.solvers.searches.search_space import ENOUGH, check_most
from placewright.solvers.single import EverySingleDevice
from placewright.transforms import fuse, greedy
from placewright.transforms.fusible import NEVER, roles

if TYPE_CHECKING:
    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.solvers.search import Search

Levels = NDArray[np.int32]

_LEVELS = 20  # urgencies, beside 0 for never
_HOT, _COLD = 0.01, 1e-4  # the temperature, as a share of the objective


@dataclass(frozen=True)
class FusionSearch:
    """Fused groups for one placement: that of a given plan, or of the best plan so far.

    Devices, order and staging stay as they are; at the end the priority rules are tried on the best
    groups. What a compiler fuses, and nothing fused, are always judged too. If the search has no
    plan yet, it takes the best of single devices, balanced splits and HEFT.

    Args:
        plan: The plan to begin with, without its groups; the best of the search if not given.
        batch: Neighbours judged at a time, of which the best may be gone to.
        most: Plans to judge; if not given the stop rule alone decides, or 4,000 without one.
    """

    plan: Plan | None = None
    batch: int = 8
    most: int | None = None
    name = "fusion-search"

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ConfigError(f"FusionSearch in batches of {self.batch!r}: expected 1 or more")
        check_most("FusionSearch", self.most)

    def run(self, search: Search) -> None:
        if self.plan is None and search.best is None:
            for solver in (EverySingleDevice(), Balanced(), HEFT(contended=True)):
                if not search.over:
                    solver.run(search)
        plan = search.best if self.plan is None else self.plan
        assert plan is not None
        walk = _Walk(search, plan)
        most = self.most or (np.inf if search.stop.certain else ENOUGH)
        begun = search.evaluations
        if not walk.begin():
            return
        cooling = min(most, ENOUGH)  # evaluations; then it is hot again
        while not search.over and (used := search.evaluations - begun) < most:
            walk.step(self.batch, _HOT * (_COLD / _HOT) ** (used % cooling / cooling))
        if not search.over and search.best is not None and search.best.fusion is not None:
            search.propose(ordered(search.problem, search.best))


class _Walk:
    """Where the search stands: an urgency for each op, and the groups that come of it."""

    def __init__(self, search: Search, plan: Plan) -> None:
        self.search, self.plan = search, plan
        self.ops = np.flatnonzero(roles(search.problem) != NEVER)  # which alone have a choice
        self.classes = _classes(search.problem, self.ops)
        self.levels: Levels = np.zeros(search.problem.arrays.ops, dtype=np.int32)
        self.group: NDArray[np.int32] = np.full(len(self.levels), -1, dtype=np.int32)
        self.key: tuple[int, float] = (0, np.inf)

    def begin(self) -> bool:
        """Judge some urgencies that come to mind and stand on the best; false if that was all."""
        count = len(self.levels)
        rising = 1 + np.arange(count) * _LEVELS // count
        rows = np.stack([np.zeros(count), np.ones(count), rising, rising[::-1]]).astype(np.int32)
        compiled = greedy(self.search.problem, self.plan.device)
        self._judge(compiled[None])
        if not self.search.over:
            self._go(rows, hot=0.0)
        return len(self.ops) > 1 and not self.search.over

    def step(self, batch: int, hot: float) -> None:
        """Judge neighbours, and perhaps go to the best of them."""
        self._go(np.stack([self._neighbour() for _ in range(batch)]), hot)

    def _go(self, rows: Levels, hot: float) -> None:
        problem = self.search.problem
        device = np.repeat(self.plan.device[None], len(rows), axis=0)
        groups = fuse(problem, device, rows, threads=threads(rows.size))
        verdict = self._judge(groups)
        if not len(verdict):
            return
        at = min(range(len(verdict)), key=lambda row: verdict[row])
        if verdict[at] <= self.key or self._climbs(verdict[at], hot):
            self.levels, self.group, self.key = rows[at], groups[at], verdict[at]

    def _judge(self, groups: NDArray[np.int32]) -> list[tuple[int, float]]:
        """Bytes over and objective of each."""
        plan = self.plan
        device = np.repeat(plan.device[None], len(groups), axis=0)
        verdict = self.search.judge(device, plan.priority, plan.staging, groups)
        return [verdict.key(at) for at in range(len(verdict.value))]

    def _climbs(self, key: tuple[int, float], hot: float) -> bool:
        """Whether a worse plan is gone to: never to one of more bytes over."""
        if key[0] > self.key[0] or not hot > 0 or not self.key[1] > 0:
            return False
        worse = (key[1] - self.key[1]) / self.key[1]
        return bool(self.search.rng.random() < np.exp(-worse / hot))

    def _neighbour(self) -> Levels:
        """Other urgencies for a few ops, a stretch of them, all ops alike, or a group."""
        rng, levels = self.search.rng, self.levels.copy()
        kind = rng.integers(4)
        if kind == 0:
            chosen = rng.choice(self.ops, size=rng.integers(1, 9))
        elif kind == 1:
            length = 2 ** rng.integers(1, max(2, len(self.ops).bit_length()))
            first = rng.integers(len(self.ops))
            chosen = self.ops[first : first + length]
        elif kind == 2:
            chosen = self.classes[rng.integers(len(self.classes))]
        else:
            chosen = np.flatnonzero(self.group == self.group[rng.choice(self.ops)])
        one = rng.random() < 0.7  # the same for all of them, or drawn one by one
        drawn = rng.integers(1, _LEVELS + 1, size=1 if one else len(chosen))
        levels[chosen] = 0 if rng.random() < 0.25 else drawn
        return levels


def _classes(problem: Problem, ops: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Ops of one kind and size, with readers of the same kinds: what a network repeats."""
    graph = problem.graph
    alike: dict[object, list[int]] = {}
    for at in ops.tolist():
        op = graph.ops[at]
        readers = {
            graph.ops[reader].kind
            for output in range(len(op.outputs))
            for reader in graph.readers.get((at, output), ())
        }
        mark = (op.kind, op.phase, op.outputs, tuple(sorted(readers)))
        alike.setdefault(mark, []).append(at)
    return [np.array(each) for each in alike.values()]
