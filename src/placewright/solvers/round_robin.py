"""Round robin: deals ops out to the devices in graph order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.transforms.bundles import accelerators

if TYPE_CHECKING:
    from placewright.solvers.search import Search


@dataclass(frozen=True)
class RoundRobin:
    """Ops in graph order, dealt out to the accelerators, or to all devices if there are none."""

    name = "round-robin"

    def run(self, search: Search) -> None:
        a = search.problem.arrays
        devices = accelerators(search.problem)
        placement = devices[np.maximum(np.cumsum(a.scheduled) - 1, 0) % len(devices)]
        search.judge(search.problem.legalize(placement))
