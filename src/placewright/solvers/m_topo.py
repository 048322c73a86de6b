"""m-TOPO, devices filled one after the other: Jeon et al. 2020, "Baechi", SoCC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.transforms.bundles import (
    Bundles,
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

    The share is all bytes divided by the number of accelerators, plus the largest bundle (the
    paper's cap), and no more than the device holds. Bundles that fit no accelerator go to the
    hosts, and those that fit nowhere to the last device.
    """

    name = "m-topo"

    def run(self, search: Search) -> None:
        search.judge(fill_devices(search.problem))


def fill_devices(problem: Problem) -> NDArray[np.int32]:
    """m-TOPO's placement."""
    bundles = Bundles.of(problem)
    capacity = problem.arrays.capacity
    memory_share = bundles.bytes.sum() / len(accelerators(problem)) + bundles.bytes.max()
    order = accelerators_first(problem).tolist()
    bundle_device = np.empty(len(bundles), dtype=np.int32)
    position, used_bytes = 0, 0
    for bundle, size in enumerate(bundles.bytes.tolist()):
        while position < len(order) - 1 and used_bytes + size > min(
            memory_share, capacity[order[position]]
        ):
            position, used_bytes = position + 1, 0
        bundle_device[bundle] = order[position]
        used_bytes += size
    return bundles.placement(bundle_device)
