"""Random: a problem in, plans by chance out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import ConfigError

if TYPE_CHECKING:
    from placewright.solvers.search import Search

_BATCH = 64  # plans made at once


@dataclass(frozen=True)
class Random:
    """Plans in which every op has any of the devices it may be on, all equally likely."""

    count: int = 100
    name = "random"

    def __post_init__(self) -> None:
        if not self.count >= 1:
            raise ConfigError(f"Random of {self.count!r} plans: expected at least 1")

    def run(self, search: Search) -> None:
        a = search.problem.arrays
        choices = a.allowed.sum(axis=1)
        legal_first = np.argsort(~a.allowed, axis=1, kind="stable")
        for done in range(0, self.count, _BATCH):
            draws = search.rng.random((min(_BATCH, self.count - done), a.ops))
            device = legal_first[np.arange(a.ops), (draws * choices).astype(np.int64)]
            search.judge(search.problem.settle(device))
            if search.over:
                return
