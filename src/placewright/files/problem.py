"""Problems and constraints in files: a problem contains its graph, cluster and costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placewright.errors import ProblemError
from placewright.files import validation
from placewright.files.cluster import cluster_data, read_cluster
from placewright.files.costs import costs_data, read_costs
from placewright.files.graph import graph_data, read_graph
from placewright.files.header import body, make_header
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
    return Problem(**validation.fields(body(data, "problem", where), _PROBLEM, where, required))


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
    """The constraints that plain data describe."""
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
    "constraints": read_constraints,
    "costs": read_costs,
    "cluster": read_cluster,
    "graph": read_graph,
}
