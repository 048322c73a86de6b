"""Plans of a problem in, verdicts or a timeline out, through the event kernel."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placewright.errors import PlanError
from placewright.plan import Plan, check_placement
from placewright.simulator._kernel import Kernel
from placewright.timeline import Memory, Timeline, Transfers

if TYPE_CHECKING:
    from placewright.arrays import Arrays
    from placewright.problem import Problem

_kernels: weakref.WeakKeyDictionary[Arrays, Kernel] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Verdict:
    """How good each plan of a batch is.

    Args:
        step_time, period: Seconds, one entry a plan.
        peak: Plans × devices: the most bytes each device held at once.
        overflow: Bytes over the devices' capacity, summed over devices.
        value: The figure that the problem's objective asks for.
    """

    step_time: NDArray[np.float64]
    period: NDArray[np.float64]
    peak: NDArray[np.int64]
    overflow: NDArray[np.int64]
    value: NDArray[np.float64]

    def best(self) -> int:
        """The first plan that is smallest by (bytes over, objective)."""
        return int(np.lexsort((self.value, self.overflow))[0])


def judge(
    problem: Problem,
    device: ArrayLike,
    priority: ArrayLike | None = None,
    staging: ArrayLike | None = None,
    threads: int = 1,
) -> Verdict:
    """Judge a batch of plans.

    Args:
        device: Plans × ops.
        priority: Plans × ops, or None for the graph's order.
        staging: Plans × devices, -1 for none, or None for none anywhere.
        threads: Plans are shared out over this many threads, outside the interpreter's lock.

    Raises:
        PlanError: A plan breaks a constraint, or its staging room is too small.
    """
    a = problem.arrays
    devices, priorities, rooms = _rows(device, np.int32), _rows(priority, np.float64), _rows(staging, np.int64)
    if devices is None or devices.shape[1] != a.ops:
        raise PlanError(f"plans of shape {np.shape(device)}: expected plans x {a.ops} ops")
    for what, rows, width in (("priorities", priorities, a.ops), ("staging rooms", rooms, a.devices)):
        if rows is not None and rows.shape != (len(devices), width):
            raise PlanError(f"{what} of shape {rows.shape}: expected {(len(devices), width)}")
    if priorities is not None and np.isnan(priorities).any():
        raise PlanError("a priority is not a number: expected one number per op")
    try:
        step_time, period, peak = kernel(a).judge(
            devices, priorities, rooms, problem.discipline == "in order", problem.overlap, True, True, threads
        )
    except ValueError as error:
        _explain(problem, error, devices, rooms)
    return Verdict(
        step_time,
        period,
        peak,
        np.maximum(peak - a.capacity, 0).sum(axis=1),
        step_time if problem.objective == "step" else period,
    )


def simulate(problem: Problem, plan: Plan) -> Timeline:
    """One step of a plan: when and where everything ran, and memory over time.

    Raises:
        PlanError: The plan is not one of this problem's, or is malformed.
    """
    a = problem.arrays
    if len(plan) != a.ops:
        raise PlanError(f"the plan has {len(plan)} ops: graph {problem.graph.name!r} has {a.ops}")
    devices, priority, staging = _rows(plan.device, np.int32), _rows(plan.priority, np.float64), _rows(plan.staging, np.int64)
    assert devices is not None
    in_order = problem.discipline == "in order"
    try:
        columns = kernel(a).timeline(devices, priority, staging, in_order)
        period = kernel(a).judge(devices, priority, staging, in_order, problem.overlap, False, True, 1)[1]
    except ValueError as error:
        _explain(problem, error, devices, staging)
    parts: dict[str, dict[str, NDArray[np.generic]]] = {"transfer": {}, "memory": {}}
    for name, column in columns.items():
        part, _, field = name.partition("_")
        if part in parts:
            parts[part][field] = column
    return Timeline(
        plan=plan,
        step_time=columns["step_time"],
        period=float(period[0]),
        start=columns["start"],
        end=columns["end"],
        transfers=Transfers(**parts["transfer"]),  # type: ignore[arg-type]
        memory=Memory(**parts["memory"]),  # type: ignore[arg-type]
        peak=columns["peak"],
        capacity=a.capacity,
    )


def kernel(a: Arrays) -> Kernel:
    """The compiled kernel of these arrays, made on first use and kept as long as they live."""
    if a not in _kernels:
        _kernels[a] = Kernel(a)
    return _kernels[a]


def _rows(values: ArrayLike | None, dtype: type[np.generic]) -> NDArray[np.generic] | None:
    if values is None:
        return None
    rows = np.ascontiguousarray(values, dtype=dtype)
    return rows[None] if rows.ndim == 1 else rows


def _explain(
    problem: Problem, error: ValueError, devices: NDArray[np.int32], rooms: NDArray[np.int64] | None
) -> NoReturn:
    """The kernel says (reason, plan, op); say it in a sentence."""
    reason, row, op = error.args
    if reason == "placement":
        check_placement(problem, devices[row][None])
    place = devices[row, op]
    a = problem.arrays
    tensors = a.inputs[a.first_input[op] : a.first_input[op + 1]]
    sources = a.producer[tensors]
    need = int(a.sizes[tensors][a.weight[sources] & (devices[row, sources] != place)].sum())
    raise PlanError(
        f"op {problem.graph.ops[op].name!r} streams {need} bytes of weights to "
        f"{problem.cluster.devices[place].name!r}, whose staging room is {rooms[row, place] if rooms is not None else -1}: "
        "the room must hold all of one op's streamed weights"
    ) from None
