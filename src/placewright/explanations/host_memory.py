"""Added host: what a plan could do if a cluster of accelerators alone had a host next to it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from placewright.cluster import Cluster
from placewright.costs import Roofline
from placewright.device import HOST
from placewright.errors import PlacewrightError
from placewright.explanations.quick_plans import QuickPlans
from placewright.solvers import Auto, MaxEvaluations, SingleDevices, solve

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.result import Result

HOST_PRESET = "cpu"
"""The preset of the host that is added."""
_EVALUATIONS = 400  # of a short search, for graphs that are not large
_LARGE_GRAPH_OPS = 5_000


@dataclass(frozen=True)
class AddedHost:
    """A plan for the same problem with a host.

    Args:
        cluster: The cluster with the host, as `--on` takes it: `A100+cpu`.
        memory: Bytes of the host.
        result: The plan of a short search there, which fits.
    """

    cluster: str
    memory: int
    result: Result


def add_host(problem: Problem) -> AddedHost | None:
    """A quick plan that fits with the host of the preset `cpu`.

    None if the cluster has a host, was not made from text such as `2xA100`, or has measured op
    times, which say nothing of a host; or if nothing fits there either.
    """
    extended = _with_host(problem)
    if extended is None:
        return None
    if len(extended.graph) > _LARGE_GRAPH_OPS:
        single = solve(extended, SingleDevices(), progress=False)
        result = solve(extended, QuickPlans.of(extended, single.plan), progress=False)
    else:
        result = solve(extended, Auto(), MaxEvaluations(_EVALUATIONS), progress=False)
    if not result.fits:
        return None
    return AddedHost(extended.cluster.name, extended.cluster.devices[-1].memory, result)


def _with_host(problem: Problem) -> Problem | None:
    cluster = problem.cluster
    if cluster.host is not None or not isinstance(problem.costs, Roofline):
        return None
    try:
        known, extended = (
            Cluster.parse(cluster.name),
            Cluster.parse(f"{cluster.name}+{HOST_PRESET}"),
        )
    except PlacewrightError:
        return None
    if known.links != cluster.links or extended.devices[-1].kind != HOST:
        return None
    if extended.devices[:-1] != known.devices:  # some parts of a cluster are hosts already
        return None
    devices = (*cluster.devices, extended.devices[-1])  # with the reserves of the problem
    return replace(problem, cluster=replace(extended, devices=devices))
