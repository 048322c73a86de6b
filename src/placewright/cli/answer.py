"""A problem and a method or a plan in, an answer out: the judged plan and what to hold it to."""

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
    from placewright.solvers import Found, Search, Solver, Stop
    from placewright.timeline import Timeline

INTERRUPTED = 130  # the exit status of a command that a person stopped


@dataclass(frozen=True)
class Single:
    """The best plan that has everything on one device, so far as the constraints let it."""

    device: str
    step_time: float
    period: float
    value: float
    overflow: int

    @property
    def fits(self) -> bool:
        return self.overflow == 0


@dataclass(frozen=True)
class Answer:
    """A judged plan with all that is shown of it.

    Args:
        model: What the model was called when it was asked for.
        interrupted: Whether a person stopped the search; the plan is the best until then.
    """

    model: str
    problem: Problem
    result: Result
    single: Single
    interrupted: bool = False

    @cached_property
    def timeline(self) -> Timeline:
        return simulator.simulate(self.problem, self.result.plan)

    @cached_property
    def sent(self) -> tuple[int, int]:
        """Bytes of tensors and of streamed weights that go between devices in one step."""
        sends = self.timeline.transfers
        # An interrupted copy has several rows.
        rows = np.unique(np.stack([sends.tensor, sends.target, sends.reader]), axis=1)
        sizes, streamed = self.problem.arrays.sizes[rows[0]], rows[2] >= 0
        return int(sizes[~streamed].sum()), int(sizes[streamed].sum())

    @cached_property
    def computing(self) -> list[str]:
        """The devices that run ops."""
        used = np.unique(self.result.plan.device[self.problem.arrays.turn])
        return [self.result.plan.devices[at] for at in used]


@dataclass(frozen=True)
class Given:
    """A plan that is there already, as a method."""

    name: str
    plan: Plan

    def run(self, search: Search) -> None:
        search.propose(self.plan)


def best_single(problem: Problem) -> Single:
    """Everything on one device, for the device on which that is best."""
    devices = np.arange(len(problem.cluster))
    everything = np.repeat(devices[:, None], len(problem.graph), axis=1)
    settled = problem.settle(everything)
    verdict = simulator.judge(problem, settled)
    at = verdict.best()
    # Pins and colocation may have moved the ops: it is called after the device that has most.
    ops = np.bincount(settled[at][problem.arrays.turn], minlength=len(devices))
    most = at if ops[at] == ops.max() else int(ops.argmax())
    return Single(
        problem.cluster.devices[most].name,
        float(verdict.step_time[at]),
        float(verdict.period[at]),
        float(verdict.value[at]),
        int(verdict.overflow[at]),
    )


def judge(problem: Problem, name: str, plan: Plan) -> Result:
    """A plan that is there already, judged."""
    return solvers.solve(problem, Given(name, plan))


def search(
    problem: Problem,
    method: Solver,
    stop: Stop,
    seed: int,
    watch: Callable[[Search], None],
    start: Plan | None = None,
    choose: Callable[[Search], Found] | None = None,
) -> tuple[Result, bool]:
    """What a method finds, and whether a person stopped it; the best plan until then is kept.

    Args:
        choose: Takes one of the best few plans of a search that came to its end.

    Raises:
        KeyboardInterrupt: A person stopped it before it had judged a plan.
    """
    latest: list[Search] = []

    def progress(search: Search) -> None:
        latest[:] = [search]
        watch(search)

    try:
        return solvers.solve(problem, method, stop, seed, progress, start, choose), False
    except KeyboardInterrupt:
        if not latest or latest[0].best is None:
            raise
        last, kept = latest[0], judge(problem, method.name, latest[0].best)
        history = tuple(last.history)
        return replace(
            kept,
            evaluations=last.evaluations,
            seconds=last.seconds,
            seed=seed,
            history=history,
        ), True
