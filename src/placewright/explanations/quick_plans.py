"""Quick plans: a problem in, a plan that takes no search out, for asking what if time and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.solvers.balanced import as_needed, split
from placewright.solvers.search import Search
from placewright.solvers.stop import Stop
from placewright.solvers.streamed import Streamed
from placewright.transforms.bundles import (
    Teams,
    accelerators,
    accelerators_first,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.plan import Plan
    from placewright.problem import Problem

_LARGE = 20_000  # ops above which streamed plans look ahead by one number of readers alone


@dataclass(frozen=True, eq=False)
class Quick:
    """A few plans that take no search: single devices, contiguous stretches, streamed weights.

    Args:
        orders: Orders of the teams to cut into stretches.
        main: The accelerator to stream weights to.
    """

    orders: tuple[NDArray[np.int64], ...]
    main: int
    name = "quick"

    @classmethod
    def of(cls, problem: Problem, plan: Plan) -> Quick:
        """Streaming goes to the accelerator that has most ops in this plan."""
        a, leader, fast = problem.arrays, Teams.of(problem).leader, accelerators(problem)
        places = [np.arange(a.ops), as_needed(problem)]
        ops = np.bincount(plan.device[a.turn], minlength=a.devices)
        orders = tuple(place[leader].argsort(kind="stable") for place in places)
        return cls(orders, int(fast[ops[fast].argmax()]))

    def __call__(self, problem: Problem) -> Plan:
        search = Search(problem, Stop(), seed=0)
        self.run(search)
        assert search.best is not None
        return search.best

    def run(self, search: Search) -> None:
        problem = search.problem
        search.judge(problem.settle(np.stack([*_singles(problem), *self.stretches(problem)])))
        few = problem.arrays.ops > _LARGE
        (Streamed((2,), to=(self.main,)) if few else Streamed(to=(self.main,))).run(search)

    def stretches(self, problem: Problem) -> list[NDArray[np.int32]]:
        """Placements in which every device has one stretch of the graph, balanced by load."""
        teams, fast = Teams.of(problem), accelerators(problem)
        everything = accelerators_first(problem)
        capacity = problem.arrays.capacity.astype(np.float64)
        plans: dict[bytes, NDArray[np.int32]] = {}
        for devices in [fast, everything] if len(fast) < len(everything) else [fast]:
            for order in self.orders:
                cuts = split(
                    teams.seconds[order][:, devices], teams.bytes[order], capacity[devices]
                )
                device = np.empty(len(teams), dtype=np.int32)
                device[order] = devices[cuts]
                placement = teams.placement(device)
                plans[placement.tobytes()] = placement
        return list(plans.values())


def _singles(problem: Problem) -> list[NDArray[np.int32]]:
    """Everything on one device, for one device of each sort."""
    a, host = problem.arrays, problem.cluster.host or 0
    sorts: dict[tuple[object, ...], int] = {}
    for at in range(a.devices):
        reached = int(a.link_class[host, at]), int(a.link_class[at, host])
        times = a.compute[:, at].tobytes(), a.allowed[:, at].tobytes()
        sorts.setdefault((int(a.capacity[at]), reached, times), at)
    return [np.full(a.ops, at, dtype=np.int32) for at in sorts.values()]
