"""Unrolls several steps in flight that share weights into one problem and plan.

A device runs a step's ops in the plan's order, and of several steps the oldest whose next op is
ready. So each op hands its turn to the next one of its device and step: a tensor of no bytes.

If not all steps are in flight at once, a caller begins each one when an earlier one has ended. The
caller is one more device, without cost and with channels of its own, that runs an op between them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from placewright.cluster import Cluster
from placewright.device import Device, Link
from placewright.graph import INPUT, Graph, Op, Tensor
from placewright.plan import Plan
from placewright.problem import Constraints, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from placewright.costs import CostModel, FusedParts, Seconds

CALLER_DEVICE = "caller#"
NO_OP = -1
"""The original of an op of the caller."""


@dataclass(frozen=True, eq=False)
class UnrolledSteps:
    """Several steps as one problem.

    Args:
        original: The original of each op, or `NO_OP`.
        step: The step of each op; of a weight, the first one.
    """

    problem: Problem
    plan: Plan
    original: NDArray[np.int32]
    step: NDArray[np.int32]


def unroll(
    problem: Problem, plan: Plan, steps: int, order: Sequence[int], in_flight: int | None = None
) -> UnrolledSteps:
    """The problem of several independent steps, and its plan.

    Weights and states exist once, everything else once per step. Earlier steps have priority.

    Args:
        order: The scheduled ops, in the plan's order.
        in_flight: How many steps are in flight at once; a further one begins when the oldest has
            ended. None: all.
    """
    is_streaming = plan.staging is not None and bool((plan.staging >= 0).any())
    unrolled = _Unrolling(problem, plan, order, steps if in_flight is None else in_flight)
    for _ in range(steps):
        unrolled.add_step()
    original = np.array(unrolled.original, dtype=np.int32)
    step = np.array(unrolled.step, dtype=np.int32)
    is_caller = original == NO_OP
    placement = np.where(is_caller, len(problem.cluster), plan.placement[original])
    cluster = _with_caller(problem.cluster) if is_caller.any() else problem.cluster
    names = [device.name for device in cluster.devices]
    pins = {op.name: names[placement[at]] for at, op in enumerate(unrolled.ops) if op.kind == INPUT}
    unrolled_problem = replace(
        problem,
        graph=Graph(problem.graph.name, tuple(unrolled.ops), tuple(unrolled.outputs)),
        cluster=cluster,
        costs=_UnrolledCosts(problem, original, np.array(unrolled.tensors, dtype=np.int64)),
        constraints=Constraints(pins=pins, limits=problem.constraints.limits),
        discipline=problem.discipline if is_streaming else "ready",
    )
    has_order = plan.priority is not None or problem.discipline == "in order"
    priority = _step_priorities(problem, original, step, order, is_streaming)
    staging = plan.staging
    if staging is not None and len(names) > len(staging):
        staging = np.append(staging, -1)
    unrolled_plan = Plan.of(
        unrolled_problem, placement, priority if has_order else None, staging=staging
    )
    return UnrolledSteps(unrolled_problem, unrolled_plan, original, step)


@dataclass
class _Unrolling:
    """The graph of the steps so far.

    Args:
        order: The scheduled ops, in the plan's order.
        in_flight: How many steps are in flight at once.
    """

    problem: Problem
    plan: Plan
    order: Sequence[int]
    in_flight: int
    ops: list[Op] = field(default_factory=list)
    original: list[int] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    tensors: list[int] = field(default_factory=list)
    """The original of each tensor, or `NO_OP`."""
    outputs: list[Tensor] = field(default_factory=list)
    ends: list[list[Tensor]] = field(default_factory=list)
    """Of each step, what it ends with: turns that no op of it takes."""

    def __post_init__(self) -> None:
        graph = self.problem.graph
        self._shared: dict[int, int] = {}
        self._scheduled = set(self.order)
        counts = [len(op.outputs) for op in graph.ops]
        self._first_tensor = np.concatenate([[0], np.cumsum(counts)]).tolist()
        others = [at for at in range(len(graph)) if at not in self._scheduled]
        self._positions = [*others, *self.order]  # a topological order
        read = {source for at in self.order for source, _ in graph.ops[at].inputs}
        self._last = [at for at in self.order if at not in read]
        self._is_in_turn = self.problem.discipline == "in order"
        self._begins: Tensor | None = None

    def add_step(self) -> None:
        """Append the ops of the next step."""
        graph, resident = self.problem.graph, self.problem.arrays.is_resident
        number = len(self.ends)
        begins = self._add_begin(number)
        position: dict[int, int] = {}
        turn: dict[int, Tensor] = {}
        for at in self._positions:
            if at in self._shared:
                position[at] = self._shared[at]
                continue
            op, device = graph.ops[at], int(self.plan.placement[at])
            inputs = [(position[source], output) for source, output in op.inputs]
            kind, outputs = op.kind, op.outputs
            if begins is not None and not resident[at]:
                if kind == INPUT:
                    kind = "begin"
                if all(resident[source] for source, _ in op.inputs):
                    inputs.append(begins)
            if at in self._scheduled:
                outputs = (*outputs, 0)
                if self._is_in_turn and device in turn:
                    inputs.append(turn[device])
                turn[device] = (len(self.ops), len(op.outputs))
            position[at] = len(self.ops)
            if resident[at]:
                self._shared[at] = len(self.ops)
            name = op.name if resident[at] else f"{op.name}#{number}"
            self._add(op, at, number, name, kind, tuple(inputs), outputs)
        self.outputs += [(position[source], output) for source, output in graph.outputs or ()]
        self.ends.append([(position[at], len(graph.ops[at].outputs)) for at in self._last])

    def _add_begin(self, step: int) -> Tensor | None:
        """The caller begins a step, after those before it and the one that makes room for it."""
        if step < self.in_flight:
            return None
        inputs = [*self.ends[step - self.in_flight], *([self._begins] if self._begins else [])]
        self._add(Op("caller"), NO_OP, step, f"#{step}", "begin", tuple(inputs), (0,))
        self._begins = len(self.ops) - 1, 0
        return self._begins

    def _add(
        self,
        op: Op,
        original: int,
        step: int,
        name: str,
        kind: str,
        inputs: tuple[Tensor, ...],
        outputs: tuple[int, ...],
    ) -> None:
        self.ops.append(
            replace(
                op,
                name=name,
                kind=kind,
                inputs=inputs,
                outputs=outputs,
                colocate=None,
                runs_on=(),
            )
        )
        self.original.append(original)
        self.step.append(step)
        known = 0 if original == NO_OP else len(self.problem.graph.ops[original].outputs)
        first = 0 if original == NO_OP else self._first_tensor[original]
        self.tensors += [first + at if at < known else NO_OP for at in range(len(outputs))]


def _with_caller(cluster: Cluster) -> Cluster:
    """A cluster with one more device, which every other reaches at once."""
    link = Link(math.inf)
    links = dict(cluster.links)
    for device in cluster.devices:
        links[device.name, CALLER_DEVICE] = links[CALLER_DEVICE, device.name] = link
    return Cluster(cluster.name, (*cluster.devices, Device(CALLER_DEVICE, "caller")), links)


def _step_priorities(
    problem: Problem,
    original: NDArray[np.int32],
    step: NDArray[np.int32],
    order: Sequence[int],
    is_streaming: bool,
) -> NDArray[np.float64]:
    """Priorities by step, then by the plan's order.

    What begins a step goes first: at once, or before its step where devices run step after step.
    """
    ops = len(problem.graph)
    rank = np.full(ops, -1.0)
    rank[list(order)] = np.arange(len(order))
    ranks = np.where(original == NO_OP, -1.0, rank[original])
    priority = step.astype(np.float64) * ops + ranks
    return priority if is_streaming else np.where(ranks < 0, -1.0, priority)


@dataclass(frozen=True, eq=False)
class _UnrolledCosts:
    """The costs of the original problem, step after step; the caller and turns cost nothing."""

    problem: Problem
    original: NDArray[np.int32]
    tensors: NDArray[np.int64]

    def op_seconds(self, graph: Graph, cluster: Cluster) -> Seconds:
        base = self._base.op_seconds(self.problem.graph, self.problem.cluster)
        seconds = np.zeros((len(self.original), len(cluster)))
        is_op = self.original != NO_OP
        seconds[is_op, : base.shape[1]] = base[self.original[is_op]]
        return seconds

    def transfer_seconds(self, graph: Graph, links: Sequence[Link]) -> Seconds:
        base = self._base.transfer_seconds(self.problem.graph, links)
        return np.where(self.tensors == NO_OP, 0.0, base[:, self.tensors])

    def fused_parts(self, graph: Graph, cluster: Cluster) -> FusedParts:
        raise NotImplementedError("an unrolled problem is fused before it is unrolled")

    @property
    def _base(self) -> CostModel:
        return self.problem.costs
