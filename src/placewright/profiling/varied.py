"""A problem in, plans of many kinds out, to hold the simulator to what is measured.

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
from placewright.solvers.expert import known
from placewright.transforms.bundles import accelerators

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from placewright.problem import Problem
    from placewright.solvers import Solver

Named = tuple[str, Plan]
"""What a plan is called, and the plan."""
MOST_BLOCKS = 12
EVALUATIONS = 3000
"""Plans that `auto` may judge: a few seconds."""
APART = 0.02
"""Random plans differ from one another by so much of their step times, as they are predicted."""


def varied_plans(
    problem: Problem, count: int = 30, seed: int = 0, evaluations: int = EVALUATIONS
) -> list[Named]:
    """So many different plans that fit, as far as there are so many; the same for the same seed."""
    found: dict[Plan, str] = {}

    times: list[float] = []

    def add(name: str, plan: Plan, apart: bool = False) -> None:
        time = _time(problem, plan) if len(found) < count else None
        if time is None or (apart and any(abs(time - one) <= APART * one for one in times)):
            return
        times.extend([time] if apart else [])
        found.setdefault(plan, name)

    for at, device in enumerate(problem.cluster.devices):
        everything = problem.settle(np.full(len(problem.graph), at))
        add(f"all on {device.name}", Plan.of(problem, everything))
    solvers: list[tuple[Solver, int]] = [(Auto(), evaluations), (Streamed(), 200)]
    if known(problem):
        solvers.append((Expert(), 1))
    for solver, most in solvers:
        try:
            result = solve(problem, solver, MaxEvaluations(most), seed)
        except PlacewrightError:
            continue
        add(solver.name, result.plan)
    rng = np.random.default_rng(seed)
    for attempt in range(50 * count):
        if len(found) >= count:
            break
        if attempt % 2 and problem.cluster.host is not None:
            plan = random_streams(problem, rng)
            name = "streamed at random"
        else:
            plan, name = random_blocks(problem, rng), "blocks at random"
        if plan is not None:
            add(f"{name} {attempt}", plan, apart=True)
    return [(name, plan) for plan, name in found.items()]


def random_blocks(problem: Problem, rng: np.random.Generator) -> Plan:
    """The graph cut at random places, each piece on a random device.

    A layer's backward pass stays with the layer, as in any plan that a person would write.
    """
    ops, devices = len(problem.graph), len(problem.cluster)
    cuts = np.sort(rng.integers(0, ops, rng.integers(1, MOST_BLOCKS)))
    first: dict[str, int] = {}
    for at in np.flatnonzero(problem.arrays.turn).tolist():  # weights stand before all else
        first.setdefault(problem.graph.ops[at].module, at)
    places = [
        first.get(op.module, at) if op.phase != "forward" and op.module else at
        for at, op in enumerate(problem.graph.ops)
    ]
    piece = np.searchsorted(cuts, places, side="right")
    device = rng.integers(0, devices, len(cuts) + 1)[piece]
    return Plan.of(problem, problem.settle(device))


def random_streams(problem: Problem, rng: np.random.Generator) -> Plan | None:
    """One accelerator computes; a random share of the weights stays on the host."""
    a, host = problem.arrays, problem.cluster.host
    places = [int(at) for at in accelerators(problem) if at != host]
    if not places or host is None:
        return None
    device = places[int(rng.integers(len(places)))]
    everything = problem.settle(np.full(a.ops, device))
    movable = np.ones(int(a.unit.max()) + 1, dtype=bool)
    movable[a.unit[~a.weight | ~a.allowed[:, host]]] = False
    chosen = movable & (rng.random(len(movable)) < rng.random())
    placement: NDArray[np.int32] = np.where(chosen[a.unit], host, everything).astype(np.int32)
    staging = np.full(len(problem.cluster), NO_STAGING, dtype=np.int64)
    staging[device] = int(streamed_bytes(problem, placement, device).max() * rng.uniform(1, 3))
    return Plan.of(problem, placement, staging=staging)


def streamed_bytes(
    problem: Problem, placement: NDArray[np.int32], device: int
) -> NDArray[np.int64]:
    """Bytes of weights that each op on a device reads from elsewhere."""
    a = problem.arrays
    reader = np.repeat(np.arange(a.ops), np.diff(a.first_input))
    source = a.producer[a.inputs]
    away = a.weight[source] & (placement[source] != device) & (placement[reader] == device)
    away &= a.turn[reader]
    sizes = np.bincount(reader[away], weights=a.sizes[a.inputs[away]], minlength=a.ops)
    return sizes.astype(np.int64)


def _time(problem: Problem, plan: Plan) -> float | None:
    """The step time of a plan as it is predicted; None if it does not fit."""
    staging = None if plan.staging is None else plan.staging[None]
    priority = None if plan.priority is None else plan.priority[None]
    found = judge(problem, plan.device[None], priority, staging)
    return None if found.overflow.any() else float(found.step_time[0])
