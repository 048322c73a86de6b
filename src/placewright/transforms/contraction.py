"""Contraction: replaces each fused group of a plan by one op.

A fused group becomes one op on one device with the smallest priority of its members. Tensors
between its members disappear: they are never stored, sent or waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import GraphError, PlanError, nearest
from placewright.graph import INPUT, Graph, Op, Tensor, sort_topologically
from placewright.plan import Plan
from placewright.problem import Constraints, Problem
from placewright.transforms.fusible import FUSIBLE, HEAVY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from placewright.cluster import Cluster, Link
    from placewright.costs import CostModel, FusedParts, Seconds

FUSED_KIND = "fused"


@dataclass(frozen=True, eq=False)
class Contraction:
    """A problem and plan without fused groups, and the mapping to the original ones.

    Args:
        contracted_op: Each original op's position in the contracted graph.
        first_member: For each contracted op its first original member.
        original_tensor: For each contracted tensor the original one.
    """

    problem: Problem
    plan: Plan
    contracted_op: NDArray[np.int32]
    first_member: NDArray[np.int32]
    original_tensor: NDArray[np.int32]


def contract(problem: Problem, plan: Plan) -> Contraction:
    """Rule 9: each fused group of a plan as one op.

    Raises:
        PlanError: A group spans devices, holds a kind that cannot be fused or two heavy ops, or
            makes a cycle.
    """
    graph = problem.graph
    groups = _fused_groups(problem, plan)
    leader = np.arange(len(graph))
    for group in groups:
        leader[group] = group[0]
    merged, kept_tensors = _merge_groups(problem, leader, {group[0]: group for group in groups})
    try:
        contracted_graph = sort_topologically(
            graph.name, [op for _, op in merged], _graph_outputs(graph, merged, kept_tensors)
        )
    except GraphError as error:
        raise PlanError(f"the plan's fusion makes a cycle: {error}") from None
    first_member = np.array(
        [graph.position[op.name] for op in contracted_graph.ops], dtype=np.int32
    )
    position = np.empty(len(graph), dtype=np.int32)
    position[first_member] = np.arange(len(contracted_graph))
    first_tensor = np.concatenate([[0], np.cumsum([len(op.outputs) for op in graph.ops])])
    original_tensor = [
        int(first_tensor[source]) + output
        for op in first_member
        for source, output in kept_tensors[int(op)]
    ]
    costs = _ContractedCosts(
        problem.costs, graph, tuple(groups), first_member, np.array(original_tensor, dtype=np.int32)
    )
    names = [device.name for device in problem.cluster.devices]
    # The plan has been checked against the original constraints: only its inputs need their pins.
    pins = {
        op.name: names[plan.placement[graph.position[op.name]]]
        for op in contracted_graph.ops
        if op.kind == INPUT
    }
    contracted_problem = replace(
        problem,
        graph=contracted_graph,
        costs=costs,
        constraints=Constraints(pins=pins, limits=problem.constraints.limits),
    )
    priority = None
    if plan.priority is not None:
        lowest_priority = plan.priority.copy()
        np.minimum.at(lowest_priority, leader, plan.priority)
        priority = lowest_priority[first_member]
    return Contraction(
        contracted_problem,
        Plan.of(contracted_problem, plan.placement[first_member], priority, staging=plan.staging),
        position[leader].astype(np.int32),
        first_member,
        costs.original_tensor,
    )


@dataclass(frozen=True, eq=False)
class _ContractedCosts:
    """The costs of the original problem, except for fused groups."""

    base: CostModel
    graph: Graph
    groups: tuple[list[int], ...]
    first_member: NDArray[np.int32]
    original_tensor: NDArray[np.int32]

    def op_seconds(self, graph: Graph, cluster: Cluster) -> Seconds:
        seconds = self.base.op_seconds(self.graph, cluster).copy()
        fused = self.base.fused_parts(self.graph, cluster).seconds(self.graph, self.groups)
        for group, row in zip(self.groups, fused, strict=True):
            seconds[group[0]] = row
        return seconds[self.first_member]

    def transfer_seconds(self, graph: Graph, links: Sequence[Link]) -> Seconds:
        return self.base.transfer_seconds(self.graph, links)[:, self.original_tensor]

    def fused_parts(self, graph: Graph, cluster: Cluster) -> FusedParts:
        raise NotImplementedError("a contracted problem is not fused again")


def _fused_groups(problem: Problem, plan: Plan) -> list[list[int]]:
    """The members of each fused group, checked."""
    ops, names = problem.graph.ops, plan.device_names
    members: dict[int, list[int]] = {}
    for op, group in enumerate(plan.fusion.tolist() if plan.fusion is not None else []):
        if group >= 0:
            members.setdefault(group, []).append(op)
    groups = [group for group in members.values() if len(group) > 1]
    for group in groups:
        for op in group:
            if ops[op].kind not in FUSIBLE or not problem.arrays.scheduled[op]:
                raise PlanError(
                    f"op {ops[op].name!r} of kind {ops[op].kind!r} is in a fused group: "
                    f"this kind cannot be fused; {nearest(ops[op].kind, sorted(FUSIBLE))}"
                )
            if plan.placement[op] != plan.placement[group[0]]:
                raise PlanError(
                    f"ops {ops[group[0]].name!r} and {ops[op].name!r} are fused but on "
                    f"{names[plan.placement[group[0]]]!r} and {names[plan.placement[op]]!r}: "
                    "a fused group is on one device"
                )
        heavy = [ops[op].name for op in group if ops[op].kind in HEAVY]
        if len(heavy) > 1:
            raise PlanError(
                f"ops {heavy[0]!r} and {heavy[1]!r} are fused: "
                "a fused group holds one matrix product, convolution or attention at most"
            )
    return groups


def _merge_groups(
    problem: Problem, leader: NDArray[np.int64], groups: Mapping[int, list[int]]
) -> tuple[list[tuple[int, Op]], dict[int, list[Tensor]]]:
    """Merged ops, whose inputs are positions in this list, and the tensors each still makes."""
    graph, workspace = problem.graph, problem.arrays.workspace  # which may be measured
    kept_tensors: dict[int, list[Tensor]] = {}
    for op in range(len(graph)):
        if leader[op] != op:
            continue
        members = groups.get(op, [op])
        member_set = set(members)
        kept_tensors[op] = [
            (member, output)
            for member in members
            for output in range(len(graph.ops[member].outputs))
            if len(members) == 1 or graph.escapes((member, output), member_set)
        ]
    position = {op: at for at, op in enumerate(kept_tensors)}
    contracted_tensor = {
        tensor: (position[op], at)
        for op, tensors in kept_tensors.items()
        for at, tensor in enumerate(tensors)
    }
    merged = []
    for op, tensors in kept_tensors.items():
        members = groups.get(op, [op])
        member_set = set(members)
        external_inputs = [
            tensor
            for member in members
            for tensor in graph.ops[member].inputs
            if tensor[0] not in member_set
        ]
        inputs = [contracted_tensor[tensor] for tensor in dict.fromkeys(external_inputs)]
        aliases = []
        for at, tensor in enumerate(tensors):
            source = _alias_source(graph, tensor, member_set)
            if source is not None:
                aliases.append((at, inputs.index(contracted_tensor[source])))
        parts = [graph.ops[member] for member in members]
        merged.append(
            (
                op,
                replace(
                    graph.ops[op],
                    kind=FUSED_KIND if len(parts) > 1 else graph.ops[op].kind,
                    inputs=tuple(inputs),
                    outputs=tuple(graph.ops[member].outputs[output] for member, output in tensors),
                    flops=sum(part.flops for part in parts),
                    resident=sum(part.resident for part in parts),
                    workspace=max(int(workspace[member]) for member in members),
                    colocate=None,
                    runs_on=(),
                    aliases=tuple(aliases),
                ),
            )
        )
    return merged, kept_tensors


def _alias_source(graph: Graph, tensor: Tensor, inside: set[int]) -> Tensor | None:
    """The tensor from outside the group whose memory this one shares, if any."""
    while tensor[0] in inside:
        op = graph.ops[tensor[0]]
        source = dict(op.aliases).get(tensor[1])
        if source is None:
            return None
        tensor = op.inputs[source]
    return tensor


def _graph_outputs(
    graph: Graph, merged: list[tuple[int, Op]], kept_tensors: Mapping[int, list[Tensor]]
) -> tuple[Tensor, ...]:
    return tuple(
        (at, output)
        for at, (op, _) in enumerate(merged)
        for output, tensor in enumerate(kept_tensors[op])
        if tensor in graph.output_set
    )
