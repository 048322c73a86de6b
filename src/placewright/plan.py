"""A plan: a device per op, optionally with priorities, fusion groups and staging buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from placewright.errors import PlanError
from placewright.html_tables import html_card, html_table
from placewright.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from placewright.problem import Problem

_Number = TypeVar("_Number", np.int32, np.float64)
_Scalar = TypeVar("_Scalar", np.int32, np.int64, np.float64)

MAX_STAGING = 2**50  # bytes of a staging buffer, as of one op: sums over devices fit 64 bits
NO_STAGING = -1  # a device without a staging buffer: weights arrive there like any tensor


@dataclass(frozen=True, eq=False)
class Plan:
    """Where each op runs, in which order, what is fused, and where weights are streamed.

    Make one with `Plan.of(problem, placement, …)`, which checks it. It names its ops and devices,
    so that it can be saved, read again and applied to a model.

    Args:
        ops: Names of the graph's ops, in graph order.
        device_names: Names of the cluster's devices.
        placement: Each op's device, as a position in `device_names`.
        priority: Smaller runs first; None means graph order.
        fusion: Ops of one group number are fused into one; -1 or None means not fused.
        staging: Bytes of the staging buffer on each device, -1 for none (rule 6); None: none
            anywhere.
        graph: The graph's fingerprint.
        cluster: The cluster's fingerprint.
    """

    ops: tuple[str, ...]
    device_names: tuple[str, ...]
    placement: NDArray[np.int32]
    priority: NDArray[np.float64] | None = None
    fusion: NDArray[np.int32] | None = None
    staging: NDArray[np.int64] | None = None
    graph: str = ""
    cluster: str = ""

    @classmethod
    def of(
        cls,
        problem: Problem,
        placement: ArrayLike,
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
            device_names=tuple(cluster_device.name for cluster_device in cluster.devices),
            placement=_read_only_array(placement, np.int32, "placement", len(graph)),
            priority=None
            if priority is None
            else _read_only_array(priority, np.float64, "priority", len(graph)),
            fusion=None
            if fusion is None
            else _read_only_array(fusion, np.int32, "fusion", len(graph)),
            staging=_staging_bytes(problem, staging),
            graph=graph.fingerprint,
            cluster=cluster.fingerprint,
        )
        if plan.priority is not None and not np.isfinite(plan.priority).all():
            raise PlanError("a priority is not a finite number: expected one finite number per op")
        check_placement(problem, plan.placement[None])
        return plan

    def __len__(self) -> int:
        return len(self.ops)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        mine = (self.placement, self.priority, self.fusion, self.staging)
        theirs = (other.placement, other.priority, other.fusion, other.staging)
        return (
            self.ops == other.ops
            and self.device_names == other.device_names
            and all(map(_equal_arrays, mine, theirs))
        )

    def __hash__(self) -> int:
        return hash((self.device_names, self.placement.tobytes()))

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        counts = np.bincount(self.placement, minlength=len(self.device_names))
        staging = [NO_STAGING] * len(counts) if self.staging is None else self.staging.tolist()
        rows = [
            (name, f"{count:,}", "–" if buffer == NO_STAGING else format_bytes(buffer))
            for name, count, buffer in zip(self.device_names, counts, staging, strict=True)
        ]
        fused = 0 if self.fusion is None else int((self.fusion >= 0).sum())
        lines = ["ops run in graph order" if self.priority is None else "ops run by priority"]
        lines += [f"{fused:,} ops are fused with others"] if fused else []
        table = html_table(("device", "ops", "staging buffer"), rows)
        return html_card(f"plan of {len(self):,} ops", lines, table)

    def __repr__(self) -> str:
        counts = np.bincount(self.placement, minlength=len(self.device_names))
        parts = [f"{name}: {count}" for name, count in zip(self.device_names, counts, strict=True)]
        return f"Plan({', '.join(parts)})"


def check_names(problem: Problem, plan: Plan) -> None:
    """Raise PlanError unless a plan's ops and devices are the problem's, in the same order.

    Its numbers are positions: with other names they would mean another plan.
    """
    if not isinstance(plan, Plan):
        raise PlanError(
            f"found {plan!r} instead of a plan: make one with Plan.of(problem, placement)"
        )
    graph, cluster = problem.graph, problem.cluster
    if len(plan) != len(graph):
        raise PlanError(f"the plan has {len(plan)} ops: graph {graph.name!r} has {len(graph)}")
    if plan.device_names != tuple(cluster.position):
        raise PlanError(
            f"the plan is for devices {_name_list(plan.device_names)}: the problem has "
            f"{_name_list(tuple(cluster.position))}: fit it with files.plan_for(problem, plan)"
        )
    if plan.ops != tuple(graph.position):
        plan_op, graph_op = next(
            pair for pair in zip(plan.ops, graph.position, strict=True) if len({*pair}) > 1
        )
        raise PlanError(
            f"the plan has op {plan_op!r} where graph {graph.name!r} has {graph_op!r}: "
            "fit it with files.plan_for(problem, plan)"
        )


def check_placement(problem: Problem, placement: NDArray[np.int32]) -> None:
    """Raise PlanError unless every row (plans × ops) names devices and keeps the constraints."""
    a = problem.arrays
    if placement.ndim != 2 or placement.shape[1] != a.ops:
        raise PlanError(
            f"a plan has {placement.shape[-1] if placement.ndim else 0} ops: the graph has {a.ops}"
        )
    if placement.size and (int(placement.min()) < 0 or int(placement.max()) >= a.devices):
        bad = placement[(placement < 0) | (placement >= a.devices)][0]
        raise PlanError(f"a plan names device number {bad}: expected 0 to {a.devices - 1}")
    legal = a.allowed[np.arange(a.ops), placement]
    if not legal.all():
        row, op = np.argwhere(~legal)[0]
        device_name = problem.cluster.devices[placement[row, op]].name
        allowed = [
            d.name for d, may in zip(problem.cluster.devices, a.allowed[op], strict=True) if may
        ]
        raise PlanError(
            f"op {problem.graph.ops[op].name!r} is on {device_name!r}: "
            f"the constraints allow it on {', '.join(allowed)}"
        )
    separated = placement != placement[:, a.unit_head]
    if separated.any():
        row, op = np.argwhere(separated)[0]
        names = problem.graph.ops[a.unit_head[op]].name, problem.graph.ops[op].name
        device_names = [
            problem.cluster.devices[placement[row, position]].name
            for position in (a.unit_head[op], op)
        ]
        raise PlanError(
            f"ops {names[0]!r} and {names[1]!r} must share a device: "
            f"they are on {device_names[0]!r} and {device_names[1]!r}"
        )


def _read_only_array(
    values: ArrayLike, dtype: type[_Number], field: str, length: int
) -> NDArray[_Number]:
    try:
        raw = np.array(values)
    except ValueError:
        raise PlanError(f"the plan's {field} is ragged: expected a flat list") from None
    if raw.shape != (length,):
        raise PlanError(
            f"the plan's {field} has shape {raw.shape}: expected one entry for each of {length} ops"
        )
    array = exact_array(raw, dtype, field).copy()
    array.flags.writeable = False
    return array


def exact_array(values: ArrayLike, dtype: type[_Scalar], field: str) -> NDArray[_Scalar]:
    """Values as an array of this type; PlanError if one of them would change."""
    raw = np.asarray(values)
    if raw.dtype == dtype:
        return raw
    if not np.issubdtype(raw.dtype, np.number):
        raise PlanError(f"the plan's {field} holds {raw.dtype} values: expected numbers")
    with np.errstate(invalid="ignore"):  # a nan or a number that is too large
        array = raw.astype(dtype)
    if not np.array_equal(array, raw, equal_nan=True):
        raise PlanError(f"the plan's {field} holds numbers that are no {dtype.__name__}")
    return array


def check_staging(device_names: Sequence[str], staging: NDArray[np.int64]) -> None:
    """Raise PlanError unless every buffer (… × devices) has a size that can be."""
    is_size = (staging >= NO_STAGING) & (staging <= MAX_STAGING)
    if not is_size.all():
        position = np.argwhere(~is_size)[0]
        raise PlanError(
            f"the plan stages {staging[tuple(position)]} bytes on {device_names[position[-1]]!r}: "
            "expected 0 to 2**50 bytes, or -1 for none"
        )


def _staging_bytes(
    problem: Problem, staging: Mapping[str, int] | ArrayLike | None
) -> NDArray[np.int64] | None:
    if staging is None:
        return None
    names = problem.cluster.position
    if hasattr(staging, "items"):
        buffers = np.full(len(names), NO_STAGING, dtype=np.int64)
        for name, size in staging.items():
            if name not in names:
                raise PlanError(f"the plan stages on {name!r}: the devices are {', '.join(names)}")
            buffers[names[name]] = exact_array(size, np.int64, "staging")
    else:
        buffers = exact_array(staging, np.int64, "staging").copy()
    if buffers.shape != (len(names),):
        raise PlanError(
            f"the plan's staging is {buffers.tolist()}: "
            "expected bytes >= 0, or -1 for none, per device"
        )
    check_staging(tuple(names), buffers)
    buffers.flags.writeable = False
    return buffers


def _name_list(names: tuple[str, ...]) -> str:
    return ", ".join(names[:8]) + (f", ... ({len(names)} in all)" if len(names) > 8 else "")


def _equal_arrays(mine: NDArray[np.generic] | None, theirs: NDArray[np.generic] | None) -> bool:
    if mine is None or theirs is None:
        return mine is theirs
    return np.array_equal(mine, theirs)
