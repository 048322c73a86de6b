"""Problems and constraints in files: a problem contains its graph, cluster and costs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from placewright.errors import FileError, ProblemError
from placewright.files import validation
from placewright.files.cluster import cluster_data, read_cluster
from placewright.files.costs import costs_data, read_costs
from placewright.files.graph import graph_data, read_graph
from placewright.files.header import RESERVE_IN_LIMITS, VERSION, body, make_header, version_of
from placewright.problem import Constraints, Problem

if TYPE_CHECKING:
    from placewright.files.validation import Data


def problem_data(problem: Problem) -> Data:
    """A problem as plain data."""
    return make_header("problem") | {
        "discipline": problem.discipline,
        "objective": problem.objective,
        "overlap": bool(problem.overlap),
        "constraints": constraints_data(problem.constraints),
        "costs": costs_data(problem.costs),
        "cluster": cluster_data(problem.cluster),
        "graph": graph_data(problem.graph),
    }


def read_problem(data: object, where: str = "") -> Problem:
    """The problem that plain data describe."""
    required = ("graph", "cluster")
    parts = body(data, "problem", where)
    problem = Problem(**validation.fields(parts, _PROBLEM, where, required))
    limits = problem.constraints.limits
    if not limits or version_of(parts["constraints"]) > RESERVE_IN_LIMITS:
        return problem
    reserve = {device.name: device.reserve for device in problem.cluster.devices}
    usable = {name: max(0, limit - reserve.get(name, 0)) for name, limit in limits.items()}
    return replace(problem, constraints=replace(problem.constraints, limits=usable))


def constraints_data(constraints: Constraints) -> Data:
    """Constraints as plain data, without empty ones."""
    data = {
        "pins": dict(constraints.pins),
        "forbid": {name: list(devices) for name, devices in constraints.forbid.items()},
        "colocate": [list(group) for group in constraints.colocate],
        "limits": {name: int(limit) for name, limit in constraints.limits.items()},
    }
    return make_header("constraints") | {key: value for key, value in data.items() if value}


def read_constraints(data: object, where: str = "") -> Constraints:
    """The constraints that plain data describe.

    Raises:
        FileError: Also if they have limits that include reserves, which they do not tell.
    """
    constraints = _read_constraints(data, where)
    if constraints.limits and version_of(data) <= RESERVE_IN_LIMITS:
        raise FileError(
            f"{where or validation.THE_FILE} has limits of version {version_of(data)}, which "
            f'include the reserve of a device: take the reserve off them and set "version" to '
            f"{VERSION}"
        )
    return constraints


def _read_constraints(data: object, where: str = "") -> Constraints:
    values = validation.fields(body(data, "constraints", where), _CONSTRAINTS, where)
    if "colocate" in values:
        values["colocate"] = tuple(values["colocate"])
    for name, limit in values.get("limits", {}).items():
        if limit < 0:
            raise ProblemError(f"the limit of device {name!r} is {limit!r} bytes: expected >= 0")
    return Constraints(**values)


_CONSTRAINTS = {
    "pins": validation.mapping_of(validation.text),
    "forbid": validation.mapping_of(validation.texts),
    "colocate": validation.list_of(validation.texts),
    "limits": validation.mapping_of(validation.size),
}
_PROBLEM: dict[str, validation.Check] = {
    "discipline": validation.text,
    "objective": validation.text,
    "overlap": validation.flag,
    "constraints": _read_constraints,
    "costs": read_costs,
    "cluster": read_cluster,
    "graph": read_graph,
}
