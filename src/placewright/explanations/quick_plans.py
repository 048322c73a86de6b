"""Quick plans: plans that take no search, for asking what if repeatedly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placewright.solvers.balanced import balanced_split, demand_positions
from placewright.solvers.search import Search
from placewright.solvers.stop import Stop
from placewright.solvers.streamed import Streamed
from placewright.transforms.bundles import (
    Bundles,
    accelerators,
    accelerators_first,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.plan import Plan
    from placewright.problem import Problem

_LARGE_GRAPH_OPS = (
    20_000  # ops above which streamed plans look ahead by one number of readers alone
)


@dataclass(frozen=True, eq=False)
class QuickPlans:
    """A few plans that take no search: single devices, contiguous stretches, streamed weights.

    Args:
        orders: Orders of the teams to cut into stretches.
        main_device: The accelerator to stream weights to.
    """

    orders: tuple[NDArray[np.int64], ...]
    main_device: int
    name = "quick"

    @classmethod
    def of(cls, problem: Problem, plan: Plan) -> QuickPlans:
        """Streaming goes to the accelerator that has most ops in this plan."""
        a, leader, fast_devices = problem.arrays, Bundles.of(problem).leader, accelerators(problem)
        positions = [np.arange(a.ops), demand_positions(problem)]
        ops = np.bincount(plan.placement[a.scheduled], minlength=a.devices)
        orders = tuple(op_positions[leader].argsort(kind="stable") for op_positions in positions)
        return cls(orders, int(fast_devices[ops[fast_devices].argmax()]))

    def __call__(self, problem: Problem) -> Plan:
        search = Search(problem, Stop(), seed=0)
        self.run(search)
        assert search.best is not None
        return search.best

    def run(self, search: Search) -> None:
        problem = search.problem
        search.judge(
            problem.legalize(
                np.stack([*_distinct_devices(problem), *self.contiguous_placements(problem)])
            )
        )
        is_large = problem.arrays.ops > _LARGE_GRAPH_OPS
        (
            Streamed((2,), targets=(self.main_device,))
            if is_large
            else Streamed(targets=(self.main_device,))
        ).run(search)

    def contiguous_placements(self, problem: Problem) -> list[NDArray[np.int32]]:
        """Placements in which every device has one stretch of the graph, balanced by load."""
        bundles, fast_devices = Bundles.of(problem), accelerators(problem)
        all_devices = accelerators_first(problem)
        capacity = problem.arrays.capacity.astype(np.float64)
        plans: dict[bytes, NDArray[np.int32]] = {}
        for devices in (
            [fast_devices, all_devices] if len(fast_devices) < len(all_devices) else [fast_devices]
        ):
            for order in self.orders:
                cuts = balanced_split(
                    bundles.seconds[order][:, devices], bundles.bytes[order], capacity[devices]
                )
                bundle_device = np.empty(len(bundles), dtype=np.int32)
                bundle_device[order] = devices[cuts]
                placement = bundles.placement(bundle_device)
                plans[placement.tobytes()] = placement
        return list(plans.values())


def _distinct_devices(problem: Problem) -> list[NDArray[np.int32]]:
    """Everything on one device, for one device of each kind."""
    a, host = problem.arrays, problem.cluster.host or 0
    device_kinds: dict[tuple[object, ...], int] = {}
    for device in range(a.devices):
        link_classes = int(a.link_class[host, device]), int(a.link_class[device, host])
        times = a.compute[:, device].tobytes(), a.allowed[:, device].tobytes()
        device_kinds.setdefault((int(a.capacity[device]), link_classes, times), device)
    return list(problem.single_device_placements()[list(device_kinds.values())])
