"""Evaluates a method or a plan beside the best single device, for printing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from placewright import simulator, solvers

if TYPE_CHECKING:
    from collections.abc import Callable

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.result import Result
    from placewright.solvers import Candidate, Search, Solver, Stop
    from placewright.timeline import Timeline

INTERRUPTED_STATUS = 130  # the exit status of a command that a person stopped


@dataclass(frozen=True)
class SingleDeviceResult:
    """The best plan that has everything on one device, so far as the constraints let it."""

    device: str
    step_time: float
    period: float
    objective_value: float
    overflow: int

    @property
    def fits(self) -> bool:
        return self.overflow == 0


@dataclass(frozen=True)
class Evaluation:
    """A judged plan with all that is shown of it.

    Args:
        model: What the model was called when it was asked for.
        interrupted: Whether a person stopped the search; the plan is the best until then.
    """

    model: str
    problem: Problem
    result: Result
    single_device: SingleDeviceResult
    interrupted: bool = False

    @cached_property
    def timeline(self) -> Timeline:
        return simulator.simulate(self.problem, self.result.plan)

    @cached_property
    def bytes_sent(self) -> tuple[int, int]:
        """Bytes of tensors and of streamed weights that go between devices in one step."""
        transfers = self.timeline.transfers
        # An interrupted copy has several rows.
        rows = np.unique(np.stack([transfers.tensor, transfers.target, transfers.reader]), axis=1)
        sizes, streamed = self.problem.arrays.sizes[rows[0]], rows[2] >= 0
        return int(sizes[~streamed].sum()), int(sizes[streamed].sum())

    @cached_property
    def computing_devices(self) -> list[str]:
        """The devices that run ops."""
        devices = np.unique(self.result.plan.placement[self.problem.arrays.scheduled])
        return [self.result.plan.device_names[at] for at in devices]


@dataclass(frozen=True)
class FixedPlan:
    """A plan that is there already, as a method."""

    name: str
    plan: Plan

    def run(self, search: Search) -> None:
        search.judge_plan(self.plan)


def best_single_device(problem: Problem) -> SingleDeviceResult:
    """Everything on one device, for the device on which that is best."""
    placements = problem.single_device_placements()
    verdict = simulator.judge(problem, placements)
    at = verdict.best()
    # Pins and colocation may have moved the ops: it is called after the device that has most.
    ops = np.bincount(placements[at][problem.arrays.scheduled], minlength=len(placements))
    named_device = at if ops[at] == ops.max() else int(ops.argmax())
    return SingleDeviceResult(
        problem.cluster.devices[named_device].name,
        float(verdict.step_time[at]),
        float(verdict.period[at]),
        float(verdict.value[at]),
        int(verdict.overflow[at]),
    )


def evaluate_plan(problem: Problem, name: str, plan: Plan) -> Result:
    """A plan that is there already, judged."""
    return solvers.solve(problem, FixedPlan(name, plan))


def run_search(
    problem: Problem,
    solver: Solver,
    stop: Stop,
    seed: int,
    on_progress: Callable[[Search], None],
    start: Plan | None = None,
    select: Callable[[Search], Candidate] | None = None,
) -> tuple[Result, bool]:
    """What a method finds, and whether a person stopped it; the best plan until then is kept.

    Args:
        select: Takes one of the best few plans of a search that came to its end.

    Raises:
        KeyboardInterrupt: A person stopped it before it had judged a plan.
    """
    latest: list[Search] = []

    def progress(search: Search) -> None:
        latest[:] = [search]
        on_progress(search)

    try:
        return solvers.solve(problem, solver, stop, seed, progress, start, select), False
    except KeyboardInterrupt:
        if not latest or latest[0].best is None:
            raise
        last_search, result = latest[0], evaluate_plan(problem, solver.name, latest[0].best)
        history = tuple(last_search.history)
        return replace(
            result,
            evaluations=last_search.evaluations,
            seconds=last_search.seconds,
            seed=seed,
            history=history,
        ), True
