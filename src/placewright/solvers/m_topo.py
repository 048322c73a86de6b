"""m-TOPO, devices filled one after the other: Jeon et al. 2020, "Baechi", SoCC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.transforms.bundles import (
    Teams,
    accelerators,
    accelerators_first,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.solvers.search import Search


@dataclass(frozen=True)
class MTopo:
    """Ops in graph order to one accelerator after another, each up to an equal share of the memory.

    The share is all bytes over the number of accelerators, plus the largest team of ops (the cap of
    the paper), and no more than the device holds. What fits no accelerator goes to the hosts, and
    what fits nowhere to the last device.
    """

    name = "m-topo"

    def run(self, search: Search) -> None:
        search.judge(fill(search.problem))


def fill(problem: Problem) -> NDArray[np.int32]:
    """m-TOPO's placement."""
    teams = Teams.of(problem)
    capacity = problem.arrays.capacity
    share = teams.bytes.sum() / len(accelerators(problem)) + teams.bytes.max()
    order = accelerators_first(problem).tolist()
    device = np.empty(len(teams), dtype=np.int32)
    at, used = 0, 0
    for team, size in enumerate(teams.bytes.tolist()):
        while at < len(order) - 1 and used + size > min(share, capacity[order[at]]):
            at, used = at + 1, 0
        device[team] = order[at]
        used += size
    return teams.placement(device)
