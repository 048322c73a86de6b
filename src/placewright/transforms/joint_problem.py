"""Joins the calls of a workload into one problem, whose plans are plans of all calls.

In the joint problem every weight exists once and the calls follow one another: a barrier, which
takes no time, waits for all ops of a call, and the ops of the next call wait for it. Times are
scaled by the calls' counts, so the step time of the whole is the workload's objective but for two
things: copies of weights may begin before the call that reads them, and a device has one staging
buffer for all calls. So a search finds good plans for the workload here, and the plans of the calls
(`split`) are then evaluated by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from placewright.graph import INPUT, STATE, VIEW, WEIGHT, Graph, Op, Tensor
from placewright.plan import NO_STAGING, Plan
from placewright.problem import Constraints, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placewright.cluster import Cluster
    from placewright.costs import FusedParts, Seconds
    from placewright.device import Link
    from placewright.workload import Workload

BARRIER_KIND = "barrier"
RELEASE_KIND = "release"  # reads an output of a call at its end, so that it lives until then


@dataclass(frozen=True, eq=False)
class JointProblem:
    """All calls of a workload as one problem, and the way back.

    Args:
        positions: For each call the joint op of each op of `workload.problems`.
    """

    workload: Workload
    problem: Problem
    positions: tuple[NDArray[np.int64], ...]

    def split(self, plan: Plan) -> tuple[Plan, ...]:
        """The plans of the calls, for `workload.problems`."""
        plans = []
        for problem, position in zip(self.workload.problems, self.positions, strict=True):
            placement = plan.placement[position]
            plans.append(
                Plan.of(
                    problem,
                    placement,
                    None if plan.priority is None else plan.priority[position],
                    staging=_required_buffers(problem, placement, plan.staging),
                )
            )
        return tuple(plans)

    def join(self, plans: Sequence[Plan]) -> Plan:
        """The joint plan, from plans of the calls for `workload.problems`.

        Its staging buffers are the largest of the calls'.
        """
        a = self.problem.arrays
        placement = np.full(a.ops, -1, dtype=np.int32)
        priority = np.arange(a.ops, dtype=np.float64)
        for plan, position in zip(plans, self.positions, strict=True):
            placement[position] = plan.placement
            if plan.priority is not None:  # calls stay one after the other, as in graph order
                own_order = np.argsort(plan.priority, kind="stable")
                priority[position[own_order]] = np.sort(position.astype(np.float64))
        in_unit = np.full(a.ops, -1, dtype=np.int32)
        np.maximum.at(in_unit, a.unit, placement)
        placement = np.where(placement < 0, in_unit[a.unit], placement)
        # Barriers go where the last op before them is.
        for op in np.flatnonzero(placement < 0).tolist():
            placement[op] = placement[op - 1]
        staging = None
        if any(plan.staging is not None for plan in plans):
            staging = np.maximum.reduce(
                [
                    np.full(a.devices, NO_STAGING) if plan.staging is None else plan.staging
                    for plan in plans
                ]
            )
            needed = a.required_staging(placement)
            staging = np.where(staging >= 0, np.maximum(staging, needed), staging)
        has_priority = any(plan.priority is not None for plan in plans)
        return Plan.of(self.problem, placement, priority if has_priority else None, staging=staging)


def join_calls(workload: Workload) -> JointProblem:
    """The joint problem of a workload's calls."""
    builder = _JointGraph(workload)
    for at in range(len(workload)):
        builder.add_call(at)
    return builder.joint_problem()


def _required_buffers(
    problem: Problem, placement: NDArray[np.int32], staging: NDArray[np.int64] | None
) -> NDArray[np.int64] | None:
    """The staging buffers that a call uses, each as large as in the joint plan."""
    if staging is None:
        return None
    used = problem.arrays.required_staging(placement) > 0
    buffers = np.where(used, staging, NO_STAGING)
    return buffers if (buffers != NO_STAGING).any() else None


class _JointGraph:
    """Collects the ops of the joint graph, call by call."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.ops: list[Op] = []
        self.origin: list[tuple[int, int] | None] = []  # joint op → call and op, for its costs
        self.allowed: list[NDArray[np.bool_]] = []
        self.colocate: list[tuple[str, ...]] = []
        self.outputs: tuple[Tensor, ...] = ()
        self.positions: list[NDArray[np.int64]] = []
        self.barrier: Tensor | None = None
        self.anywhere = np.ones(len(workload.cluster), dtype=bool)
        for row, (name, op) in enumerate(workload.weights.items()):
            position = int(workload.weight_positions[0, row])
            self._add(
                replace(op, name=f"weights/{name}", colocate=None, runs_on=()),
                None,
                workload.problems[0].arrays.allowed[position],
            )

    def add_call(self, at: int) -> None:
        workload, problem = self.workload, self.workload.problems[at]
        graph, a = problem.graph, problem.arrays
        is_last = at == len(workload) - 1
        weight_row = {name: row for row, name in enumerate(workload.weights)}
        joint_tensor: dict[Tensor, Tensor] = {}
        positions = np.zeros(len(graph), dtype=np.int64)
        is_followed = np.zeros(len(graph), dtype=bool)
        is_followed[a.producer[a.inputs[a.scheduled[a.reader]]]] = True
        ends: list[Tensor] = []
        first_op = len(self.ops)
        for op_at, op in enumerate(graph.ops):
            name, outputs = f"calls/{at}/{op.name}", op.outputs
            inputs = tuple(joint_tensor[tensor] for tensor in op.inputs)
            kind, aliases, resident = op.kind, op.aliases, op.resident
            if op.kind in (WEIGHT, STATE):
                weight = weight_row[op.name]
                positions[op_at] = weight
                is_read = any((op_at, output) in graph.readers for output in range(len(outputs)))
                if op.kind == STATE or not is_read:
                    for output in range(len(outputs)):
                        joint_tensor[op_at, output] = (weight, output)
                    continue
                # A view for each call: its copies take this call's time.
                inputs = tuple((weight, output) for output in range(len(outputs)))
                aliases = tuple((output, output) for output in range(len(outputs)))
                kind, resident = VIEW, 0
            elif op.kind == INPUT and self.barrier is not None:
                kind, inputs = "op", (self.barrier,)
            elif (
                a.scheduled[op_at]
                and self.barrier is not None
                and not any(source >= first_op and self._waits(source) for source, _ in inputs)
            ):
                inputs = (*inputs, self.barrier)
            if a.scheduled[op_at] and not is_followed[op_at] and not is_last:
                outputs = (*outputs, 0)
            position = self._add(
                replace(
                    op,
                    name=name,
                    kind=kind,
                    inputs=inputs,
                    outputs=outputs,
                    aliases=aliases,
                    resident=resident,
                    workspace=int(a.workspace[op_at]),
                    colocate=None,  # units are colocated below
                    runs_on=(),
                ),
                (at, op_at),
                a.allowed[op_at],
            )
            for output in range(len(op.outputs)):
                joint_tensor[op_at, output] = (position, output)
            if len(outputs) > len(op.outputs):
                ends.append((position, len(op.outputs)))
            if op.kind not in (WEIGHT, STATE):
                positions[op_at] = position
        self.positions.append(positions)
        members: dict[int, list[str]] = {}
        for op_at, unit in enumerate(a.unit.tolist()):
            members.setdefault(unit, []).append(self.ops[positions[op_at]].name)
        self.colocate += [tuple(names) for names in members.values() if len(names) > 1]
        outputs_by_op: dict[int, list[Tensor]] = {}
        for source, output in graph.outputs or ():
            if a.scheduled[source]:
                tensor = joint_tensor[source, output]
                outputs_by_op.setdefault(tensor[0], []).append(tensor)
        if is_last:
            self.outputs = tuple(tensor for each in outputs_by_op.values() for tensor in each)
            return
        if self.barrier is not None:
            ends.append(self.barrier)
        barrier = Op(f"barriers/{at}", BARRIER_KIND, tuple(ends))
        self.barrier = (self._add(barrier, None, self.anywhere), 0)
        for source, tensors in outputs_by_op.items():
            release = Op(
                f"releases/{self.ops[source].name}", RELEASE_KIND, (*tensors, self.barrier)
            )
            self._add(release, None, self.allowed[source])
            self.colocate.append((self.ops[source].name, release.name))

    def joint_problem(self) -> JointProblem:
        workload = self.workload
        cluster, first = workload.cluster, workload.calls[0].problem
        names = [device.name for device in cluster.devices]
        pins: dict[str, str] = {}
        forbid: dict[str, tuple[str, ...]] = {}
        for op, allowed in zip(self.ops, self.allowed, strict=True):
            if allowed.sum() == 1:
                pins[op.name] = names[int(allowed.argmax())]
            elif not allowed.all():
                forbid[op.name] = tuple(np.array(names)[~allowed].tolist())
        problem = Problem(
            Graph("workload", tuple(self.ops), self.outputs),
            cluster,
            _JointCosts(workload, tuple(self.origin)),
            Constraints(pins, forbid, tuple(self.colocate), dict(first.constraints.limits)),
            first.discipline,
            first.objective,
            first.overlap,
        )
        return JointProblem(workload, problem, tuple(self.positions))

    def _waits(self, source: int) -> bool:
        """Whether a joint op of the current call begins after the barrier."""
        origin = self.origin[source]
        if origin is None:
            return False
        at, op = origin
        problem = self.workload.problems[at]
        return bool(problem.arrays.scheduled[op]) or problem.graph.ops[op].kind == INPUT

    def _add(self, op: Op, origin: tuple[int, int] | None, allowed: NDArray[np.bool_]) -> int:
        self.ops.append(op)
        self.origin.append(origin)
        self.allowed.append(allowed)
        return len(self.ops) - 1


@dataclass(frozen=True, eq=False)
class _JointCosts:
    """The costs of the calls, each times its share of all calls; the rest takes no time."""

    workload: Workload
    origin: tuple[tuple[int, int] | None, ...]

    def op_seconds(self, graph: Graph, cluster: Cluster) -> Seconds:
        seconds = np.zeros((len(graph), len(cluster)))
        for position, origin in enumerate(self.origin):
            if origin is not None:
                at, op = origin
                seconds[position] = self._shares[at] * self.workload.problems[at].arrays.compute[op]
        return seconds

    def transfer_seconds(self, graph: Graph, links: Sequence[Link]) -> Seconds:
        problems = self.workload.problems
        by_call = [
            share * problem.costs.transfer_seconds(problem.graph, links)
            for share, problem in zip(self._shares, problems, strict=True)
        ]
        columns = []
        for op, origin in zip(graph.ops, self.origin, strict=True):
            seconds = np.zeros((len(links), len(op.outputs)))
            if origin is not None:
                at, own_op = origin
                first = int(problems[at].arrays.first_tensor[own_op])
                count = len(problems[at].graph.ops[own_op].outputs)
                seconds[:, :count] = by_call[at][:, first : first + count]
            columns.append(seconds)
        return np.concatenate(columns, axis=1)

    @property
    def _shares(self) -> Seconds:
        counts = self.workload.counts
        shares: Seconds = counts / counts.sum()
        return shares

    def fused_parts(self, graph: Graph, cluster: Cluster) -> FusedParts:
        raise NotImplementedError("the ops of a joint problem are not fused")
