"""Tiny problems by seed, with every plan of each: what a brute-force search tries."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from all_plans import all_orders, all_placements

from placewright import (
    Cluster,
    Constraints,
    Device,
    Graph,
    Link,
    Op,
    Problem,
    Roofline,
    Table,
    judge,
)
from placewright.errors import ProblemError
from placewright.plan_batch import PlanBatch
from placewright.simulator.evaluation import judge_batch

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_OPS = 6
MAX_DEVICES = 3
MAX_PLANS = 6_000  # plans of one problem that are tried; of larger ones a sample
TIMES = (0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 1 / 3, 0.1, 0.7)
SIZES = (0, 1, 2, 3, 5, 8)
KINDS = ("op", "op", "op", "op", "weight", "weight", "view", "state", "input")
FUSIBLE_KINDS = ("elementwise", "matmul", "reduce")


def tiny_problem(seed: int) -> Problem:
    """A problem of up to 6 ops and 3 devices; memory is scarce in most."""
    rng = np.random.default_rng(seed)
    graph, cluster = _graph(rng), _cluster(rng)
    problem = Problem(
        graph,
        cluster,
        _costs(rng, graph, cluster),
        _constraints(rng, graph, cluster),
        discipline="in order" if rng.random() < 0.6 else "ready",
        objective="step" if rng.random() < 0.5 else "period",
        overlap=bool(rng.random() < 0.6),
    )
    return _with_scarce_memory(rng, problem) if rng.random() < 0.7 else problem


def _graph(rng: np.random.Generator) -> Graph:
    ops: list[Op] = []
    for position in range(int(rng.integers(1, MAX_OPS + 1))):
        tensors = [(at, output) for at, op in enumerate(ops) for output in range(len(op.outputs))]
        kind = str(rng.choice(KINDS))
        inputs: tuple[tuple[int, int], ...] = ()
        if kind in ("op", "view") and tensors:
            count = int(rng.integers(0 if kind == "op" else 1, 4))
            inputs = tuple(tensors[at] for at in rng.integers(0, len(tensors), size=count))
        aliases = ((0, int(rng.integers(len(inputs)))),) if inputs and rng.random() < 0.3 else ()
        ops.append(
            Op(
                f"op{position}",
                str(rng.choice(FUSIBLE_KINDS)) if kind == "op" and rng.random() < 0.3 else kind,
                inputs,
                tuple(int(size) for size in rng.choice(SIZES, size=int(rng.integers(1, 3)))),
                flops=float(rng.integers(0, 9)) + float(rng.random()) / 3,
                bytes_moved=int(rng.choice([0, 3, 11])),
                resident=int(rng.choice(SIZES)) if rng.random() < 0.3 else 0,
                workspace=int(rng.choice(SIZES)) if rng.random() < 0.4 else 0,
                aliases=aliases,
                colocate=str(rng.choice(["left", "right"])) if rng.random() < 0.15 else None,
            )
        )
    outputs = None
    if rng.random() < 0.5:
        tensors = [(at, output) for at, op in enumerate(ops) for output in range(len(op.outputs))]
        chosen = rng.choice(len(tensors), size=min(2, len(tensors)), replace=False)
        outputs = tuple(tensors[at] for at in sorted(chosen))
    return Graph("tiny", tuple(ops), outputs)


def _cluster(rng: np.random.Generator) -> Cluster:
    count = int(rng.integers(1, MAX_DEVICES + 1))
    issuer = "thread" if rng.random() < 0.3 else None
    devices = tuple(
        Device(
            f"d{at}",
            "cpu" if at == count - 1 and rng.random() < 0.6 else "gpu",
            memory=int(rng.integers(0, 60)),
            rates={"float32": float(rng.choice([1.0, 1.0, 2.0, 7.0]))},
            memory_bandwidth=float(rng.choice([1.0, 3.0, 1e30])),
            launch_overhead=float(rng.choice([0.0, 0.25, 1.0])),
            issuer=issuer if rng.random() < 0.7 else None,
        )
        for at in range(count)
    )
    links = {
        (source.name, target.name): Link(
            float(rng.choice([1.0, 2.0, 3.0, np.inf])),
            float(rng.choice([0.0, 0.5, 1.0])),
            str(rng.choice(["", "bus", f"to {target.name}"])),
        )
        for source, target in itertools.permutations(devices, 2)
    }
    return Cluster("tiny", devices, links)


def _costs(rng: np.random.Generator, graph: Graph, cluster: Cluster) -> Roofline | Table:
    if rng.random() < 0.4:
        return Roofline(compute=1, memory=1)
    seconds = rng.choice(TIMES, size=(len(graph), len(cluster)))
    seconds[[op.kind in ("weight", "state", "input") for op in graph.ops]] = 0.0
    return Table(tuple(graph.position), tuple(cluster.position), seconds)


def _constraints(rng: np.random.Generator, graph: Graph, cluster: Cluster) -> Constraints:
    """Each input is pinned anywhere; now and then another op is pinned, or two are colocated."""
    names = [device.name for device in cluster.devices]
    pins = {op.name: str(rng.choice(names)) for op in graph.ops if op.kind == "input"}
    others = [op.name for op in graph.ops if op.kind != "input"]
    if others and rng.random() < 0.15:
        pins[str(rng.choice(others))] = str(rng.choice(names))
    colocate: tuple[tuple[str, ...], ...] = ()
    if len(others) >= 2 and rng.random() < 0.15:
        colocate = (tuple(str(name) for name in rng.choice(others, size=2, replace=False)),)
    constraints = Constraints(pins=pins, colocate=colocate)
    try:
        _ = Problem(graph, cluster, constraints=constraints).arrays
    except ProblemError:  # the pins of a unit disagree
        constraints = Constraints(pins=dict.fromkeys(pins, names[0]), colocate=colocate)
    return constraints


def _with_scarce_memory(rng: np.random.Generator, problem: Problem) -> Problem:
    """Limits near the peaks of a random plan, so that few plans fit, or none."""
    roomy = tuple(replace(device, memory=2**20) for device in problem.cluster.devices)
    unlimited = replace(problem, cluster=replace(problem.cluster, devices=roomy))
    placements = list(itertools.islice(all_placements(unlimited), 1_000))
    placement = placements[int(rng.integers(len(placements)))]
    verdict = judge(unlimited, placement, rng.permutation(problem.arrays.ops).astype(np.float64))
    slack = rng.choice([-2, 0, 0, 0, 1, 3], size=len(roomy))
    devices = tuple(
        replace(device, memory=max(0, int(peak) + int(extra)))
        for device, peak, extra in zip(roomy, verdict.peak[0], slack, strict=True)
    )
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


def _stagings(problem: Problem, placement: NDArray[np.int32]) -> list[NDArray[np.int64]]:
    """No staging, and on each device that reads remote weights just enough, or all it can use."""
    a = problem.arrays
    least = a.required_staging(placement)
    most = np.bincount(placement, a.streamed_bytes(placement), a.devices).astype(np.int64)
    choices = [
        sorted({-1, int(low), int(high)}) if high > 0 else [-1]
        for low, high in zip(least, most, strict=True)
    ]
    return [np.array(row, dtype=np.int64) for row in itertools.product(*choices)]


@dataclass(frozen=True)
class BestPlan:
    """The best of the plans tried, by (overflow, value).

    Args:
        key: Overflow and value of the best plan.
        plan: Its placement, priority and staging.
        complete: Whether every placement, order and useful staging buffer was tried.
        plans: How many were tried.
    """

    key: tuple[int, float]
    plan: PlanBatch
    complete: bool
    plans: int


def best_plan(problem: Problem, seed: int) -> BestPlan:
    """The best plan of all, or of a sample of `MAX_PLANS` where there are more."""
    orders = all_orders(problem)
    placement_rows: list[NDArray[np.int32]] = []
    staging_rows: list[NDArray[np.int64]] = []
    for placement in all_placements(problem):
        for staging in _stagings(problem, placement):
            placement_rows.append(placement)
            staging_rows.append(staging)
    placements, stagings = np.stack(placement_rows), np.stack(staging_rows)
    total = len(placements) * len(orders)
    if total <= MAX_PLANS:
        row, order = (part.ravel() for part in np.indices((len(placements), len(orders))))
    else:
        rng = np.random.default_rng(seed)
        row, order = (
            rng.integers(len(placements), size=MAX_PLANS),
            rng.integers(len(orders), size=MAX_PLANS),
        )
    batches = [PlanBatch(placements[row], orders[order], stagings[row])]
    if problem.discipline == "ready":  # without priorities it is another order
        batches.append(PlanBatch(placements, None, stagings))
    best: tuple[tuple[int, float], Any] | None = None
    for batch in batches:
        verdict = judge_batch(problem, batch)
        at = verdict.best()
        if best is None or verdict.key(at) < best[0]:
            best = verdict.key(at), batch[[at]]
    assert best is not None
    return BestPlan(*best, total <= MAX_PLANS, sum(map(len, batches)))
