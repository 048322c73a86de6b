"""A problem on this machine in, the same as our runtime runs it out: GPUs with or without a host.

Ops that a host starts one by one take no less than that start. The runtime captures runs of ops as
CUDA graphs where that is quicker, of forward passes and of training steps, and replays them: then
an op takes the GPU's own time, and starts follow each other as quickly as the GPU can.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from placewright.costs import Table
from placewright.runtime.cuda.graph_exclusions import handed_out, held_beside

if TYPE_CHECKING:
    from placewright.cluster import Cluster
    from placewright.graph import Graph
    from placewright.problem import Problem
    from placewright.profiling.machine_profile import Profile

_PAGES = 20 << 20  # bytes that graphs take beyond what they hold: PyTorch's pages are of 20 MiB


def as_run(problem: Problem, profile: Profile) -> Problem:
    """The problem with the starts of ops that the runtime will need."""
    costs = problem.costs
    if isinstance(costs, Table):
        costs = with_copies(costs.replayed(), problem.graph)
    return replace(problem, cluster=without_host(problem.cluster, profile), costs=costs)


def with_copies(table: Table, graph: Graph) -> Table:
    """The table with room for a copy of each output: the next replay writes over the first one.

    What is handed out by ops that are never replayed needs no copy, but what graphs hold stays
    beside it.
    """
    row = {name: at for at, name in enumerate(table.ops)}
    room = np.zeros(len(row), dtype=np.int64) if table.workspace is None else table.workspace.copy()
    needs = [int(room[row[op.name]]) for op in graph.ops]
    handed, beside = handed_out(graph), held_beside(graph, needs) + _PAGES
    for op, output in graph.outputs or ():
        size = graph.ops[op].outputs[output]
        room[row[graph.ops[op].name]] += min(size, beside) if op in handed else size
    return replace(table, workspace=room)


def without_host(cluster: Cluster, profile: Profile) -> Cluster:
    """The cluster with GPUs that need no host to start their ops."""
    own = {name: float(able["own"]) for name, able in profile.facts["devices"].items()}
    devices = tuple(
        replace(each, launch=own.get(each.name, each.launch), issuer=None)
        if each.issuer is not None
        else each
        for each in cluster.devices
    )
    return cluster if devices == cluster.devices else replace(cluster, devices=devices)
