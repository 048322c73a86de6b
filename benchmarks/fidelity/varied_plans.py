"""Diverse plans of a problem, to compare the simulator with measurements.

Single devices, the expert's plan, those of `auto` and `streamed`, and random plans: blocks of the
graph on random devices, and random weights streamed to one device. The step times of random plans
are some percent apart: the order of plans that take equally long says nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placewright.errors import PlacewrightError
from placewright.plan import NO_STAGING, Plan
from placewright.simulator import judge
from placewright.solvers import Auto, Expert, MaxEvaluations, Streamed, solve
from placewright.solvers.expert import has_expert
from placewright.transforms.bundles import accelerators

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.solvers import Solver

NamedPlan = tuple[str, Plan]
"""A name and a plan."""
MAX_BLOCKS = 12
EVALUATIONS = 3000
"""Plans that `auto` may evaluate: a few seconds."""
MIN_DIFFERENCE = 0.02
"""The least relative difference between the predicted step times of two random plans."""


def diverse_plans(
    problem: Problem, count: int = 30, seed: int = 0, evaluations: int = EVALUATIONS
) -> list[NamedPlan]:
    """Up to `count` different plans that fit; the same for the same seed."""
    plans: dict[Plan, str] = {}
    times: list[float] = []

    def add(name: str, plan: Plan, distinct: bool = False) -> None:
        step_time = _predicted_time(problem, plan) if len(plans) < count else None
        if step_time is None or (
            distinct and any(abs(step_time - other) <= MIN_DIFFERENCE * other for other in times)
        ):
            return
        times.extend([step_time] if distinct else [])
        plans.setdefault(plan, name)

    for index, device in enumerate(problem.cluster.devices):
        placement = problem.legalize(np.full(len(problem.graph), index))
        add(f"all on {device.name}", Plan.of(problem, placement))
    solvers: list[tuple[Solver, int]] = [(Auto(proposers=()), evaluations), (Streamed(), 200)]
    if has_expert(problem):
        solvers.append((Expert(), 1))
    for solver, budget in solvers:
        try:
            result = solve(problem, solver, MaxEvaluations(budget), seed, select="best")
        except PlacewrightError:
            continue
        add(solver.name, result.plan)
    rng = np.random.default_rng(seed)
    for attempt in range(50 * count):
        if len(plans) >= count:
            break
        if attempt % 2 and problem.cluster.host is not None:
            plan = random_streams(problem, rng)
            name = "streamed at random"
        else:
            plan, name = random_blocks(problem, rng), "blocks at random"
        if plan is not None:
            add(f"{name} {attempt}", plan, distinct=True)
    return [(name, plan) for plan, name in plans.items()]


def random_blocks(problem: Problem, rng: np.random.Generator) -> Plan:
    """The graph cut at random positions, each block on a random device.

    A layer's backward pass stays with the layer, as in a plan written by hand.
    """
    ops, devices = len(problem.graph), len(problem.cluster)
    cuts = np.sort(rng.integers(0, ops, rng.integers(1, MAX_BLOCKS)))
    first_op: dict[str, int] = {}
    for at in np.flatnonzero(problem.arrays.scheduled).tolist():  # weights come first in the graph
        first_op.setdefault(problem.graph.ops[at].module, at)
    positions = [
        first_op.get(op.module, at) if op.phase != "forward" and op.module else at
        for at, op in enumerate(problem.graph.ops)
    ]
    block = np.searchsorted(cuts, positions, side="right")
    placement = rng.integers(0, devices, len(cuts) + 1)[block]
    return Plan.of(problem, problem.legalize(placement))


def random_streams(problem: Problem, rng: np.random.Generator) -> Plan | None:
    """One accelerator runs all ops; a random share of the weights stays on the host."""
    a, host = problem.arrays, problem.cluster.host
    candidates = [int(index) for index in accelerators(problem) if index != host]
    if not candidates or host is None:
        return None
    device = candidates[int(rng.integers(len(candidates)))]
    all_on_device = problem.legalize(np.full(a.ops, device))
    movable = np.ones(int(a.unit.max()) + 1, dtype=bool)
    movable[a.unit[~a.is_weight | ~a.allowed[:, host]]] = False
    chosen = movable & (rng.random(len(movable)) < rng.random())
    placement: NDArray[np.int32] = np.where(chosen[a.unit], host, all_on_device).astype(np.int32)
    staging = np.full(len(problem.cluster), NO_STAGING, dtype=np.int64)
    staging[device] = int(a.required_staging(placement)[device] * rng.uniform(1, 3))
    return Plan.of(problem, placement, staging=staging)


def streamed_bytes(
    problem: Problem, placement: NDArray[np.int32], device: int
) -> NDArray[np.int64]:
    """Bytes of weights that each op on a device reads from other devices."""
    a = problem.arrays
    reader = np.repeat(np.arange(a.ops), np.diff(a.first_input))
    source = a.producer[a.inputs]
    is_remote = a.is_weight[source] & (placement[source] != device) & (placement[reader] == device)
    is_remote &= a.scheduled[reader]
    sizes = np.bincount(reader[is_remote], weights=a.sizes[a.inputs[is_remote]], minlength=a.ops)
    return sizes.astype(np.int64)


def _predicted_time(problem: Problem, plan: Plan) -> float | None:
    """The predicted step time of a plan; None if it does not fit."""
    staging = None if plan.staging is None else plan.staging[None]
    priority = None if plan.priority is None else plan.priority[None]
    verdict = judge(problem, plan.placement[None], priority, staging)
    return None if verdict.overflow.any() else float(verdict.step_time[0])
