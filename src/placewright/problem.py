"""A problem: a graph, a cluster, costs and constraints."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from placewright.cluster import Cluster
from placewright.costs import CostModel, Roofline
from placewright.errors import ProblemError, nearest
from placewright.graph import INPUT, Graph
from placewright.html_tables import html_card, html_table
from placewright.problem_arrays import Arrays, pack
from placewright.units import UNLIMITED, format_bytes, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

Discipline = Literal["in order", "ready"]
Objective = Literal["step", "period"]


@dataclass(frozen=True, init=False)
class Constraints:
    """What a plan must respect. Ops are named, or matched with `*` and `?`.

    Args:
        pins: Op → the device it must be on.
        forbid: Op → devices it must not be on.
        colocate: Groups of ops that must share a device.
        limits: Device → bytes that a plan may use; the device's reserve does not come off them, but
            what is left free is at least the reserve. Text such as `"4GiB"` is read as bytes.
    """

    pins: Mapping[str, str]
    forbid: Mapping[str, tuple[str, ...]]
    colocate: tuple[tuple[str, ...], ...]
    limits: Mapping[str, int]

    def __init__(
        self,
        pins: Mapping[str, str] | None = None,
        forbid: Mapping[str, tuple[str, ...]] | None = None,
        colocate: tuple[tuple[str, ...], ...] = (),
        limits: Mapping[str, int | str] | None = None,
    ) -> None:
        _set_fields(
            self,
            pins={} if pins is None else pins,
            forbid={} if forbid is None else forbid,
            colocate=colocate,
            limits=_parse_limits(limits or {}),
        )


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Problem:
    """One network on one cluster, with everything needed to evaluate a plan.

    Args:
        costs: How long ops and transfers take; a roofline by default.
        discipline: `in order` as PyTorch and CUDA streams issue, `ready` as TensorFlow's executor.
        objective: `step` for the time of one step, `period` for the time between pipelined steps.
        overlap: Whether transfers overlap computation in the period.
        limits: Short for `constraints=Constraints(limits=...)`: `{"gpu0": "4GiB"}`. They replace
            those that the constraints have for the same device.
    """

    graph: Graph
    cluster: Cluster
    costs: CostModel
    constraints: Constraints
    discipline: Discipline
    objective: Objective
    overlap: bool

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        costs: CostModel | None = None,
        constraints: Constraints | None = None,
        discipline: Discipline = "in order",
        objective: Objective = "step",
        overlap: bool = True,
        *,
        limits: Mapping[str, int | str] | None = None,
    ) -> None:
        if not (isinstance(graph, Graph) and isinstance(cluster, Cluster)):
            raise ProblemError(
                f"a problem of {type(graph).__name__} and {type(cluster).__name__}: "
                "expected a Graph and then a Cluster, "
                "such as zoo.load('chain') and Cluster.parse('2xP100+cpu')"
            )
        constraints = Constraints() if constraints is None else constraints
        if not isinstance(constraints, Constraints):
            raise ProblemError(
                f"a problem with constraints {constraints!r}: expected Constraints(...)"
            )
        if limits:
            merged = {**constraints.limits, **_parse_limits(limits)}
            constraints = replace(constraints, limits=merged)
        if discipline not in get_args(Discipline):
            raise ProblemError(f"discipline {discipline!r}: expected 'in order' or 'ready'")
        if objective not in get_args(Objective):
            raise ProblemError(f"objective {objective!r}: expected 'step' or 'period'")
        _set_fields(
            self,
            graph=graph,
            cluster=cluster,
            costs=Roofline() if costs is None else costs,
            constraints=constraints,
            discipline=discipline,
            objective=objective,
            overlap=overlap,
        )

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        limits = self.constraints.limits
        rows = [
            (
                device.name,
                device.model,
                _memory_text(device.memory),
                _memory_text(limits[device.name]) if device.name in limits else "–",
                format_bytes(device.reserve),
            )
            for device in self.cluster.devices
        ]
        constraints = [
            f"{len(values):,} {noun}"
            for values, noun in (
                (self.constraints.pins, "pins"),
                (self.constraints.forbid, "forbidden"),
                (self.constraints.colocate, "colocated"),
            )
            if values
        ]
        ops = f"{len(self.graph):,} ops, {len(self.cluster):,} devices"
        lines = [f"{ops}; objective: {self.objective}; order of ops: {self.discipline}"]
        lines += [f"constraints: {', '.join(constraints)}"] if constraints else []
        table = html_table(("device", "model", "memory", "limit", "reserve"), rows, text_columns=2)
        return html_card(f"{self.graph.name} on {self.cluster.name}", lines, table)

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

    def resolved_constraints(self) -> Constraints:
        """The same constraints with the names of ops in place of patterns."""
        ops, given = self.graph.ops, self.constraints
        pins: dict[str, str] = {}
        forbid: dict[str, tuple[str, ...]] = {}
        for pattern, device in given.pins.items():
            for op in self._matching_ops(pattern):
                if pins.setdefault(ops[op].name, device) != device:  # as `arrays` says
                    raise ProblemError(
                        f"no device is left for {ops[op].name!r}: it is pinned to "
                        f"{pins[ops[op].name]!r} and to {device!r}; loosen a pin"
                    )
        for pattern, devices in given.forbid.items():
            for op in self._matching_ops(pattern):
                forbid[ops[op].name] = (*forbid.get(ops[op].name, ()), *devices)
        colocate = tuple(
            tuple(dict.fromkeys(ops[op].name for op in group))
            for group in self._colocation_groups()
        )
        return replace(given, pins=pins, forbid=forbid, colocate=colocate)

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
        usable = _bytes_array([device.capacity for device in self.cluster.devices])
        for name, size in self.constraints.limits.items():
            if not _is_byte_count(size):
                raise ProblemError(
                    f"the limit of device {name!r} is {size!r} bytes: expected a whole number "
                    ">= 0, such as 4 * 2**30, or '4GiB'"
                )
            usable[self._device_position(name)] = min(size, usable[self._device_position(name)])
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


def _memory_text(size: int) -> str:
    return "no limit" if size >= UNLIMITED else format_bytes(size)


def _set_fields(instance: object, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def _bytes_array(sizes: list[int]) -> NDArray[np.int64]:
    """Bytes as the kernels count them; more than 4 EiB, which no plan can use, counts as that."""
    return np.array([min(size, 2**62) for size in sizes], dtype=np.int64)


def _parse_limits(limits: Mapping[str, int | str]) -> dict[str, int]:
    """Bytes by device. A text that is no size raises ConfigError."""
    return {
        name: parse_bytes(limit) if isinstance(limit, str) else limit
        for name, limit in limits.items()
    }


def _is_byte_count(size: float) -> bool:
    """Whether it is a number of bytes, also as a float (4e9); text and nan are not."""
    try:
        return int(size) == size and size >= 0
    except (TypeError, ValueError, OverflowError):
        return False
