"""Diverse plans of a problem, to compare the simulator with measurements.

Single devices, the expert's, those of `auto` and of `streamed`, and random ones: blocks of the
graph on random devices, and random weights streamed to one device. Random ones are of step times
that are some percent apart: nothing can be learned from the order of plans that take the same.
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
"""What a plan is called, and the plan."""
MAX_BLOCKS = 12
EVALUATIONS = 3000
"""Plans that `auto` may judge: a few seconds."""
MIN_DIFFERENCE = 0.02
"""Random plans differ from one another by so much of their step times, as they are predicted."""


def diverse_plans(
    problem: Problem, count: int = 30, seed: int = 0, evaluations: int = EVALUATIONS
) -> list[NamedPlan]:
    """So many different plans that fit, as far as there are so many; the same for the same seed."""
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
    """The graph cut at random places, each piece on a random device.

    A layer's backward pass stays with the layer, as in any plan that a person would write.
    """
    ops, devices = len(problem.graph), len(problem.cluster)
    cuts = np.sort(rng.integers(0, ops, rng.integers(1, MAX_BLOCKS)))
    first_op: dict[str, int] = {}
    for at in np.flatnonzero(problem.arrays.scheduled).tolist():  # weights stand before all else
        first_op.setdefault(problem.graph.ops[at].module, at)
    positions = [
        first_op.get(op.module, at) if op.phase != "forward" and op.module else at
        for at, op in enumerate(problem.graph.ops)
    ]
    block = np.searchsorted(cuts, positions, side="right")
    placement = rng.integers(0, devices, len(cuts) + 1)[block]
    return Plan.of(problem, problem.legalize(placement))


def random_streams(problem: Problem, rng: np.random.Generator) -> Plan | None:
    """One accelerator computes; a random share of the weights stays on the host."""
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


def _predicted_time(problem: Problem, plan: Plan) -> float | None:
    """The step time of a plan as it is predicted; None if it does not fit."""
    verdict = judge(problem, plan.placement, plan.priority, plan.staging)
    return None if verdict.overflow.any() else float(verdict.step_time[0])
