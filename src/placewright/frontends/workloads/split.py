"""The text of a split file of the dnn-partitioning release in, a Plan out."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING

import numpy as np

from placewright.cluster import HOST
from placewright.errors import FileError, PlanError
from placewright.frontends.workloads.checks import (
    found,
    objects,
    parse_json,
    place,
)
from placewright.plan import Plan

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from placewright.problem import Problem


def read_plan(problem: Problem, path: Path, text: str) -> Plan:
    """The plan that a split's text describes.

    The n-th entry of `fpgas` is the n-th device that is not a host, the n-th of `cpus` the n-th
    host. A node that no entry lists follows its colour class.

    Raises:
        FileError: The text is not a split.
        PlanError: It does not fit the problem.
    """
    where = place(path)
    data = parse_json(where, text)
    devices = problem.cluster.devices
    device = np.full(len(problem.graph), -1, dtype=np.int32)
    for key, host in (("fpgas", False), ("cpus", True)):
        targets = [at for at, target in enumerate(devices) if (target.kind == HOST) == host]
        for number, (spot, entry) in enumerate(objects(where, data, key)):
            identities = entry.get("nodes")
            if not isinstance(identities, list):
                raise FileError(f"{spot} {found('nodes', identities)}: expected a list of ids")
            if identities and number >= len(targets):
                raise PlanError(
                    f"{spot} lists nodes: cluster {problem.cluster.name!r} has only "
                    f"{len(targets)} of these"
                )
            for identity in identities:
                op = _op(problem, spot, identity)
                if device[op] not in (-1, targets[number]):
                    raise PlanError(f"{spot} lists node {identity}, as an earlier entry does")
                device[op] = targets[number]
    device = _completed(device, problem.arrays.unit)
    if (device < 0).any():
        name = problem.graph.ops[int(device.argmin())].name
        raise PlanError(f"{where} lists neither node {name} nor another of its colour class")
    try:
        return Plan.of(problem, device)
    except PlanError as error:
        raise PlanError(f"{where}: {error}") from None


def _op(problem: Problem, spot: str, identity: object) -> int:
    if isinstance(identity, bool) or not isinstance(identity, int):
        raise FileError(f"{spot} lists node {reprlib.repr(identity)}: expected a whole number")
    op = problem.graph.position.get(str(identity))
    if op is None:
        name = problem.graph.name
        raise PlanError(f"{spot} lists node {reprlib.repr(identity)}: graph {name!r} has none such")
    return op


def _completed(
    device: NDArray[np.int32],
    unit: NDArray[np.int32],
) -> NDArray[np.int32]:
    """Devices with ops that have none (-1) following an op of their unit that has one."""
    chosen = device >= 0
    of_unit = np.full(int(unit.max()) + 1, -1, dtype=np.int32)
    of_unit[unit[chosen]] = device[chosen]
    return np.where(chosen, device, of_unit[unit])
