"""The problem of placing a model on several hosts whose caller is on the first of them.

Inputs enter at rank 0, and outputs leave there. So inputs and states are pinned to rank 0's host,
and one more op, which takes no time, reads all outputs there: a plan pays for sending them back.
The plan that is found has that op, too, and loses it before it runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from placewright.costs import NOT_MEASURED, Table
from placewright.device import HOST
from placewright.graph import INPUT, STATE, Graph, Op
from placewright.problem import Constraints
from placewright.runtime.distributed.host_ranks import host_of

if TYPE_CHECKING:
    from placewright.cluster import Cluster
    from placewright.plan import Plan
    from placewright.problem import Problem

CALLER = "caller"
"""The name of the op that reads the outputs."""


def with_caller(problem: Problem) -> Problem:
    """The problem with inputs, states and the reader of all outputs on the first device's host."""
    graph, device = problem.graph, _caller_device(problem.cluster)
    pins = dict(problem.constraints.pins)
    for op in graph.ops:
        reads_state = any(graph.ops[source].kind == STATE for source, _ in op.inputs)
        if op.kind in (INPUT, STATE) or reads_state:
            pins.setdefault(op.name, device)
    outputs = tuple(dict.fromkeys(graph.outputs or ()))
    if outputs:
        caller = Op(CALLER, "output", outputs, (0,))
        graph = Graph(graph.name, (*graph.ops, caller), graph.outputs)
        pins[CALLER] = device
    given = problem.constraints
    constraints = Constraints(pins, given.forbid, given.colocate, given.limits)
    costs = problem.costs
    if outputs and isinstance(costs, Table):
        costs = _with_row(costs)
    return replace(problem, graph=graph, costs=costs, constraints=constraints)


def without_caller(plan: Plan, problem: Problem | None = None) -> Plan:
    """A plan without the reader of the outputs, as it runs.

    Args:
        problem: The problem before `with_caller`, if it is at hand.
    """
    if CALLER not in plan.ops:
        return plan
    kept = [row for row, name in enumerate(plan.ops) if name != CALLER]
    return replace(
        plan,
        ops=tuple(plan.ops[row] for row in kept),
        placement=plan.placement[kept],
        priority=None if plan.priority is None else plan.priority[kept],
        fusion=None if plan.fusion is None else plan.fusion[kept],
        graph="" if problem is None else problem.graph.fingerprint,
    )


def _caller_device(cluster: Cluster) -> str:
    """The CPU of the first device's host, or the first device where it has none."""
    first = cluster.devices[0]
    own = [device for device in cluster.devices if host_of(device.name) == host_of(first.name)]
    return next((device.name for device in own if device.kind == HOST), first.name)


def _with_row(table: Table) -> Table:
    """A table with a row for the reader of the outputs, which takes no time."""
    zeros = np.zeros((1, len(table.columns)))
    size = np.zeros(1, dtype=np.int64)
    return replace(
        table,
        ops=(*table.ops, CALLER),
        seconds=np.concatenate([table.seconds, zeros]),
        transfers=None if table.transfers is None else np.append(table.transfers, 0.0),
        issue=None if table.issue is None else np.concatenate([table.issue, zeros]),
        spread=None
        if table.spread is None
        else np.concatenate([table.spread, zeros + NOT_MEASURED]),
        workspace=None if table.workspace is None else np.concatenate([table.workspace, size]),
    )
