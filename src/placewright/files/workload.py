"""Workloads, their plans and their results in files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import PlanError
from placewright.files import validation
from placewright.files.header import body, make_header
from placewright.files.plan import plan_data, plan_for, read_plan
from placewright.files.problem import problem_data, read_problem
from placewright.files.result import read_milestone, read_option, read_result, result_data
from placewright.files.validation import plain_number
from placewright.plan import Plan
from placewright.version import __version__
from placewright.workload import Call, Workload
from placewright.workload_plan import WorkloadPlan
from placewright.workload_result import WorkloadResult

if TYPE_CHECKING:
    from placewright.files.validation import Data


def workload_data(workload: Workload) -> Data:
    """A workload as plain data: each call with its whole problem."""
    return make_header("workload") | {
        "calls": [
            {
                "name": call.name,
                "count": float(call.count),
                "problem": problem_data(call.problem),
            }
            for call in workload.calls
        ]
    }


def read_workload(data: object, where: str = "") -> Workload:
    """The workload that plain data describe."""
    values = validation.fields(body(data, "workload", where), _WORKLOAD, where, required=("calls",))
    return Workload(tuple(values["calls"]))


def workload_plan_data(plan: WorkloadPlan) -> Data:
    """A workload's plan as plain data: the devices of weights, and each call's plan."""
    return make_header("workload_plan") | {
        "weights": dict(plan.weights),
        "calls": {
            name: plan_data(call_plan)
            for name, call_plan in zip(plan.calls, plan.plans, strict=True)
        },
    }


def read_workload_plan(data: object, where: str = "") -> WorkloadPlan:
    """The plan that plain data describe; `workload_plan_for` fits it to a workload.

    Raises:
        PlanError: A call has a weight on another device than the plan says, or none has it.
    """
    values = validation.fields(
        body(data, "workload_plan", where), _PLAN, where, required=("weights", "calls")
    )
    weights: dict[str, str] = values["weights"]
    plans: dict[str, Plan] = values["calls"]
    if not plans:
        raise PlanError("the plan has no calls: expected one or more")
    unplaced = set(weights)
    for name, plan in plans.items():
        devices = [plan.device_names[at] for at in plan.placement]
        for op, device in zip(plan.ops, devices, strict=True):
            if weights.get(op, device) != device:
                raise PlanError(
                    f"call {name!r} has {op!r} on {device!r}, and the plan's weights have it on "
                    f"{weights[op]!r}: it has one device in all calls"
                )
            unplaced.discard(op)
    if unplaced:
        raise PlanError(f"the plan's weights name {min(unplaced)!r}, which no call has: remove it")
    return WorkloadPlan(tuple(plans), tuple(plans.values()), weights)


def workload_plan_for(workload: Workload, plan: WorkloadPlan) -> WorkloadPlan:
    """A plan fitted to a workload by the names of calls, ops and devices, and checked.

    Raises:
        PlanError: One of them is missing in the other, or a constraint is broken.
    """
    plans = {}
    for call in workload.calls:
        try:
            plans[call.name] = plan_for(call.problem, plan[call.name])
        except PlanError as error:
            raise PlanError(f"call {call.name!r}: {error}") from None
    extra = next((name for name in plan.calls if name not in plans), None)
    if extra is not None:
        raise PlanError(f"the plan has call {extra!r}, which the workload does not have")
    return WorkloadPlan.of(workload, plans)


def workload_result_data(result: WorkloadResult) -> Data:
    """A workload's result as plain data."""
    options = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in result.options.items()
    }
    return make_header("workload_result") | {
        "placewright_version": __version__,
        "method": result.solver,
        "found_by": result.found_by,
        "objective_value": plain_number(result.objective_value),
        "bound": plain_number(result.bound),
        "bound_name": result.bound_name,
        "gap": plain_number(result.gap),
        "fits": bool(result.fits),
        "overflow": int(result.overflow),
        "evaluations": int(result.evaluations),
        "seconds": float(result.seconds),
        "seed": int(result.seed),
        "history": [
            [int(count), float(at), plain_number(best)] for count, at, best in result.history
        ],
        **({"options": options} if options else {}),
        "counts": [float(count) for count in result.counts],
        "calls": [_without_plan(result_data(call)) for call in result.calls],
        "plan": workload_plan_data(result.plan),
    }


def read_workload_result(data: object, where: str = "") -> WorkloadResult:
    """The result that plain data describe."""
    required = [key for key in _RESULT if key not in (*_DERIVED, "found_by", "history", "options")]
    values = validation.fields(body(data, "workload_result", where), _RESULT, where, required)
    for key in _DERIVED:
        values.pop(key, None)
    plan: WorkloadPlan = values["plan"]
    calls, counts = values.pop("calls"), values.pop("counts")
    if not len(calls) == len(counts) == len(plan):
        raise PlanError(
            f"the result has {len(calls)} results and {len(counts)} counts of {len(plan)} calls: "
            "expected one for each"
        )
    if not all(count > 0 for count in counts):
        validation.refuse(list(counts), "counts", "numbers above 0")
    results = []
    for at, entry in enumerate(calls):
        table = validation.table(entry, f"calls[{at}]")
        full_plan = plan_data(_with_idle_weights(plan, at))
        results.append(read_result({**table, "plan": full_plan}, f"calls[{at}]"))
        if len(results[at].devices) != len(results[0].devices):
            raise PlanError(f"calls[{at}] has other devices than the first: expected the same")
        if results[at].objective != results[0].objective:
            raise PlanError(f"calls[{at}] has another objective than the first: expected the same")
    values["history"] = tuple(values.get("history", ()))
    return WorkloadResult(
        solver=values.pop("method"), calls=tuple(results), counts=tuple(counts), **values
    )


def _without_plan(data: Data) -> Data:
    return {key: value for key, value in data.items() if key != "plan"}


def _with_idle_weights(plan: WorkloadPlan, at: int) -> Plan:
    """A call's plan with the weights and states of the other calls behind its own ops."""
    own = plan.plans[at]
    known = set(own.ops)
    idle = [name for name in plan.weights if name not in known]
    if not idle:
        return own
    devices = {name: position for position, name in enumerate(own.device_names)}
    unknown = next((name for name in idle if plan.weights[name] not in devices), None)
    if unknown is not None:
        raise PlanError(
            f"weight {unknown!r} is on {plan.weights[unknown]!r}: call {plan.calls[at]!r} has "
            f"devices {', '.join(devices)}"
        )
    zeros = np.zeros(len(idle))
    return Plan(
        (*own.ops, *idle),
        own.device_names,
        np.append(own.placement, [devices[plan.weights[name]] for name in idle]).astype(np.int32),
        None if own.priority is None else np.append(own.priority, zeros),
        None if own.fusion is None else np.append(own.fusion, zeros - 1).astype(np.int32),
        own.staging,
        cluster=own.cluster,
    )


def _read_call(data: object, where: str) -> Call:
    return Call(**validation.fields(data, _CALL, where, required=("name", "problem")))


def _keep(value: Any, where: str) -> Any:
    """Anything; it is read later, with the plan."""
    return value


_CALL: dict[str, validation.Check] = {
    "name": validation.text,
    "count": validation.number,
    "problem": read_problem,
}
_WORKLOAD = {"calls": validation.list_of(_read_call)}
_PLAN = {
    "weights": validation.mapping_of(validation.text),
    "calls": validation.mapping_of(read_plan),
}
_DERIVED = ("placewright_version", "gap", "fits", "overflow", "objective_value")
_RESULT = {
    "placewright_version": validation.text,
    "method": validation.text,
    "found_by": validation.text,
    "objective_value": validation.rate,
    "bound": validation.rate,
    "bound_name": validation.text,
    "gap": validation.rate,
    "fits": validation.flag,
    "overflow": validation.integer,
    "evaluations": validation.integer,
    "seconds": validation.number,
    "seed": validation.integer,
    "history": validation.list_of(read_milestone),
    "options": validation.mapping_of(read_option),
    "counts": validation.list_of(validation.number),
    "calls": validation.list_of(_keep),
    "plan": read_workload_plan,
}
