"""A problem: a graph, a cluster, costs and constraints."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from placewright.arrays import Arrays, pack
from placewright.cluster import Cluster
from placewright.costs import CostModel, Roofline
from placewright.errors import ProblemError, nearest
from placewright.graph import INPUT, Graph

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

Discipline = Literal["in order", "ready"]
Objective = Literal["step", "period"]


@dataclass(frozen=True)
class Constraints:
    """What a plan must respect. Ops are named, or matched with `*` and `?`.

    Args:
        pins: Op → the device it must be on.
        forbid: Op → devices it must not be on.
        colocate: Groups of ops that must share a device.
        limits: Device → bytes of its memory that may be used, including its reserve.
    """

    pins: Mapping[str, str] = field(default_factory=dict)
    forbid: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    colocate: tuple[tuple[str, ...], ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Problem:
    """One network on one cluster, with everything needed to evaluate a plan.

    Args:
        discipline: `in order` as PyTorch and CUDA streams issue, `ready` as TensorFlow's executor.
        objective: `step` for the time of one step, `period` for the time between pipelined steps.
        overlap: Whether transfers overlap computation in the period.
    """

    graph: Graph
    cluster: Cluster
    costs: CostModel = field(default_factory=Roofline)
    constraints: Constraints = field(default_factory=Constraints)
    discipline: Discipline = "in order"
    objective: Objective = "step"
    overlap: bool = True

    def __post_init__(self) -> None:
        if not (isinstance(self.graph, Graph) and isinstance(self.cluster, Cluster)):
            raise ProblemError(
                f"a problem of {type(self.graph).__name__} and {type(self.cluster).__name__}: "
                "expected a Graph and then a Cluster, "
                "such as zoo.load('chain') and Cluster.parse('2xP100+cpu')"
            )
        if not isinstance(self.constraints, Constraints):
            raise ProblemError(
                f"a problem with constraints {self.constraints!r}: expected Constraints(...)"
            )
        if self.discipline not in get_args(Discipline):
            raise ProblemError(f"discipline {self.discipline!r}: expected 'in order' or 'ready'")
        if self.objective not in get_args(Objective):
            raise ProblemError(f"objective {self.objective!r}: expected 'step' or 'period'")

    def __repr__(self) -> str:
        return f"Problem({self.graph!r}, {self.cluster!r}, {self.objective})"

    @cached_property
    def arrays(self) -> Arrays:
        """The problem as flat arrays, packed on first use."""
        return pack(
            self.graph,
            self.cluster,
            self.costs,
            self._allowed_devices(),
            self._colocation_groups(),
            self._capacity(),
        )

    def with_arrays(self, **changes: Any) -> Problem:
        """The same problem with some of its arrays replaced, which is much faster than packing.

        For what-if questions: other times, rates or memory. Graph, cluster and costs are not
        changed, so a plan with fused ops must be contracted first, and `replace` on the new problem
        loses the change.
        """
        problem = replace(self)
        problem.__dict__["arrays"] = replace(self.arrays, **changes)  # where the property looks
        return problem

    def legalize(self, placement: NDArray[np.integer]) -> NDArray[np.int32]:
        """A placement (…, ops) that keeps the constraints, with the rest placed by rule 6.

        Weights go with their first reader, and units stay together. An op that may not be on its
        device goes to its first allowed one.
        """
        a = self.arrays
        first_allowed = a.allowed.argmax(axis=1).astype(np.int32)

        def to_allowed(device: NDArray[np.int32]) -> NDArray[np.int32]:
            return np.where(a.allowed[np.arange(a.ops), device], device, first_allowed)

        # First the leaders, so that a weight follows its reader to where a pin sends it.
        by_leader = to_allowed(np.asarray(placement, dtype=np.int32))[..., a.leader]
        return np.ascontiguousarray(to_allowed(by_leader))

    def single_device_placements(self) -> NDArray[np.int32]:
        """Devices × ops: everything on one device, for each device.

        Ops that may not be on that device are where `legalize` puts them.
        """
        a = self.arrays
        return self.legalize(np.repeat(np.arange(a.devices)[:, None], a.ops, axis=1))

    def _allowed_devices(self) -> NDArray[np.bool_]:
        cluster, graph = self.cluster, self.graph
        allowed = np.ones((len(graph), len(cluster)), dtype=bool)
        device_labels = [{device.name, device.model, device.kind} for device in cluster.devices]
        for position, op in enumerate(graph.ops):
            if op.runs_on:
                allowed[position] = [not labels.isdisjoint(op.runs_on) for labels in device_labels]
                if not allowed[position].any():
                    raise ProblemError(
                        f"op {op.name!r} runs only on {', '.join(op.runs_on)}: cluster "
                        f"{cluster.name!r} has no such device"
                    )
        pinned: set[int] = set()
        for pattern, name in self.constraints.pins.items():
            column = np.arange(len(cluster)) == self._device_position(name)
            for position in self._matching_ops(pattern):
                allowed[position] &= column
                pinned.add(position)
        for pattern, names in self.constraints.forbid.items():
            columns = [self._device_position(name) for name in names]
            for position in self._matching_ops(pattern):
                allowed[position, columns] = False
        if cluster.host is not None:  # rule 10
            for position, op in enumerate(graph.ops):
                if op.kind == INPUT and position not in pinned:
                    allowed[position] &= np.arange(len(cluster)) == cluster.host
        return allowed

    def _colocation_groups(self) -> list[list[int]]:
        groups = self.constraints.colocate
        return [
            [op for pattern in group for op in self._matching_ops(pattern)]
            for group in groups
            if group
        ]

    def _capacity(self) -> NDArray[np.int64]:
        limit = np.array([device.memory for device in self.cluster.devices], dtype=np.int64)
        for name, size in self.constraints.limits.items():
            if not _is_byte_count(size):
                raise ProblemError(
                    f"the limit of device {name!r} is {size!r} bytes: expected a whole number "
                    ">= 0, such as 4 * 2**30 or units.parse_bytes('4GiB')"
                )
            limit[self._device_position(name)] = min(size, limit[self._device_position(name)])
        reserve = np.array([device.reserve for device in self.cluster.devices], dtype=np.int64)
        usable: NDArray[np.int64] = np.maximum(limit - reserve, 0)
        return usable

    def _device_position(self, name: str) -> int:
        position = self.cluster.position.get(name)
        if position is None:
            raise ProblemError(
                f"a constraint names device {name!r}, which cluster {self.cluster.name!r} "
                f"does not have: {nearest(name, self.cluster.position)}"
            )
        return position

    def _matching_ops(self, pattern: str) -> list[int]:
        if pattern in self.graph.position:
            return [self.graph.position[pattern]]
        if "*" in pattern or "?" in pattern:
            matches = [
                at for at, op in enumerate(self.graph.ops) if fnmatch.fnmatchcase(op.name, pattern)
            ]
            if matches:
                return matches
            raise ProblemError(f"a constraint names ops {pattern!r}: none of the graph's ops match")
        raise ProblemError(
            f"a constraint names op {pattern!r}, which the graph does not have: "
            f"{nearest(pattern, self.graph.position)}"
        )


def _is_byte_count(size: float) -> bool:
    """Whether it is a number of bytes, also as a float (4e9); text and nan are not."""
    try:
        return int(size) == size and size >= 0
    except (TypeError, ValueError, OverflowError):
        return False
