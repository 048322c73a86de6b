"""Random search: evaluates uniformly random plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import ConfigError

if TYPE_CHECKING:
    from placewright.solvers.search import Search

_BATCH_PLANS = 64  # plans made at once


@dataclass(frozen=True)
class RandomSearch:
    """Plans in which every op is on one of its allowed devices, all equally likely."""

    count: int = 100
    name = "random"

    def __post_init__(self) -> None:
        if not self.count >= 1:
            raise ConfigError(f"Random of {self.count!r} plans: expected at least 1")

    def run(self, search: Search) -> None:
        a = search.problem.arrays
        allowed_count = a.allowed.sum(axis=1)
        allowed_first = np.argsort(~a.allowed, axis=1, kind="stable")
        for offset in range(0, self.count, _BATCH_PLANS):
            samples = search.rng.random((min(_BATCH_PLANS, self.count - offset), a.ops))
            placement = allowed_first[np.arange(a.ops), (samples * allowed_count).astype(np.int64)]
            search.judge(search.problem.legalize(placement))
            if search.over:
                return
