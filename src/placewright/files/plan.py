"""Plans in files: ops and devices by name, so that a person can edit and a problem fit them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from placewright.errors import PlanError, nearest
from placewright.files import validation
from placewright.files.header import body, head
from placewright.plan import NO_STAGING, Plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from placewright.files.validation import Data
    from placewright.problem import Problem

ALONE = -1  # an op that is fused with no other
_T = TypeVar("_T", bound=np.generic)


def plan_data(plan: Plan) -> Data:
    """A plan as plain data."""
    data = head("plan") | {
        "graph": plan.graph,
        "cluster": plan.cluster,
        "device_names": list(plan.devices),
        "devices": {op: plan.devices[at] for op, at in zip(plan.ops, plan.device, strict=True)},
    }
    if plan.priority is not None:
        data["priority"] = dict(zip(plan.ops, plan.priority.tolist(), strict=True))
    if plan.fusion is not None:
        data["fusion"] = _but(ALONE, plan.ops, plan.fusion)
    if plan.staging is not None:
        data["staging"] = _but(NO_STAGING, plan.devices, plan.staging)
    return data


def read_plan(data: object, where: str = "") -> Plan:
    """The plan that plain data describe; `plan_for` fits it onto a problem."""
    found = validation.fields(body(data, "plan", where), _PLAN, where, need=("devices",))
    placed: dict[str, str] = found["devices"]
    devices = {name: at for at, name in enumerate(_names(found))}
    ops = {name: at for at, name in enumerate(placed)}
    arrays: dict[str, NDArray[Any]] = {
        "device": np.array([devices[name] for name in placed.values()], dtype=np.int32)
    }
    if "priority" in found:
        unranked = next((op for op in ops if op not in found["priority"]), None)
        if unranked is not None:
            raise PlanError(f"op {unranked!r} has no priority: give one to every op or to none")
        unplaced = next((op for op in found["priority"] if op not in ops), None)
        if unplaced is not None:
            raise PlanError(
                f"op {unplaced!r} has a priority but no device: add it under devices, "
                "or remove its priority"
            )
        arrays["priority"] = _filled(found["priority"], ops, "priority", np.zeros(len(ops)))
    if "fusion" in found:
        alone = np.full(len(ops), ALONE, dtype=np.int32)
        arrays["fusion"] = _filled(found["fusion"], ops, "fusion", alone)
    if "staging" in found:
        none = np.full(len(devices), NO_STAGING, dtype=np.int64)
        arrays["staging"] = _filled(found["staging"], devices, "staging", none)
        for name, room in found["staging"].items():
            if room < NO_STAGING:
                raise PlanError(f"the plan stages {room} bytes on {name!r}: expected >= 0")
    for array in arrays.values():
        array.flags.writeable = False
    prints = {key: found.get(key, "") for key in ("graph", "cluster")}
    return Plan(tuple(ops), tuple(devices), **(arrays | prints))


def plan_for(problem: Problem, plan: Plan) -> Plan:
    """A plan fitted onto a problem by the names of ops and devices, and checked.

    Raises:
        PlanError: An op or device of one is missing in the other, or a constraint is broken.
    """
    ops, devices = problem.graph.position, problem.cluster.position
    row = {name: at for at, name in enumerate(plan.ops)}
    _know(row, ops, "the plan places op", f"graph {problem.graph.name!r}")
    missing = [name for name in ops if name not in row]
    if missing:
        raise PlanError(
            f"the plan places {len(row)} ops, graph {problem.graph.name!r} has {len(ops)}: "
            f"op {missing[0]!r} has no device"
        )
    cluster = f"cluster {problem.cluster.name!r}"
    used = [plan.devices[at] for at in np.unique(plan.device)]
    _know(used, devices, "the plan uses device", cluster)
    staging = None if plan.staging is None else _but(NO_STAGING, plan.devices, plan.staging)
    _know(staging or (), devices, "the plan stages on device", cluster)
    rows = np.array([row[name] for name in ops])
    column = np.array([devices.get(name, -1) for name in plan.devices])
    return Plan.of(
        problem,
        device=column[plan.device[rows]],
        priority=None if plan.priority is None else plan.priority[rows],
        fusion=None if plan.fusion is None else plan.fusion[rows],
        staging=staging,
    )


def _names(found: Data) -> Iterable[str]:
    """The cluster's devices as listed, then those that only a person's edit names."""
    return dict.fromkeys([*found.get("device_names", ()), *found["devices"].values()])


def _but(default: int, names: Iterable[str], values: NDArray[np.integer[Any]]) -> dict[str, int]:
    """What is not default, by name."""
    pairs = zip(names, values.tolist(), strict=True)
    return {name: value for name, value in pairs if value != default}


def _filled(
    values: Mapping[str, float], position: Mapping[str, int], key: str, array: NDArray[_T]
) -> NDArray[_T]:
    _know(values, position, f"the plan's {key} names", "the plan")
    for name, value in values.items():
        array[position[name]] = value
    return array


def _know(names: Iterable[str], known: Mapping[str, int], what: str, whose: str) -> None:
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise PlanError(
            f"{what} {unknown!r}, which {whose} does not have: {nearest(unknown, known)}"
        )


_PLAN = {
    "graph": validation.text,
    "cluster": validation.text,
    "device_names": validation.texts,
    "devices": validation.named(validation.text),
    "priority": validation.named(validation.number),
    "fusion": validation.named(validation.int32),
    "staging": validation.named(validation.size),
}
