"""Evaluates batches of plans and simulates single plans with the compiled event kernel."""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from placewright.errors import PlanError
from placewright.plan import check_names, check_placement, check_staging, exact_array
from placewright.plan_batch import PlanBatch
from placewright.simulator._kernel import Kernel
from placewright.simulator.reference import plan_order
from placewright.timeline import MemoryTrace, Timeline, Transfers
from placewright.transforms import contract, unroll
from placewright.transforms.fusible import LIGHT_ROLE, fusion_roles
from placewright.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.problem_arrays import Arrays

_Scalar = TypeVar("_Scalar", np.int32, np.int64, np.float64)
_kernels: weakref.WeakKeyDictionary[Arrays, Kernel] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Verdict:
    """The quality of each plan of a batch.

    Args:
        value: The problem's objective, one entry per plan.
        step_time: Seconds of one step.
        peak: Plans × devices: the memory peak in bytes.
        overflow: Bytes over the devices' capacity, summed over devices.
    """

    batches: tuple[_KernelBatch, ...]
    value: NDArray[np.float64]
    step_time: NDArray[np.float64]
    peak: NDArray[np.int64]
    overflow: NDArray[np.int64]

    @cached_property
    def period(self) -> NDArray[np.float64]:
        """Seconds between pipelined steps; computed on first use, as few solvers need it."""
        return np.concatenate([batch.run(step=False, period=True)[1] for batch in self.batches])

    def best(self) -> int:
        """The best plan by (overflow, objective), the first on a tie."""
        return self.best_first(1)[0]

    def best_first(self, count: int) -> list[int]:
        """The best `count` plans by (overflow, objective), best first."""
        ranking: list[int] = np.lexsort((self.value, self.overflow))[:count].tolist()
        return ranking

    def key(self, at: int) -> tuple[int, float]:
        """Overflow and objective, by which plans are compared."""
        return int(self.overflow[at]), float(self.value[at])

    @classmethod
    def concatenate(cls, verdicts: Sequence[Verdict]) -> Verdict:
        """One verdict on the plans of all of them, one after the other."""
        return cls(
            tuple(batch for verdict in verdicts for batch in verdict.batches),
            np.concatenate([verdict.value for verdict in verdicts]),
            np.concatenate([verdict.step_time for verdict in verdicts]),
            np.concatenate([verdict.peak for verdict in verdicts]),
            np.concatenate([verdict.overflow for verdict in verdicts]),
        )


def judge(
    problem: Problem,
    placement: ArrayLike,
    priority: ArrayLike | None = None,
    staging: ArrayLike | None = None,
    threads: int = 1,
    fusion: ArrayLike | None = None,
) -> Verdict:
    """Evaluate a batch of plans.

    Args:
        placement: Plans × ops.
        priority: Plans × ops, or None for the graph's order.
        staging: Plans × devices, -1 for none, or None for none anywhere.
        threads: Threads that share the plans, outside the interpreter's lock.
        fusion: Plans × ops: groups as in a plan, or None for none anywhere.

    Raises:
        PlanError: A plan breaks a constraint, a staging buffer is too small, or groups cannot
            be fused.
    """
    return judge_batch(problem, _as_batch(problem, placement, priority, staging, fusion), threads)


def judge_batch(problem: Problem, plans: PlanBatch, threads: int = 1) -> Verdict:
    """Evaluate a batch of plans: `judge` for contiguous rows."""
    _check_ops(problem, plans.placement)
    if plans.priority is not None and np.isnan(plans.priority).any():
        raise PlanError("a priority is not a number: expected one number per op")
    if plans.staging is not None:
        check_staging(tuple(problem.cluster.position), plans.staging)
    batch = _KernelBatch(problem, plans, threads)
    pipelined = problem.objective == "period"
    step_time, period, peak = batch.run(step=True, period=pipelined)
    overflow = np.maximum(peak - problem.arrays.capacity, 0).sum(axis=1)
    return Verdict((batch,), period if pipelined else step_time, step_time, peak, overflow)


def _as_batch(
    problem: Problem,
    placement: ArrayLike,
    priority: ArrayLike | None,
    staging: ArrayLike | None,
    fusion: ArrayLike | None = None,
) -> PlanBatch:
    a = problem.arrays
    placements = exact_array(placement, np.int32, "placement")
    rows = np.ascontiguousarray(np.atleast_2d(placements))
    _check_ops(problem, rows)
    return PlanBatch(
        rows,
        _matching_rows(rows, priority, np.float64, "priorities", a.ops),
        _matching_rows(rows, staging, np.int64, "staging buffers", a.devices),
        _matching_rows(rows, fusion, np.int32, "fused groups", a.ops),
    )


def _check_ops(problem: Problem, placement: NDArray[np.int32]) -> None:
    ops = problem.arrays.ops
    if placement.ndim != 2 or placement.shape[1] != ops:
        raise PlanError(f"a plan has {placement.shape[-1]} ops: the graph has {ops}")


@dataclass(frozen=True, eq=False)
class _KernelBatch:
    """Plans of one problem, as the kernel evaluates them."""

    problem: Problem
    plans: PlanBatch
    threads: int = 1

    def run(
        self, step: bool, period: bool
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
        """Step times, periods and peaks; those not requested are empty."""
        plans = self.plans
        overlap, compiled = self.problem.overlap, kernel(self.problem.arrays)
        if plans.fusion is not None and not compiled.has_fused_parts:
            _set_fused_parts(compiled, self.problem)
        try:
            return compiled.judge(
                plans.placement,
                plans.priority,
                plans.staging,
                plans.fusion,
                self.problem.discipline == "in order",
                overlap,
                step,
                period,
                self.threads,
            )
        except ValueError as error:
            self._explain(error)

    def timeline(self, in_order: bool) -> dict[str, Any]:
        """The first plan's step, column by column."""
        plans = self.plans
        try:
            return kernel(self.problem.arrays).timeline(
                plans.placement, plans.priority, plans.staging, in_order
            )
        except ValueError as error:
            self._explain(error)

    def _explain(self, error: ValueError) -> NoReturn:
        """Raise the kernel's error (reason, plan, op) as a sentence."""
        reason, row, op = error.args
        problem, a, placement = self.problem, self.problem.arrays, self.plans.placement[row]
        if reason == "placement":
            check_placement(problem, placement[None])
        if self.plans.fusion is not None:  # the contracted problem has the op's real name
            fused = contract(problem, self.plans.plan(problem, row))
            _KernelBatch(fused.problem, PlanBatch.repeat(fused.plan)).run(step=True, period=False)
        staging = self.plans.staging
        buffer_bytes = max(0, int(staging[row, placement[op]])) if staging is not None else 0
        needed, name = (
            int(a.streamed_bytes(placement)[op]),
            problem.cluster.devices[placement[op]].name,
        )
        raise PlanError(
            f"op {problem.graph.ops[op].name!r} streams {format_bytes(needed)} of weights to "
            f"{name!r}, whose staging buffer has {format_bytes(buffer_bytes)}: it must hold all "
            f"weights that one op streams: give the plan staging={{{name!r}: {needed}}} or more"
        ) from None


def _matching_rows(
    plans: NDArray[np.int32], values: ArrayLike | None, dtype: type[_Scalar], name: str, width: int
) -> NDArray[_Scalar] | None:
    if values is None:
        return None
    rows = np.ascontiguousarray(np.atleast_2d(exact_array(values, dtype, name)))
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
    """Several independent steps that start at once, as in a pipeline.

    Args:
        seconds: Until the last step ends.
        interval: Seconds between the ends of the first and the last step, per step.
        peak: The memory peak of each device in bytes, with this many steps in flight.
        overflow: Bytes over the devices' capacity, summed over devices.
    """

    steps: int
    seconds: float
    interval: float
    peak: NDArray[np.int64]
    overflow: int


def simulate_in_flight(problem: Problem, plan: Plan, steps: int) -> InFlight:
    """Time and memory of `steps` steps in flight at once."""
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


def step_columns(
    problem: Problem,
    placement: ArrayLike,
    priority: ArrayLike | None = None,
    staging: ArrayLike | None = None,
    in_order: bool | None = None,
) -> dict[str, Any]:
    """One plan's step as arrays by name, from which `Timeline` is made.

    Args:
        in_order: The discipline, if it is not the problem's.
    """
    plans = _as_batch(problem, placement, priority, staging)
    if plans.staging is not None:
        check_staging(tuple(problem.cluster.position), plans.staging)
    batch = _KernelBatch(problem, plans)
    return batch.timeline(problem.discipline == "in order" if in_order is None else in_order)


def _timeline(problem: Problem, plan: Plan) -> Timeline:
    columns = step_columns(problem, plan.placement, plan.priority, plan.staging)
    plans = _as_batch(problem, plan.placement, plan.priority, plan.staging)
    period = _KernelBatch(problem, plans).run(step=False, period=True)[1]
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
    """Give a kernel the costs of fused groups of its problem."""
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
    """The compiled kernel of these arrays, cached for as long as they live."""
    if a not in _kernels:
        _kernels[a] = Kernel(a)
    return _kernels[a]
