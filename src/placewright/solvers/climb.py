"""Climb: a problem and a way to group its ops in, the best placement of whole groups found out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.problem import Problem
    from placewright.simulator import Verdict
    from placewright.solvers.search import Search
    from placewright.transforms import Grouping


@dataclass(frozen=True)
class Climb:
    """From the best single device, move one or a few groups at a time while that helps.

    Meant for comparing groupings under one budget: the search itself is as plain as can be. Without
    a stop rule it ends after `most` plans.

    Args:
        group: Makes the grouping, such as `transforms.by_colocation`.
        batch: Neighbours judged at a time; the best of them is taken if it is better.
    """

    group: Callable[[Problem], Grouping]
    batch: int = 64
    most: int = 4_000
    name = "climb"

    def run(self, search: Search) -> None:
        problem, rng = search.problem, search.rng
        grouping = self.group(problem)
        devices = problem.arrays.devices
        singles = np.repeat(np.arange(devices)[:, None], len(grouping), axis=1)
        verdict = search.judge(problem.settle(grouping.expand(singles)))
        if not len(verdict.value):
            return
        current, key = singles[verdict.best()], _key(verdict, verdict.best())
        while not search.over and search.evaluations < self.most:
            near = np.repeat(current[None], self.batch, axis=0)
            for row in near:
                moved = rng.integers(0, len(grouping), size=int(rng.integers(1, 4)))
                row[moved] = rng.integers(0, devices)
            verdict = search.judge(problem.settle(grouping.expand(near)))
            if len(verdict.value) and _key(verdict, verdict.best()) < key:
                current, key = near[verdict.best()], _key(verdict, verdict.best())


def _key(verdict: Verdict, at: int) -> tuple[int, float]:
    return int(verdict.overflow[at]), float(verdict.value[at])
