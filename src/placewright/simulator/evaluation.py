"""Evaluates batches of plans and simulates single plans with the compiled kernels.

The event kernel simulates any plan. The lane kernel evaluates plans of one order side by side, with
the same results, where its conditions hold (`in_lanes`); the rest goes to the event kernel.
"""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from placewright.errors import PlanError
from placewright.plan import (
    NO_STAGING,
    check_names,
    check_placement,
    check_staging,
    exact_array,
)
from placewright.plan_batch import PlanBatch
from placewright.simulator._kernel import Kernel
from placewright.timeline import MemoryTrace, Timeline, Transfers
from placewright.transforms import contract
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
        overflow: Bytes over the devices' capacity, summed over devices.
        lane_plans: The number of plans that needed no event-driven simulation; 0 where workers
            evaluated them.
    """

    batches: tuple[KernelBatch, ...]
    value: NDArray[np.float64]
    step_time: NDArray[np.float64]
    overflow: NDArray[np.int64]
    lane_plans: int = 0

    @cached_property
    def peak(self) -> NDArray[np.int64]:
        """Plans × devices: the memory peak in bytes; plans of lanes are simulated for it."""
        return np.concatenate([batch.peak for batch in self.batches])

    @cached_property
    def excess(self) -> NDArray[np.int64]:
        """Plans × devices: bytes over the devices' capacity."""
        return np.concatenate([batch.excess for batch in self.batches])

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
            np.concatenate([verdict.overflow for verdict in verdicts]),
            sum(verdict.lane_plans for verdict in verdicts),
        )


def judge_batch(problem: Problem, plans: PlanBatch, threads: int = 1) -> Verdict:
    """Evaluate a batch of plans: `judge` for contiguous rows.

    Args:
        threads: Threads that share the plans, outside the interpreter's lock.
    """
    check_batch(problem, plans)
    batch = KernelBatch(problem, plans, threads)
    if in_lanes(problem, plans):
        step_time, overflow, simulated = batch.lanes
        return Verdict((batch,), step_time, step_time, overflow, len(plans) - simulated)
    pipelined = problem.objective == "period"
    step_time, period, peak = batch.run(step=True, period=pipelined)
    batch.__dict__["peak"] = peak  # where the property looks
    overflow = np.maximum(peak - problem.arrays.capacity, 0).sum(axis=1)
    return Verdict((batch,), period if pipelined else step_time, step_time, overflow)


_MIN_LANE_PLANS = 8  # half of the lanes: with fewer plans events are as fast


def in_lanes(problem: Problem, plans: PlanBatch) -> bool:
    """Whether plans are evaluated side by side.

    They are if they share one order and neither stream weights nor fuse ops, devices run in the
    plan's order and share no issuer, every channel has one sender, and the step time is wanted.
    """
    priority, staging = plans.priority, plans.staging
    return bool(
        len(plans) >= _MIN_LANE_PLANS
        and problem.discipline == "in order"
        and problem.objective == "step"
        and plans.fusion is None
        and (staging is None or (staging == NO_STAGING).all())
        and (priority is None or (priority == priority[0]).all())
        and kernel(problem.arrays).has_lanes
    )


def as_batch(
    problem: Problem,
    placement: ArrayLike,
    priority: ArrayLike | None,
    staging: ArrayLike | None,
    fusion: ArrayLike | None = None,
) -> PlanBatch:
    """Plans as contiguous rows, from arrays or lists.

    Raises:
        PlanError: A shape is not that of the problem.
    """
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


def check_batch(problem: Problem, plans: PlanBatch) -> None:
    """Raise PlanError unless a batch has the problem's ops, priorities and legal buffers."""
    _check_ops(problem, plans.placement)
    if plans.priority is not None and np.isnan(plans.priority).any():
        raise PlanError("a priority is not a number: expected one number per op")
    if plans.staging is not None:
        check_staging(tuple(problem.cluster.position), plans.staging)


def _check_ops(problem: Problem, placement: NDArray[np.int32]) -> None:
    ops = problem.arrays.ops
    if placement.ndim != 2 or placement.shape[1] != ops:
        raise PlanError(f"a plan has {placement.shape[-1]} ops: the graph has {ops}")


@dataclass(frozen=True, eq=False)
class KernelBatch:
    """Plans of one problem, as the kernel evaluates them."""

    problem: Problem
    plans: PlanBatch
    threads: int = 1

    @cached_property
    def peak(self) -> NDArray[np.int64]:
        """Plans × devices."""
        return self.run(step=True, period=False)[2]

    @cached_property
    def excess(self) -> NDArray[np.int64]:
        """Plans × devices: bytes over the capacity; of plans of lanes, those over are simulated."""
        capacity = self.problem.arrays.capacity
        if "lanes" not in self.__dict__:
            over_capacity: NDArray[np.int64] = np.maximum(self.peak - capacity, 0)
            return over_capacity
        is_over = np.flatnonzero(self.lanes[1])
        excess = np.zeros((len(self.plans), len(capacity)), dtype=np.int64)
        if len(is_over):
            over = replace(self, plans=self.plans[is_over])
            excess[is_over] = np.maximum(over.run(step=True, period=False)[2] - capacity, 0)
        return excess

    @cached_property
    def lanes(self) -> tuple[NDArray[np.float64], NDArray[np.int64], int]:
        """Step times, overflow, and the number of plans that were simulated event by event."""
        priority = self.plans.priority
        try:
            step_time, overflow, _, _, simulated = kernel(self.problem.arrays).judge_lanes(
                self.plans.placement,
                None if priority is None else np.ascontiguousarray(priority[0]),
                self.problem.arrays.capacity,
                False,
                self.threads,
            )
        except ValueError as error:
            self._explain(error)
        return step_time, overflow, simulated

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
            KernelBatch(fused.problem, PlanBatch.repeat(fused.plan)).run(step=True, period=False)
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
        return build_timeline(problem, plan)
    fused = contract(problem, plan)
    timeline = build_timeline(fused.problem, fused.plan)
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
    plans = as_batch(problem, placement, priority, staging)
    if plans.staging is not None:
        check_staging(tuple(problem.cluster.position), plans.staging)
    batch = KernelBatch(problem, plans)
    return batch.timeline(problem.discipline == "in order" if in_order is None else in_order)


def build_timeline(problem: Problem, plan: Plan) -> Timeline:
    """One step of a plan without fused ops, that is known to be the problem's."""
    columns = step_columns(problem, plan.placement, plan.priority, plan.staging)
    plans = as_batch(problem, plan.placement, plan.priority, plan.staging)
    period = KernelBatch(problem, plans).run(step=False, period=True)[1]
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
