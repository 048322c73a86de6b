"""Fusing: a problem and a plan in, the same plan with ops fused as a compiler does out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.plan import Plan
from placewright.solvers.ordering.priority_rules import priority_rules
from placewright.transforms import contract, greedy

if TYPE_CHECKING:
    from placewright.problem import Problem


def fused(problem: Problem, plan: Plan) -> Plan | None:
    """The plan with the groups that `greedy` makes of it; None if there is nothing to fuse."""
    fusion = greedy(problem, plan.device)
    if (fusion < 0).all():
        return None
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
