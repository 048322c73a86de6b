"""Plans for several calls of one model: which of them a graph of TorchDynamo's runs under.

Prefill and decode of a model have ops of the same names, and so have prompts of two lengths. So the
plan whose ops have most names in common with a graph's is taken, and of those that are about equal
the one that was made for the nearest number of FLOPs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from placewright.runtime.plan_matching import match_plan
from placewright.workload_plan import WorkloadPlan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from placewright.graph import Graph
    from placewright.plan import Plan

NAME_TOLERANCE = 0.1
"""Plans whose names match a graph's almost as well as the best are told apart by FLOPs."""


@dataclass(frozen=True)
class PlannedCall:
    """The plan of one call.

    Args:
        flops: The FLOPs of the call that it was made for; 0: unknown.
        name: Of the call, such as `decode`.
        seconds: Its predicted time; 0: unknown.
    """

    plan: Plan
    flops: float = 0.0
    name: str = ""
    seconds: float = 0.0


def plan_calls(
    plan: Plan | WorkloadPlan,
    flops: Sequence[float] | None = None,
    seconds: Sequence[float] | None = None,
) -> tuple[PlannedCall, ...]:
    """The plan of each call; each places all weights of the model.

    Args:
        flops: The FLOPs of each call, where they are known.
        seconds: The predicted time of each call, where it is known.
    """
    if not isinstance(plan, WorkloadPlan):
        return (PlannedCall(plan),)
    unknown = [0.0] * len(plan.plans)
    return tuple(
        PlannedCall(with_all_weights(call_plan, plan.weights), call_flops, name, call_seconds)
        for name, call_plan, call_flops, call_seconds in zip(
            plan.calls, plan.plans, flops or unknown, seconds or unknown, strict=True
        )
    )


def choose_plan(planned_calls: Sequence[PlannedCall], graph: Graph) -> Plan:
    """The plan for a graph, of several for calls of the same model, matched to its ops.

    Raises:
        PlanError: The graph has a weight that no plan places.
    """
    names = {op.name for op in graph.ops}
    likeness = [_likeness(names, call.plan) for call in planned_calls]
    alike = [
        call
        for call, value in zip(planned_calls, likeness, strict=True)
        if value >= max(likeness) - NAME_TOLERANCE
    ]
    flops = sum(op.flops for op in graph.ops)
    best = min(alike, key=lambda call: _distance(call.flops, flops))
    return match_plan(best.plan, graph)


def with_all_weights(plan: Plan, weights: Mapping[str, str]) -> Plan:
    """The plan of a call that also places the weights which other calls read.

    Args:
        weights: The device of every weight of the model, by name.
    """
    known = set(plan.ops)
    others = [name for name in weights if name not in known]
    if not others:
        return plan
    devices = [plan.device_names.index(weights[name]) for name in others]
    return replace(
        plan,
        ops=(*plan.ops, *others),
        placement=np.concatenate([plan.placement, np.array(devices, dtype=np.int32)]),
        priority=None
        if plan.priority is None
        else np.concatenate([plan.priority, np.zeros(len(others))]),
        fusion=None
        if plan.fusion is None
        else np.concatenate([plan.fusion, np.full(len(others), -1, dtype=np.int32)]),
    )


def _likeness(names: set[str], plan: Plan) -> float:
    """The share of all names, of graph and plan, that both have."""
    common = names & set(plan.ops)
    return len(common) / max(1, len(names | set(plan.ops)))


def _distance(mine: float, other: float) -> float:
    """How many times one number is the other, as a logarithm."""
    return abs(math.log(max(mine, 1.0)) - math.log(max(other, 1.0)))
