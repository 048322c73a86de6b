"""Fusing: a problem and a plan in, the same plan with ops fused where that is safe out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.plan import Plan
from placewright.solvers.orders.priorities import priority_rules
from placewright.transforms import FUSIBLE, contract
from placewright.union import Union

if TYPE_CHECKING:
    from placewright.problem import Problem

HEAVY = frozenset({"linear", "matmul", "convolution", "attention", "op"})
"""Kinds of which a fused group holds at most one: compilers append cheap ops to these."""


def fused(problem: Problem, plan: Plan) -> Plan | None:
    """The plan with each op fused into its only reader, where both are on one device.

    Merging along such edges never makes a cycle: every way out of the first op leads through its
    only reader, from which no way leads back. None if there is nothing to fuse.
    """
    a, ops = problem.arrays, problem.graph.ops
    fusible = np.array([op.kind in FUSIBLE for op in ops]) & a.turn
    heavy = [op.kind in HEAVY for op in ops]
    union = Union(a.ops)
    for op in np.flatnonzero(fusible).tolist():
        first, last = a.first_tensor[op], a.first_tensor[op + 1]
        readers = np.unique(a.readers[a.first_reader[first] : a.first_reader[last]])
        if len(readers) != 1 or a.kept[first:last].any():
            continue
        reader = int(readers[0])
        if not fusible[reader] or plan.device[reader] != plan.device[op]:
            continue
        one, other = union.find(op), union.find(reader)
        if heavy[one] and heavy[other]:
            continue
        heavy[min(one, other)] = heavy[one] or heavy[other]
        union.join(one, other)
    group = np.array([union.find(op) for op in range(a.ops)])
    size = np.bincount(group, minlength=a.ops)
    if size.max() < 2:
        return None
    fusion = np.where(size[group] > 1, group, -1)
    return Plan.of(problem, plan.device, plan.priority, fusion=fusion, staging=plan.staging)


def ordered(problem: Problem, plan: Plan) -> Plan:
    """A plan with fused ops in the best order that the priority rules find.

    An order that was good for single ops may make a fused group wait for an input that only its
    last member needs.
    """
    small = contract(problem, plan)
    device, staging = small.plan.device, small.plan.staging
    rules = list(priority_rules(small.problem, device, staging).values())
    if small.plan.priority is not None:
        rules.append(small.plan.priority)
    rows = np.stack(rules)
    rooms = None if staging is None else np.repeat(staging[None], len(rows), axis=0)
    verdict = simulator.judge(
        small.problem, np.repeat(device[None], len(rows), axis=0), rows, rooms
    )
    priority = rows[verdict.best()][small.op]
    return Plan.of(problem, plan.device, priority, fusion=plan.fusion, staging=plan.staging)
