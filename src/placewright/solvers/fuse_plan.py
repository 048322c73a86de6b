"""Fuses the ops of a plan as a compiler does, and orders the fused plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator
from placewright.plan import Plan
from placewright.plan_batch import PlanBatch
from placewright.solvers.ordering.priority_rules import rule_priorities
from placewright.transforms import contract, fuse_greedily

if TYPE_CHECKING:
    from placewright.problem import Problem


def fuse_ops(problem: Problem, plan: Plan) -> Plan | None:
    """The plan with the groups of `fuse_greedily`; None if there is nothing to fuse."""
    fusion = fuse_greedily(problem, plan.placement)
    if (fusion < 0).all():
        return None
    return Plan.of(problem, plan.placement, plan.priority, fusion=fusion, staging=plan.staging)


def reorder_fused(problem: Problem, plan: Plan) -> Plan:
    """A plan with fused ops in the best order that the priority rules find.

    An order that was good for single ops may make a fused group wait for an input that only its
    last member needs.
    """
    contracted = contract(problem, plan)
    fused_plan = contracted.plan
    rules = rule_priorities(contracted.problem, fused_plan.placement, fused_plan.staging)
    priorities = list(rules.values())
    if fused_plan.priority is not None:
        priorities.append(fused_plan.priority)
    rows = replace(PlanBatch.repeat(fused_plan, len(priorities)), priority=np.stack(priorities))
    verdict = simulator.judge_batch(contracted.problem, rows)
    priority = priorities[verdict.best()][contracted.contracted_op]
    return Plan.of(problem, plan.placement, priority, fusion=plan.fusion, staging=plan.staging)
