"""Matches a plan to another capture of the same model.

The plan may have been made for another shape of arguments: then some ops have other names, or exist
for one shape only. The weights are the same for all shapes, so they identify the model.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import PlanError, nearest
from placewright.graph import INPUT, STATE, VIEW, WEIGHT
from placewright.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from placewright.graph import Graph


def match_plan(plan: Plan, graph: Graph) -> Plan:
    """A plan for a graph: ops are matched by name, else by module, else placed with their inputs.

    Raises:
        PlanError: The graph has a weight that the plan does not place: it is another model.
    """
    row_of = {name: index for index, name in enumerate(plan.ops)}
    if all(op.name in row_of for op in graph.ops) and len(row_of) == len(graph):
        # A model that was cast to a wider dtype has larger weights than the plan knows.
        devices = [int(plan.placement[row_of[op.name]]) for op in graph.ops]
        staging = _staging_sizes(plan, graph, devices)
        if staging is None or plan.staging is None or np.array_equal(staging, plan.staging):
            return plan
        return replace(plan, staging=staging)
    _check_weights(plan, graph, row_of)
    modules = _module_votes(plan)
    placement: list[int] = []
    for op in graph.ops:
        forward_name = op.name.partition(".backward")[0]  # a backward op runs with its forward op
        name = op.name if op.name in row_of else forward_name
        if name in row_of:
            placement.append(int(plan.placement[row_of[name]]))
            continue
        module_device = _enclosing_device(modules, op.module)
        input_devices = Counter(placement[source] for source, _ in op.inputs)
        placement.append(
            module_device
            if module_device is not None
            else input_devices.most_common(1)[0][0]
            if input_devices
            else 0
        )
    for position, op in enumerate(graph.ops):  # states and weights are written on their devices
        if op.kind == INPUT and op.name not in row_of:
            readers = graph.readers.get((position, 0), ())
            placement[position] = placement[min(readers)] if readers else placement[position]
        if op.kind == STATE and op.name not in row_of:
            votes = Counter(placement[reader] for reader in graph.readers.get((position, 0), ()))
            placement[position] = votes.most_common(1)[0][0] if votes else placement[position]
        for source, _ in op.inputs:
            if graph.ops[source].kind == STATE or (
                op.kind == VIEW and graph.ops[source].kind == WEIGHT
            ):
                placement[position] = placement[source]
        if op.kind == "optimizer":
            placement[position] = placement[op.inputs[0][0]]
    return Plan(
        tuple(op.name for op in graph.ops),
        plan.device_names,
        np.array(placement, dtype=np.int32),
        _priorities(plan, graph, row_of),
        None,
        _staging_sizes(plan, graph, placement),
        graph.fingerprint,
        plan.cluster,
    )


def _priorities(plan: Plan, graph: Graph, row_of: Mapping[str, int]) -> NDArray[np.float64] | None:
    """The plan's priorities; an op that the plan lacks follows its inputs.

    The two graphs of a training loop have most ops of a plan for the whole step, but inputs of
    their own. Of a plan that has less than half of the ops, the order says nothing.
    """
    computed = [op for op in graph.ops if op.kind not in (WEIGHT, INPUT, STATE, VIEW)]
    count = sum(op.name in row_of for op in computed)
    if plan.priority is None or 2 * count < len(computed):
        return None
    lowest = float(plan.priority.min())
    priorities: list[float] = []
    for op in graph.ops:
        if op.name in row_of:
            priorities.append(float(plan.priority[row_of[op.name]]))
        else:
            sources = [priorities[source] for source, _ in op.inputs]
            priorities.append(max(sources, default=lowest))
    return np.array(priorities)


def _check_weights(plan: Plan, graph: Graph, row_of: Mapping[str, int]) -> None:
    weights = [op.name for op in graph.ops if op.kind == WEIGHT and "." in op.name]
    unplaced = [name for name in weights if name not in row_of and "lifted_tensor" not in name]
    if unplaced:
        raise PlanError(
            f"the plan was made for another model: it does not place the weight {unplaced[0]!r} "
            f"({len(unplaced)} of {len(weights)} weights are missing; "
            f"{nearest(unplaced[0], row_of)})"
        )


def _module_votes(plan: Plan) -> dict[str, Counter[int]]:
    """How many ops of each module, with its submodules, are on each device."""
    votes: dict[str, Counter[int]] = {}
    for name, device in zip(plan.ops, plan.placement.tolist(), strict=True):
        path = name
        while path:
            path = path.rpartition(".")[0]
            votes.setdefault(path, Counter())[device] += 1
    return votes


def _enclosing_device(votes: Mapping[str, Counter[int]], path: str) -> int | None:
    """The device of most ops of a module, or of the nearest enclosing one that the plan has."""
    while path:
        if path in votes:
            return votes[path].most_common(1)[0][0]
        path = path.rpartition(".")[0]
    return None


def _staging_sizes(plan: Plan, graph: Graph, placement: list[int]) -> np.ndarray | None:
    """The plan's staging buffers, each large enough for every op."""
    if plan.staging is None:
        return None
    sizes = plan.staging.copy()
    for position, op in enumerate(graph.ops):
        target = placement[position]
        streamed_bytes = sum(
            graph.ops[source].outputs[output]
            for source, output in op.inputs
            if graph.ops[source].kind == WEIGHT and placement[source] != target
        )
        if sizes[target] >= 0:
            sizes[target] = max(int(sizes[target]), streamed_bytes)
    return sizes
