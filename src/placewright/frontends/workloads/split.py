"""Reads a split file of the dnn-partitioning release as a Plan."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING

import numpy as np

from placewright.device import HOST
from placewright.errors import FileError, PlanError
from placewright.frontends.text_files import file_label
from placewright.frontends.workloads.checks import describe_value, iter_objects, parse_json
from placewright.plan import Plan

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from placewright.problem import Problem


def read_plan(problem: Problem, path: Path, text: str) -> Plan:
    """The plan in a split's text.

    The n-th entry of `fpgas` is the n-th device that is not a host, the n-th of `cpus` the n-th
    host. A node that no entry lists follows its colour class.

    Raises:
        FileError: The text is not a split.
        PlanError: It does not fit the problem.
    """
    file = file_label(path)
    data = parse_json(file, text)
    devices = problem.cluster.devices
    placement = np.full(len(problem.graph), -1, dtype=np.int32)
    for key, is_host in (("fpgas", False), ("cpus", True)):
        candidates = [at for at, target in enumerate(devices) if (target.kind == HOST) == is_host]
        for number, (location, entry) in enumerate(iter_objects(file, data, key)):
            node_ids = entry.get("nodes")
            if not isinstance(node_ids, list):
                raise FileError(
                    f"{location} {describe_value('nodes', node_ids)}: expected a list of ids"
                )
            if node_ids and number >= len(candidates):
                raise PlanError(
                    f"{location} lists nodes: cluster {problem.cluster.name!r} has only "
                    f"{len(candidates)} of these"
                )
            for node_id in node_ids:
                op = _op_position(problem, location, node_id)
                if placement[op] not in (-1, candidates[number]):
                    raise PlanError(f"{location} lists node {node_id}, as an earlier entry does")
                placement[op] = candidates[number]
    placement = _complete_units(placement, problem.arrays.unit)
    if (placement < 0).any():
        name = problem.graph.ops[int(placement.argmin())].name
        raise PlanError(f"{file} lists neither node {name} nor another of its colour class")
    try:
        return Plan.of(problem, placement)
    except PlanError as error:
        raise PlanError(f"{file}: {error}") from None


def _op_position(problem: Problem, location: str, node_id: object) -> int:
    if isinstance(node_id, bool) or not isinstance(node_id, int):
        raise FileError(f"{location} lists node {reprlib.repr(node_id)}: expected a whole number")
    op = problem.graph.position.get(str(node_id))
    if op is None:
        name = problem.graph.name
        raise PlanError(
            f"{location} lists node {reprlib.repr(node_id)}: graph {name!r} has no such node"
        )
    return op


def _complete_units(
    placement: NDArray[np.int32],
    unit: NDArray[np.int32],
) -> NDArray[np.int32]:
    """The placement, with unplaced ops (-1) on the device of a placed op of their unit."""
    is_placed = placement >= 0
    unit_device = np.full(int(unit.max()) + 1, -1, dtype=np.int32)
    unit_device[unit[is_placed]] = placement[is_placed]
    return np.where(is_placed, placement, unit_device[unit])
