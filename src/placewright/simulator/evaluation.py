"""Judges batches of plans and simulates single plans through the compiled event kernel."""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from placewright.errors import PlanError
from placewright.plan import Plan, check_names, check_placement
from placewright.simulator._kernel import Kernel
from placewright.simulator.reference import plan_order
from placewright.timeline import MemoryTrace, Timeline, Transfers
from placewright.transforms import contract, unroll
from placewright.transforms.fusible import LIGHT_ROLE, fusion_roles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from placewright.arrays import Arrays
    from placewright.problem import Problem

_Scalar = TypeVar("_Scalar", np.int32, np.int64, np.float64)
_kernels: weakref.WeakKeyDictionary[Arrays, Kernel] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Verdict:
    """How good each plan of a batch is.

    Args:
        value: The figure that the problem's objective asks for, one entry a plan.
        step_time: Seconds one step takes.
        peak: Plans × devices: the most bytes each device held at once.
        overflow: Bytes over the devices' capacity, summed over devices.
    """

    batches: tuple[_Batch, ...]
    value: NDArray[np.float64]
    step_time: NDArray[np.float64]
    peak: NDArray[np.int64]
    overflow: NDArray[np.int64]

    @cached_property
    def period(self) -> NDArray[np.float64]:
        """Seconds between pipelined steps; worked out on first use, as few solvers ask for both."""
        return np.concatenate([batch.run(step=False, period=True)[1] for batch in self.batches])

    def best(self) -> int:
        """The first plan that is smallest by (bytes over, objective)."""
        return self.best_first(1)[0]

    def best_first(self, count: int) -> list[int]:
        """So many plans, the best first, by (bytes over, objective)."""
        ranking: list[int] = np.lexsort((self.value, self.overflow))[:count].tolist()
        return ranking

    def key(self, at: int) -> tuple[int, float]:
        """What a plan is compared by: bytes over, then the objective."""
        return int(self.overflow[at]), float(self.value[at])

    @classmethod
    def concatenate(cls, verdicts: Sequence[Verdict]) -> Verdict:
        """One verdict on all the plans, in turn."""
        return cls(
            tuple(batch for verdict in verdicts for batch in verdict.batches),
            np.concatenate([verdict.value for verdict in verdicts]),
            np.concatenate([verdict.step_time for verdict in verdicts]),
            np.concatenate([verdict.peak for verdict in verdicts]),
            np.concatenate([verdict.overflow for verdict in verdicts]),
        )


def judge(
    problem: Problem,
    device: ArrayLike,
    priority: ArrayLike | None = None,
    staging: ArrayLike | None = None,
    threads: int = 1,
    fusion: ArrayLike | None = None,
) -> Verdict:
    """Judge a batch of plans.

    Args:
        device: Plans × ops.
        priority: Plans × ops, or None for the graph's order.
        staging: Plans × devices, -1 for none, or None for none anywhere.
        threads: Plans are shared out over this many threads, outside the interpreter's lock.
        fusion: Plans × ops: groups as in a plan, or None for none anywhere.

    Raises:
        PlanError: A plan breaks a constraint, its staging room is too small, or its groups cannot
            be fused.
    """
    batch = _Batch.of(problem, device, priority, staging, threads, fusion)
    pipelined = problem.objective == "period"
    step_time, period, peak = batch.run(step=True, period=pipelined)
    overflow = np.maximum(peak - problem.arrays.capacity, 0).sum(axis=1)
    return Verdict((batch,), period if pipelined else step_time, step_time, peak, overflow)


@dataclass(frozen=True, eq=False)
class _Batch:
    """Plans as the kernel takes them: plans × ops and plans × devices."""

    problem: Problem
    device: NDArray[np.int32]
    priority: NDArray[np.float64] | None
    staging: NDArray[np.int64] | None
    threads: int = 1
    fusion: NDArray[np.int32] | None = None

    @classmethod
    def of(
        cls,
        problem: Problem,
        device: ArrayLike,
        priority: ArrayLike | None,
        staging: ArrayLike | None,
        threads: int = 1,
        fusion: ArrayLike | None = None,
    ) -> _Batch:
        a = problem.arrays
        rows = np.ascontiguousarray(np.atleast_2d(np.asarray(device)), dtype=np.int32)
        if rows.ndim != 2 or rows.shape[1] != a.ops:
            raise PlanError(f"a plan has {rows.shape[-1]} ops: the graph has {a.ops}")
        priorities = _matching_rows(rows, priority, np.float64, "priorities", a.ops)
        if priorities is not None and np.isnan(priorities).any():
            raise PlanError("a priority is not a number: expected one number per op")
        staging_bytes = _matching_rows(rows, staging, np.int64, "staging rooms", a.devices)
        groups = _matching_rows(rows, fusion, np.int32, "fused groups", a.ops)
        return cls(problem, rows, priorities, staging_bytes, threads, groups)

    @property
    def in_order(self) -> bool:
        return self.problem.discipline == "in order"

    def run(
        self, step: bool, period: bool
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
        """Step times, periods and peaks, as asked for."""
        plans = self.device, self.priority, self.staging, self.fusion
        overlap, compiled = self.problem.overlap, kernel(self.problem.arrays)
        if self.fusion is not None and not compiled.has_fused_parts:
            _set_fused_parts(compiled, self.problem)
        try:
            return compiled.judge(*plans, self.in_order, overlap, step, period, self.threads)
        except ValueError as error:
            self._explain(error)

    def timeline(self) -> dict[str, Any]:
        """The first plan's step, column by column."""
        plans = self.device, self.priority, self.staging
        try:
            return kernel(self.problem.arrays).timeline(*plans, self.in_order)
        except ValueError as error:
            self._explain(error)

    def _explain(self, error: ValueError) -> NoReturn:
        """The kernel says (reason, plan, op); say it in a sentence."""
        reason, row, op = error.args
        problem, a, device = self.problem, self.problem.arrays, self.device[row]
        if reason == "placement":
            check_placement(problem, device[None])
        if self.fusion is not None:  # which says it of the contracted problem
            priority = None if self.priority is None else self.priority[row]
            staging_bytes = None if self.staging is None else self.staging[row]
            fused = contract(
                problem, Plan.of(problem, device, priority, self.fusion[row], staging_bytes)
            )
            _Batch.of(fused.problem, fused.plan.placement, fused.plan.priority, staging_bytes).run(
                True, False
            )
        tensors = a.inputs[a.first_input[op] : a.first_input[op + 1]]
        sources = a.producer[tensors]
        need = int(a.sizes[tensors][a.is_weight[sources] & (device[sources] != device[op])].sum())
        buffer_bytes = self.staging[row, device[op]] if self.staging is not None else -1
        raise PlanError(
            f"op {problem.graph.ops[op].name!r} streams {need} bytes of weights to "
            f"{problem.cluster.devices[device[op]].name!r}, whose staging room is {buffer_bytes}: "
            "the room must hold all of one op's streamed weights"
        ) from None


def _matching_rows(
    plans: NDArray[np.int32], values: ArrayLike | None, dtype: type[_Scalar], name: str, width: int
) -> NDArray[_Scalar] | None:
    if values is None:
        return None
    rows = np.ascontiguousarray(np.atleast_2d(np.asarray(values)), dtype=dtype)
    if rows.shape != (len(plans), width):
        raise PlanError(f"{name} of shape {rows.shape}: expected {(len(plans), width)}")
    return rows


def simulate(problem: Problem, plan: Plan) -> Timeline:
    """One step of a plan: when and where everything ran, and memory over time.

    Raises:
        PlanError: The plan is not one of this problem's, or is malformed.
    """
    check_names(problem, plan)
    if plan.fusion is None:
        return _timeline(problem, plan)
    fused = contract(problem, plan)
    timeline = _timeline(fused.problem, fused.plan)
    transfers = timeline.transfers
    reader = np.where(transfers.reader >= 0, fused.first_member[transfers.reader], -1).astype(
        np.int32
    )
    return replace(
        timeline,
        plan=plan,
        start=timeline.start[fused.contracted_op],
        end=timeline.end[fused.contracted_op],
        transfers=replace(transfers, tensor=fused.original_tensor[transfers.tensor], reader=reader),
    )


@dataclass(frozen=True, eq=False)
class InFlight:
    """Several independent steps, all begun at once, as a pipeline runs them.

    Args:
        seconds: Until the last step ends.
        interval: Seconds between the ends of the first and the last step, per step.
        peak: The most bytes each device held at once, with that many steps in flight.
        overflow: Bytes over the devices' capacity, summed over devices.
    """

    steps: int
    seconds: float
    interval: float
    peak: NDArray[np.int64]
    overflow: int


def simulate_in_flight(problem: Problem, plan: Plan, steps: int) -> InFlight:
    """What `steps` steps in flight at once take, in time and in memory."""
    if steps < 2:
        raise PlanError(f"{steps} steps in flight: expected at least 2")
    check_names(problem, plan)
    if plan.fusion is not None:
        fused = contract(problem, plan)
        problem, plan = fused.problem, fused.plan
    order = plan_order(problem.arrays, None if plan.priority is None else plan.priority.tolist())
    unrolled, unrolled_plan, original = unroll(problem, plan, steps, order)
    timeline = _timeline(unrolled, unrolled_plan)
    step = np.zeros(len(original), dtype=np.int64)
    occurrences = np.zeros(len(problem.graph), dtype=np.int64)
    for at, op in enumerate(original):
        step[at] = occurrences[op]
        occurrences[op] += 1
    ends = np.zeros(steps)
    np.maximum.at(ends, step, timeline.end)
    interval = float(ends[-1] - ends[0]) / (steps - 1)
    return InFlight(steps, timeline.step_time, interval, timeline.peak, timeline.overflow)


def _timeline(problem: Problem, plan: Plan) -> Timeline:
    batch = _Batch.of(problem, plan.placement, plan.priority, plan.staging)
    columns = batch.timeline()
    period = batch.run(step=False, period=True)[1]
    transfers = [field.name for field in fields(Transfers)]
    memory = [field.name for field in fields(MemoryTrace)]
    return Timeline(
        plan=plan,
        step_time=columns["step_time"],
        period=float(period[0]),
        start=columns["start"],
        end=columns["end"],
        transfers=Transfers(**{name: columns[f"transfer_{name}"] for name in transfers}),
        memory=MemoryTrace(**{name: columns[f"memory_{name}"] for name in memory}),
        peak=columns["peak"],
        capacity=problem.arrays.capacity,
    )


def _set_fused_parts(compiled: Kernel, problem: Problem) -> None:
    """Tell a kernel what fused groups of its problem are made of."""
    graph = problem.graph
    reads = [
        count * graph.ops[source].outputs[output]
        for op in graph.ops
        for (source, output), count in Counter(op.inputs).items()  # in the order of `Arrays.inputs`
    ]
    parts = problem.costs.fused_parts(graph, problem.cluster)
    role = fusion_roles(problem, unknown_role=LIGHT_ROLE)
    compiled.set_fused_parts(parts, np.array(reads, dtype=np.int64), role)


def kernel(a: Arrays) -> Kernel:
    """The compiled kernel of these arrays, made on first use and kept as long as they live."""
    if a not in _kernels:
        _kernels[a] = Kernel(a)
    return _kernels[a]
