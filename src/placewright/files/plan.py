"""Plans in files: ops and devices by name, so that a person can edit them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from placewright.errors import PlanError, nearest
from placewright.files import validation
from placewright.files.header import body, make_header
from placewright.plan import NO_STAGING, Plan, check_staging
from placewright.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from placewright.files.validation import Data
    from placewright.problem import Problem

logger = logging.getLogger("placewright")

NOT_FUSED = -1  # the fusion of an op that is not fused
_T = TypeVar("_T", bound=np.generic)


def plan_data(plan: Plan) -> Data:
    """A plan as plain data."""
    data = make_header("plan") | {
        "graph": plan.graph,
        "cluster": plan.cluster,
        "device_names": list(plan.device_names),
        "placement": {
            op: plan.device_names[at] for op, at in zip(plan.ops, plan.placement, strict=True)
        },
    }
    if plan.priority is not None:
        data["priority"] = dict(zip(plan.ops, plan.priority.tolist(), strict=True))
    if plan.fusion is not None:
        data["fusion"] = _non_default(NOT_FUSED, plan.ops, plan.fusion)
    if plan.staging is not None:
        data["staging"] = _non_default(NO_STAGING, plan.device_names, plan.staging)
    return data


def read_plan(data: object, where: str = "") -> Plan:
    """The plan that plain data describe; `plan_for` fits it to a problem."""
    values = validation.fields(
        body(data, "plan", where),
        _PLAN,
        where,
        required=("placement",),
        renamed={"devices": "placement"},
    )
    op_devices: dict[str, str] = values["placement"]
    devices = {name: at for at, name in enumerate(_device_names(values))}
    ops = {name: at for at, name in enumerate(op_devices)}
    arrays: dict[str, NDArray[Any]] = {
        "placement": np.array([devices[name] for name in op_devices.values()], dtype=np.int32)
    }
    if "priority" in values:
        without_priority = next((op for op in ops if op not in values["priority"]), None)
        if without_priority is not None:
            raise PlanError(
                f"op {without_priority!r} has no priority: give one to every op or to none"
            )
        without_device = next((op for op in values["priority"] if op not in ops), None)
        if without_device is not None:
            raise PlanError(
                f"op {without_device!r} has a priority but no device: add it under placement, "
                "or remove its priority"
            )
        arrays["priority"] = _fill(values["priority"], ops, "priority", np.zeros(len(ops)))
    if "fusion" in values:
        unfused = np.full(len(ops), NOT_FUSED, dtype=np.int32)
        arrays["fusion"] = _fill(values["fusion"], ops, "fusion", unfused)
    if "staging" in values:
        unstaged = np.full(len(devices), NO_STAGING, dtype=np.int64)
        arrays["staging"] = _fill(values["staging"], devices, "staging", unstaged)
        check_staging(tuple(devices), arrays["staging"])
    for array in arrays.values():
        array.flags.writeable = False
    fingerprints = {key: values.get(key, "") for key in ("graph", "cluster")}
    return Plan(tuple(ops), tuple(devices), **(arrays | fingerprints))


def plan_for(problem: Problem, plan: Plan) -> Plan:
    """A plan fitted to a problem by the names of ops and devices, and checked.

    A staging buffer that is too small for the weights of an op is enlarged, with a warning.

    Raises:
        PlanError: An op or device of one is missing in the other, or a constraint is broken.
    """
    ops, devices = problem.graph.position, problem.cluster.position
    row = {name: at for at, name in enumerate(plan.ops)}
    _check_known(row, ops, "the plan places op", f"graph {problem.graph.name!r}")
    missing = [name for name in ops if name not in row]
    if missing:
        raise PlanError(
            f"the plan places {len(row)} ops, graph {problem.graph.name!r} has {len(ops)}: "
            f"op {missing[0]!r} has no device"
        )
    cluster = f"cluster {problem.cluster.name!r}"
    used_devices = [plan.device_names[at] for at in np.unique(plan.placement)]
    _check_known(used_devices, devices, "the plan uses device", cluster)
    staging = (
        None if plan.staging is None else _non_default(NO_STAGING, plan.device_names, plan.staging)
    )
    _check_known(staging or (), devices, "the plan stages on device", cluster)
    rows = np.array([row[name] for name in ops])
    column = np.array([devices.get(name, -1) for name in plan.device_names])
    return Plan.of(
        problem,
        placement=column[plan.placement[rows]],
        priority=None if plan.priority is None else plan.priority[rows],
        fusion=None if plan.fusion is None else plan.fusion[rows],
        staging=_grown_staging(problem, column[plan.placement[rows]], staging),
    )


def _grown_staging(
    problem: Problem, placement: NDArray[np.int64], staging: dict[str, int] | None
) -> dict[str, int] | None:
    """Staging buffers that hold the weights of every op, also where ops were moved by hand."""
    if not staging or (placement < 0).any():
        return staging
    required = problem.arrays.required_staging(placement)
    grown = dict(staging)
    for name, size in staging.items():
        needed = int(required[problem.cluster.position[name]])
        if size < needed:
            grown[name] = needed
            logger.warning(
                "the staging buffer on %s is %s, and an op streams %s of weights to it: it is "
                'now %s; to keep it, write "staging": {"%s": %d} in the plan',
                *(name, format_bytes(size), format_bytes(needed), format_bytes(needed)),
                *(name, needed),
            )
    return grown


def _device_names(values: Data) -> Iterable[str]:
    """The listed devices of the cluster, then those that only the placement names."""
    return dict.fromkeys([*values.get("device_names", ()), *values["placement"].values()])


def _non_default(
    default: int, names: Iterable[str], values: NDArray[np.integer[Any]]
) -> dict[str, int]:
    """The values that are not the default, by name."""
    pairs = zip(names, values.tolist(), strict=True)
    return {name: value for name, value in pairs if value != default}


def _fill(
    values: Mapping[str, float], position: Mapping[str, int], key: str, array: NDArray[_T]
) -> NDArray[_T]:
    _check_known(values, position, f"the plan's {key} names", "the plan")
    for name, value in values.items():
        array[position[name]] = value
    return array


def _check_known(names: Iterable[str], known: Mapping[str, int], subject: str, owner: str) -> None:
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise PlanError(
            f"{subject} {unknown!r}, which {owner} does not have: {nearest(unknown, known)}"
        )


_PLAN = {
    "graph": validation.text,
    "cluster": validation.text,
    "device_names": validation.texts,
    "placement": validation.mapping_of(validation.text),
    "priority": validation.mapping_of(validation.number),
    "fusion": validation.mapping_of(validation.int32),
    "staging": validation.mapping_of(validation.size),
}
