"""The problem with launch costs as the runtime has them, with CUDA graphs.

An op that the host launches takes at least the time of that launch. The runtime captures runs of
ops as CUDA graphs where that is faster, in inference and in training, and replays them: then an op
takes the GPU's own time only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from placewright.costs import Table
from placewright.runtime.cuda.graph_memory import graph_resident_bytes, large_output_ops

if TYPE_CHECKING:
    from placewright.cluster import Cluster
    from placewright.graph import Graph
    from placewright.problem import Problem
    from placewright.profiling.machine_profile import MachineProfile

_GRAPH_POOL_BYTES = 20 << 20  # bytes of rounding: PyTorch allocates pools in blocks of 20 MiB


def executed_problem(problem: Problem, profile: MachineProfile) -> Problem:
    """The problem with the launch costs and memory that the runtime has."""
    costs = problem.costs
    if isinstance(costs, Table):
        costs = with_output_copies(costs.for_cuda_graphs(), problem.graph)
    return replace(problem, cluster=without_issuer(problem.cluster, profile), costs=costs)


def with_output_copies(table: Table, graph: Graph) -> Table:
    """The table with workspace for a copy of each output, which the next replay overwrites.

    Outputs of ops that are never replayed need no copy, but the graphs' memory stays allocated.
    """
    row = {name: at for at, name in enumerate(table.ops)}
    workspace = (
        np.zeros(len(row), dtype=np.int64) if table.workspace is None else table.workspace.copy()
    )
    op_workspaces = [int(workspace[row[op.name]]) for op in graph.ops]
    large_outputs, graph_bytes = (
        large_output_ops(graph),
        graph_resident_bytes(graph, op_workspaces) + _GRAPH_POOL_BYTES,
    )
    for op, output in graph.outputs or ():
        size = graph.ops[op].outputs[output]
        workspace[row[graph.ops[op].name]] += (
            min(size, graph_bytes) if op in large_outputs else size
        )
    return replace(table, workspace=workspace)


def without_issuer(cluster: Cluster, profile: MachineProfile) -> Cluster:
    """The cluster with GPUs that need no host to launch their ops."""
    launch_seconds = {name: float(rates["own"]) for name, rates in profile.facts["devices"].items()}
    devices = tuple(
        replace(
            device,
            launch_overhead=launch_seconds.get(device.name, device.launch_overhead),
            issuer=None,
        )
        if device.issuer is not None
        else device
        for device in cluster.devices
    )
    return cluster if devices == cluster.devices else replace(cluster, devices=devices)
