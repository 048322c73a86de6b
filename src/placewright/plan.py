"""A plan: a device per op, and optionally priorities, fusion groups and staging rooms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from placewright.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

    from placewright.problem import Problem

_Number = TypeVar("_Number", np.int32, np.float64)

NO_STAGING = -1  # a device without a staging room: weights arrive there like any tensor


@dataclass(frozen=True, eq=False)
class Plan:
    """Where each op runs, in which order, what is fused, and where weights are streamed.

    Make one with `Plan.of(problem, device, …)`, which checks it. It names its ops and devices, so
    that it can be read a year later and applied to a model.

    Args:
        ops: Names of the graph's ops, in graph order.
        devices: Names of the cluster's devices.
        device: Each op's device, as a position in `devices`.
        priority: Smaller runs first; None means graph order.
        fusion: Ops of one group number are fused into one; -1 or None means alone.
        staging: Bytes of staging room on each device, -1 for none (rule 6); None: none anywhere.
        graph: The graph's fingerprint.
        cluster: The cluster's fingerprint.
    """

    ops: tuple[str, ...]
    devices: tuple[str, ...]
    device: NDArray[np.int32]
    priority: NDArray[np.float64] | None = None
    fusion: NDArray[np.int32] | None = None
    staging: NDArray[np.int64] | None = None
    graph: str = ""
    cluster: str = ""

    @classmethod
    def of(
        cls,
        problem: Problem,
        device: ArrayLike,
        priority: ArrayLike | None = None,
        fusion: ArrayLike | None = None,
        staging: Mapping[str, int] | ArrayLike | None = None,
    ) -> Plan:
        """A checked plan of this problem.

        Raises:
            PlanError: It has the wrong length, names no device, or breaks a constraint.
        """
        graph, cluster = problem.graph, problem.cluster
        plan = cls(
            ops=tuple(op.name for op in graph.ops),
            devices=tuple(place.name for place in cluster.devices),
            device=_frozen(device, np.int32, "device", len(graph)),
            priority=None
            if priority is None
            else _frozen(priority, np.float64, "priority", len(graph)),
            fusion=None if fusion is None else _frozen(fusion, np.int32, "fusion", len(graph)),
            staging=_rooms(problem, staging),
            graph=graph.fingerprint,
            cluster=cluster.fingerprint,
        )
        if plan.priority is not None and not np.isfinite(plan.priority).all():
            raise PlanError("a priority is not a finite number: expected one finite number per op")
        check_placement(problem, plan.device[None])
        return plan

    def __len__(self) -> int:
        return len(self.ops)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        mine = (self.device, self.priority, self.fusion, self.staging)
        theirs = (other.device, other.priority, other.fusion, other.staging)
        return (
            self.ops == other.ops
            and self.devices == other.devices
            and all(map(_same, mine, theirs))
        )

    def __hash__(self) -> int:
        return hash((self.devices, self.device.tobytes()))

    def __repr__(self) -> str:
        counts = np.bincount(self.device, minlength=len(self.devices))
        parts = [f"{name}: {count}" for name, count in zip(self.devices, counts, strict=True)]
        return f"Plan({', '.join(parts)})"


def check_names(problem: Problem, plan: Plan) -> None:
    """Raise PlanError unless a plan's ops and devices are the problem's, in the same order.

    Its numbers are positions in them: read with other names they mean another plan.
    """
    if not isinstance(plan, Plan):
        raise PlanError(f"found {plan!r} instead of a plan: make one with Plan.of(problem, device)")
    graph, cluster = problem.graph, problem.cluster
    if len(plan) != len(graph):
        raise PlanError(f"the plan has {len(plan)} ops: graph {graph.name!r} has {len(graph)}")
    if plan.devices != tuple(cluster.position):
        raise PlanError(
            f"the plan is for devices {_listed(plan.devices)}: the problem has "
            f"{_listed(tuple(cluster.position))}: fit it with files.plan_for(problem, plan)"
        )
    if plan.ops != tuple(graph.position):
        other, own = next(
            pair for pair in zip(plan.ops, graph.position, strict=True) if len({*pair}) > 1
        )
        raise PlanError(
            f"the plan has op {other!r} where graph {graph.name!r} has {own!r}: "
            "fit it with files.plan_for(problem, plan)"
        )


def check_placement(problem: Problem, device: NDArray[np.int32]) -> None:
    """Raise PlanError unless every row (plans × ops) names devices and keeps the constraints."""
    a = problem.arrays
    if device.ndim != 2 or device.shape[1] != a.ops:
        raise PlanError(
            f"a plan has {device.shape[-1] if device.ndim else 0} ops: the graph has {a.ops}"
        )
    if device.size and (int(device.min()) < 0 or int(device.max()) >= a.devices):
        bad = device[(device < 0) | (device >= a.devices)][0]
        raise PlanError(f"a plan names device number {bad}: expected 0 to {a.devices - 1}")
    legal = a.allowed[np.arange(a.ops), device]
    if not legal.all():
        row, op = np.argwhere(~legal)[0]
        where = problem.cluster.devices[device[row, op]].name
        allowed = [
            d.name for d, may in zip(problem.cluster.devices, a.allowed[op], strict=True) if may
        ]
        raise PlanError(
            f"op {problem.graph.ops[op].name!r} is on {where!r}: "
            f"the constraints allow it on {', '.join(allowed)}"
        )
    apart = device != device[:, a.head]
    if apart.any():
        row, op = np.argwhere(apart)[0]
        names = problem.graph.ops[a.head[op]].name, problem.graph.ops[op].name
        places = [problem.cluster.devices[device[row, at]].name for at in (a.head[op], op)]
        raise PlanError(
            f"ops {names[0]!r} and {names[1]!r} must share a device: "
            f"they are on {places[0]!r} and {places[1]!r}"
        )


def _frozen(values: ArrayLike, dtype: type[_Number], what: str, length: int) -> NDArray[_Number]:
    try:
        given = np.array(values)
    except ValueError:
        raise PlanError(f"the plan's {what} is ragged: expected a flat list") from None
    if given.shape != (length,):
        raise PlanError(
            f"the plan's {what} has shape {given.shape}: "
            f"expected one entry for each of {length} ops"
        )
    if not np.issubdtype(given.dtype, np.number):
        raise PlanError(f"the plan's {what} holds {given.dtype} values: expected numbers")
    array = given.astype(dtype)
    if not np.array_equal(array, given, equal_nan=True):
        raise PlanError(f"the plan's {what} holds numbers that are no {dtype.__name__}")
    array.flags.writeable = False
    return array


def _rooms(
    problem: Problem, staging: Mapping[str, int] | ArrayLike | None
) -> NDArray[np.int64] | None:
    if staging is None:
        return None
    names = problem.cluster.position
    if hasattr(staging, "items"):
        rooms = np.full(len(names), NO_STAGING, dtype=np.int64)
        for name, size in staging.items():
            if name not in names:
                raise PlanError(f"the plan stages on {name!r}: the devices are {', '.join(names)}")
            rooms[names[name]] = size
    else:
        rooms = np.array(staging, dtype=np.int64)
    if rooms.shape != (len(names),) or (rooms < NO_STAGING).any():
        raise PlanError(
            f"the plan's staging is {rooms.tolist()}: "
            "expected bytes >= 0, or -1 for none, per device"
        )
    rooms.flags.writeable = False
    return rooms


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:8]) + (f", ... ({len(names)} in all)" if len(names) > 8 else "")


def _same(mine: NDArray[np.generic] | None, theirs: NDArray[np.generic] | None) -> bool:
    if mine is None or theirs is None:
        return mine is theirs
    return np.array_equal(mine, theirs)
