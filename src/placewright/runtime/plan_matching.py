"""A plan and a program of the same model in, the plan for that program out.

The plan may have been made for another shape: then some ops have other names, or are there for one
shape only. The weights are the same in all of them, so they say whether it is the same model.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import PlanError, nearest
from placewright.graph import STATE, VIEW, WEIGHT
from placewright.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placewright.graph import Graph


def carry(plan: Plan, graph: Graph) -> Plan:
    """A plan for a graph: ops by name, others by their module, others with what they read.

    Raises:
        PlanError: The graph has a weight that the plan does not place: it is another model.
    """
    row = {name: at for at, name in enumerate(plan.ops)}
    if all(op.name in row for op in graph.ops) and len(row) == len(graph):
        return plan
    _check(plan, graph, row)
    modules = _modules(plan)
    device: list[int] = []
    for op in graph.ops:
        if op.name in row:
            device.append(int(plan.device[row[op.name]]))
            continue
        near = _near(modules, op.module)
        read = Counter(device[source] for source, _ in op.inputs)
        device.append(near if near is not None else read.most_common(1)[0][0] if read else 0)
    for position, op in enumerate(graph.ops):  # a state is read and written where it lives
        if op.kind == STATE and op.name not in row:
            votes = Counter(device[reader] for reader in graph.readers.get((position, 0), ()))
            device[position] = votes.most_common(1)[0][0] if votes else device[position]
        for source, _ in op.inputs:
            if graph.ops[source].kind == STATE or (
                op.kind == VIEW and graph.ops[source].kind == WEIGHT
            ):
                device[position] = device[source]
    known = plan.priority is not None and all(op.name in row for op in graph.ops)
    rows = [row[op.name] for op in graph.ops] if known else []
    return Plan(
        tuple(op.name for op in graph.ops),
        plan.devices,
        np.array(device, dtype=np.int32),
        plan.priority[rows] if known and plan.priority is not None else None,
        None,
        _rooms(plan, graph, device),
        graph.fingerprint,
        plan.cluster,
    )


def _check(plan: Plan, graph: Graph, row: Mapping[str, int]) -> None:
    weights = [op.name for op in graph.ops if op.kind == WEIGHT and "." in op.name]
    strange = [name for name in weights if name not in row and "lifted_tensor" not in name]
    if strange:
        raise PlanError(
            f"the plan was made for another model: it does not place the weight {strange[0]!r} "
            f"({len(strange)} of {len(weights)} weights miss; {nearest(strange[0], row)})"
        )


def _modules(plan: Plan) -> dict[str, Counter[int]]:
    """How many of the ops of each module, inner ones included, are on each device."""
    found: dict[str, Counter[int]] = {}
    for name, device in zip(plan.ops, plan.device.tolist(), strict=True):
        path = name
        while path:
            path = path.rpartition(".")[0]
            found.setdefault(path, Counter())[device] += 1
    return found


def _near(modules: Mapping[str, Counter[int]], path: str) -> int | None:
    """The device of most ops of a module, or of the next one around it that the plan knows."""
    while path:
        if path in modules:
            return modules[path].most_common(1)[0][0]
        path = path.rpartition(".")[0]
    return None


def _rooms(plan: Plan, graph: Graph, device: list[int]) -> np.ndarray | None:
    """The plan's staging rooms, each large enough for any one op."""
    if plan.staging is None:
        return None
    rooms = plan.staging.copy()
    for position, op in enumerate(graph.ops):
        place = device[position]
        need = sum(
            graph.ops[source].outputs[output]
            for source, output in op.inputs
            if graph.ops[source].kind == WEIGHT and device[source] != place
        )
        if rooms[place] >= 0:
            rooms[place] = max(int(rooms[place]), need)
    return rooms
