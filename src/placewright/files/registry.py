"""Registry of file kinds: turns an object into plain data, and back by the kind in the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from placewright.cluster import Cluster
from placewright.costs import CostModel
from placewright.errors import FileError, nearest
from placewright.files.cluster import cluster_data, read_cluster
from placewright.files.costs import costs_data, read_costs
from placewright.files.graph import graph_data, read_graph
from placewright.files.header import kind_of
from placewright.files.plan import plan_data, read_plan
from placewright.files.problem import (
    constraints_data,
    problem_data,
    read_constraints,
    read_problem,
)
from placewright.files.result import read_result, result_data
from placewright.files.timeline import read_timeline, timeline_data
from placewright.files.workload import (
    read_workload,
    read_workload_plan,
    read_workload_result,
    workload_data,
    workload_plan_data,
    workload_result_data,
)
from placewright.graph import Graph
from placewright.plan import Plan
from placewright.problem import Constraints, Problem
from placewright.result import Result
from placewright.timeline import Timeline
from placewright.workload import Workload
from placewright.workload_plan import WorkloadPlan
from placewright.workload_result import WorkloadResult

if TYPE_CHECKING:
    from placewright.files.validation import Data

Noun = (
    Graph
    | Cluster
    | CostModel
    | Constraints
    | Problem
    | Plan
    | Timeline
    | Result
    | Workload
    | WorkloadPlan
    | WorkloadResult
)

_READERS = {
    "graph": read_graph,
    "cluster": read_cluster,
    "costs": read_costs,
    "constraints": read_constraints,
    "problem": read_problem,
    "plan": read_plan,
    "timeline": read_timeline,
    "result": read_result,
    "workload": read_workload,
    "workload_plan": read_workload_plan,
    "workload_result": read_workload_result,
}


def to_data(noun: Noun) -> Data:
    """A noun as plain data, ready for strict JSON."""
    match noun:
        case Graph():
            return graph_data(noun)
        case Cluster():
            return cluster_data(noun)
        case Constraints():
            return constraints_data(noun)
        case Problem():
            return problem_data(noun)
        case Plan():
            return plan_data(noun)
        case Timeline():
            return timeline_data(noun)
        case Result():
            return result_data(noun)
        case Workload():
            return workload_data(noun)
        case WorkloadPlan():
            return workload_plan_data(noun)
        case WorkloadResult():
            return workload_result_data(noun)
        case _:
            return costs_data(noun)


def from_data(data: object, kind: str | None = None) -> Any:
    """The noun that plain data describe; where a plan is expected, a result works too.

    Raises:
        FileError: The data are of another kind or version.
        PlacewrightError: The noun is malformed.
    """
    if kind is not None and kind not in _READERS:
        raise FileError(f"kind {kind!r} is unknown: {nearest(kind, _READERS)}")
    actual = kind_of(data)
    if actual not in _READERS:
        raise FileError(f"the file is of unknown kind {actual!r}: {nearest(actual, _READERS)}")
    if kind == "plan" and actual == "result":
        return read_result(data).plan
    if kind == "workload_plan" and actual == "workload_result":
        return read_workload_result(data).plan
    return _READERS[kind or actual](data)
