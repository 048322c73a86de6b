"""Tiny workloads by seed: two calls with a few weights in common, and the best plan of each."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from attack.tiny_problems import all_placements, best_plan, tiny_problem

from placewright import Call, Cluster, Constraints, Graph, Op, Problem, Roofline, Workload, judge
from placewright.errors import ProblemError
from placewright.solvers.workloads.call_plans import pin_weights

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

MAX_OPS = 5
COUNTS = (1.0, 1.0, 3.0, 0.5, 16.0)


def tiny_workload(seed: int) -> Workload:
    """Two calls of up to 5 ops each on up to 2 devices; memory is scarce in most."""
    rng = np.random.default_rng([seed, 23])
    first = tiny_problem(int(rng.integers(2**31)))
    cluster = first.cluster.subset([device.name for device in first.cluster.devices[-2:]])
    graphs = [_cut(first.graph), _cut(tiny_problem(int(rng.integers(2**31))).graph)]
    graphs[1] = _share_weights(rng, *graphs)
    calls = []
    for at, graph in enumerate(graphs):
        problem = Problem(
            graph,
            cluster,
            Roofline(compute=1, memory=1),
            _pin_inputs(rng, graph, cluster),
            first.discipline,
            first.objective,
            first.overlap,
        )
        calls.append(Call(f"call{at}", problem, float(rng.choice(COUNTS))))
    try:
        workload = Workload(calls)
        _ = workload.problems
    except ProblemError:  # what the calls demand of a shared weight contradicts
        return tiny_workload(seed + 1_000_000)
    return _with_scarce_memory(rng, workload) if rng.random() < 0.8 else workload


def _cut(graph: Graph) -> Graph:
    """The first few ops of a graph."""
    ops = graph.ops[:MAX_OPS]
    return graph if len(ops) == len(graph) else Graph(graph.name, ops)


def _share_weights(rng: np.random.Generator, first: Graph, second: Graph) -> Graph:
    """The second graph with other names, but for weights and states of the first."""
    known = {kind: [op for op in first.ops if op.kind == kind] for kind in ("weight", "state")}
    ops: list[Op] = []
    for op in second.ops:
        replaced = replace(op, name=f"second.{op.name}")
        if known.get(op.kind) and rng.random() < 0.8:
            shared = known[op.kind].pop()
            outputs = shared.outputs
            count = len(outputs) if op.kind == "weight" else len(op.outputs)
            is_read = any(
                source == len(ops) and output >= count
                for reader in second.ops
                for source, output in reader.inputs
            )
            if not is_read and op.kind == "weight":
                replaced = replace(op, name=shared.name, outputs=outputs, resident=shared.resident)
            elif op.kind == "state":
                replaced = replace(op, name=shared.name)  # a state may have another size
        ops.append(replaced)
    outputs = [
        (source, output)
        for source, output in second.outputs or ()
        if output < len(ops[source].outputs)
    ]
    return Graph("second", tuple(ops), tuple(outputs))


def _pin_inputs(rng: np.random.Generator, graph: Graph, cluster: Cluster) -> Constraints:
    names = [device.name for device in cluster.devices]
    pins = {op.name: str(rng.choice(names)) for op in graph.ops if op.kind == "input"}
    constraints = Constraints(pins=pins)
    try:
        _ = Problem(graph, cluster, constraints=constraints).arrays
    except ProblemError:  # the pins of a unit disagree
        constraints = Constraints(pins=dict.fromkeys(pins, names[0]))
    return constraints


def _with_scarce_memory(rng: np.random.Generator, workload: Workload) -> Workload:
    """Memory near the peaks of a random plan of the workload."""
    cluster = workload.cluster
    roomy = tuple(replace(device, memory=2**20) for device in cluster.devices)
    unlimited = _on_cluster(workload, replace(cluster, devices=roomy))
    residencies = list(itertools.islice(all_residencies(unlimited), 500))
    residency = residencies[int(rng.integers(len(residencies)))]
    peaks = []
    for at in range(len(unlimited)):
        pinned = pin_weights(unlimited, at, residency)
        placements = list(itertools.islice(all_placements(pinned), 500))
        placement = placements[int(rng.integers(len(placements)))]
        peaks.append(judge(pinned, placement).peak[0])
    slack = rng.choice([-2, 0, 0, 0, 1, 3], size=len(roomy))
    devices = tuple(
        replace(device, memory=max(0, int(peak) + int(extra)))
        for device, peak, extra in zip(roomy, np.max(peaks, axis=0), slack, strict=True)
    )
    return _on_cluster(workload, replace(cluster, devices=devices))


def _on_cluster(workload: Workload, cluster: Cluster) -> Workload:
    return Workload(
        tuple(
            replace(call, problem=replace(call.problem, cluster=cluster)) for call in workload.calls
        )
    )


def all_residencies(workload: Workload) -> Iterator[NDArray[np.int32]]:
    """Every placement of the weights and states that all calls allow."""
    groups = workload.weight_groups
    allowed = workload.problems[0].arrays.allowed[workload.weight_positions[0]]
    first = np.unique(groups, return_index=True)[1]
    choices = [np.flatnonzero(allowed[weight]).tolist() for weight in first]
    for combination in itertools.product(*choices):
        yield np.array(combination, dtype=np.int32)[groups]


@dataclass(frozen=True)
class BestWorkloadPlan:
    """The best of all plans tried: whether one fits, and the best sum of those that do."""

    fits: bool
    value: float
    complete: bool


def best_workload_plan(workload: Workload, seed: int) -> BestWorkloadPlan:
    """For every placement of the weights, the best plan of each call by itself."""
    value, complete = math.inf, True
    for residency in all_residencies(workload):
        total = 0.0
        for at, count in enumerate(workload.counts.tolist()):
            best = best_plan(pin_weights(workload, at, residency), seed)
            complete &= best.complete
            total += count * best.key[1] if best.key[0] == 0 else math.inf
        value = min(value, total)
    return BestWorkloadPlan(value < math.inf, value, complete)
