"""Exact: a problem in, its best plan and a bound that proves it out, with CP-SAT (OR-Tools).

`numbers.py` puts a problem into whole numbers, `model.py` and its neighbours say the
simulator's rules in constraints, `process.py` has them solved in a process of their own.
"""

from __future__ import annotations

import math
import time
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import ProblemError
from placewright.simulator import judge
from placewright.solvers.balanced import Balanced
from placewright.solvers.exact.integer_problem import Numbers
from placewright.solvers.exact.process import borrowed
from placewright.solvers.heft import HEFT
from placewright.solvers.m_etf import METF
from placewright.solvers.single import EverySingleDevice
from placewright.transforms import by_colocation, by_heavy_edges
from placewright.transforms.bundles import Teams

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from numpy.typing import NDArray

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.solvers.exact.process import Worker
    from placewright.solvers.search import Search, Solver
    from placewright.transforms import Grouping

_STARTS: tuple[Solver, ...] = (
    EverySingleDevice(),
    Balanced(),
    HEFT(),
    HEFT(contended=True),
    METF(),
)
_TEAMS = 120  # above which ops are placed in groups
_COARSE = 24  # groups that they are put into
_GROUPS = 300  # groups above which there is no use in trying
_LEAST = 0.02  # seconds below which there is no use in asking


@dataclass(frozen=True, eq=False)
class Solution:
    """What CP-SAT found.

    Args:
        status: `optimal`, `feasible`, `infeasible` (no plan of the model, which is no worse than
            the start, fits), or `unknown`.
        device: The best plan's devices, or those of the start if no plan was found.
        priority: Its order; None for a period.
        value: The model's own figure for it, in seconds; the simulator has the last word.
        value_bound: Seconds that no plan of the model can beat.
        rounding: Seconds by which a bound is too low because durations are rounded.
    """

    status: str
    device: NDArray[np.int32] | None
    priority: NDArray[np.float64] | None
    value: float
    value_bound: float
    rounding: float


@dataclass(frozen=True)
class Limits:
    """How long CP-SAT may take.

    Args:
        seconds: By the clock: what is found then depends on the machine.
        deterministic: CP-SAT's own measure of work, the same on every machine; about a second is
            one. With one worker the same limit gives the same answer.
    """

    seconds: float
    deterministic: float | None = None
    workers: int = 1
    seed: int = 0


def solve_model(
    problem: Problem,
    *,
    start: Plan | None = None,
    free: NDArray[np.bool_] | None = None,
    seconds: float,
    deterministic: float | None = None,
    workers: int = 1,
    seed: int = 0,
    grouping: Grouping | None = None,
    streaming: bool = False,
    worker: Worker | None = None,
) -> Solution:
    """The best plan without streamed weights, as far as the model and the limits go.

    Args:
        start: A plan to begin with; only plans that are no worse are looked for.
        free: Ops whose device and place in the order may change; the others keep the start's.
        grouping: Groups to place whole.
        streaming: Whether the bound is to hold for plans that stream weights, too.
        worker: A process to run in; a waiting one is taken, or one is started, if there is none.
    """
    known = math.inf
    if start is not None and grouping is None:
        verdict = judge(problem, start.device, start.priority, start.staging)
        known = math.inf if verdict.overflow[0] else float(verdict.value[0])
    numbers = Numbers.of(problem, known, grouping, streaming)
    if start is not None:
        numbers = numbers.starting_at(start, free)
    device = None if start is None else start.device
    priority = None if start is None else start.priority
    solution = Solution("unknown", device, priority, known, 0.0, 0.0)
    limits = Limits(seconds, deterministic, workers, seed)
    with borrowed() if worker is None else nullcontext(worker) as process:
        *_, last = solutions(process, numbers, limits, solution)
    return last


def solutions(
    worker: Worker, numbers: Numbers, limits: Limits, first: Solution | None = None
) -> Generator[Solution]:
    """Each plan as it is found, and at the end the best with the final status and bound."""
    request = {
        **numbers.payload,
        "deterministic": limits.deterministic,
        "workers": limits.workers,
        "seed": limits.seed,
    }
    rounding = numbers.slack * numbers.tick
    best = first or Solution("unknown", None, None, math.inf, 0.0, rounding)
    with closing(worker.ask(request, limits.seconds)) as answers:
        for answer in answers:
            if answer["kind"] == "found":
                best = _found(numbers, answer, rounding)
            elif answer["kind"] == "done":
                bound = max(0.0, numbers.seconds(answer["bound"]))
                if answer["status"] == "infeasible":
                    bound = math.inf
                best = Solution(
                    answer["status"], best.device, best.priority, best.value, bound, rounding
                )
            yield best


def _found(numbers: Numbers, answer: dict[str, Any], rounding: float) -> Solution:
    return Solution(
        "feasible",
        numbers.placement(answer["device"]),
        numbers.priority(answer["begin"], answer["end"]) if "begin" in answer else None,
        answer["value"] * numbers.tick,
        0.0,
        rounding,
    )


@dataclass(frozen=True)
class Exact:
    """The best plan there is, with a proof, for graphs of up to about 30 ops or groups.

    It begins with the best of a few baselines, and judges every plan that CP-SAT finds. Its bound
    holds for every plan that fits, streamed weights included, but not for fused ops; the result
    is proven the best if its gap is below a millionth. Without proof it is the best plan found.

    Args:
        group: Makes groups that are placed whole, such as `transforms.by_heavy_edges` with a
            count, for larger graphs. Each runs as one where that leaves no circle, so the model
            is an estimate, and nothing is proven. Without it, graphs of more than 120 ops are put
            into 24 groups; where that is not possible, only the baselines are judged.
        seconds: Its own limit, beside the search's.
        deterministic: A limit in CP-SAT's own measure of work, the same on every machine. With
            it, and no limit in seconds that is reached, the same seed gives the same plan.
        workers: Threads of CP-SAT; with more than one, equally good plans may change from run to
            run.
    """

    group: Callable[[Problem], Grouping] | None = None
    seconds: float = 60.0
    deterministic: float | None = None
    workers: int = 1
    name = "exact"

    def run(self, search: Search) -> None:
        judge_starts(search)
        if search.over:
            return
        grouping = self._grouping(search.problem)
        if grouping is not None and len(grouping) > _GROUPS:
            return
        until = time.perf_counter() + self.seconds
        with borrowed() as worker:
            for stage in _stages(search.problem, grouping):
                seconds = min(until - time.perf_counter(), search.stop.seconds_left(search))
                if search.over or seconds < _LEAST:
                    return
                limits = Limits(seconds, self.deterministic, self.workers, search.seed)
                if _settled(search, worker, stage, limits):
                    return

    def _grouping(self, problem: Problem) -> Grouping | None:
        if self.group is not None:
            return self.group(problem)
        if len(Teams.of(problem)) <= _TEAMS:
            return None
        try:
            return by_heavy_edges(problem, _COARSE)
        except ProblemError:  # units that are not convex
            return by_colocation(problem)


@dataclass(frozen=True)
class _Stage:
    """One of the models to solve in turn, until one proves the best plan."""

    grouping: Grouping | None = None
    streaming: bool = False
    scheduled: bool = False
    strict: bool = False
    covers: bool = True  # whether its bound holds for all plans that fit


def _stages(problem: Problem, grouping: Grouping | None) -> list[_Stage]:
    """First one whose bound holds for all plans, then those that know more.

    For a period that is one with a schedule, which sees memory over time. For a step it is one
    that knows all about the order, which takes longer, and how weights are sent.
    """
    if grouping is not None:
        return [_Stage(grouping, covers=False)]
    apart = streamable(problem)
    if problem.objective == "period":
        return [_Stage(streaming=apart), _Stage(streaming=apart, scheduled=True)]
    if apart:
        return [_Stage(streaming=True), _Stage(strict=True, covers=False)]
    return [_Stage(), _Stage(strict=True)]


def _settled(search: Search, worker: Worker, stage: _Stage, limits: Limits) -> bool:
    """Solve one model, judge what it finds; whether nothing is left to do."""
    overflow, value = search.key
    known = math.inf if overflow or stage.grouping is not None else value
    numbers = Numbers.of(
        search.problem, known, stage.grouping, stage.streaming, stage.scheduled, stage.strict
    )
    if search.best is not None and search.best.fusion is None:
        numbers = numbers.starting_at(search.best)
    judged = None
    with closing(solutions(worker, numbers, limits)) as steps:
        for solution in steps:
            if solution.device is not None and solution.device is not judged:
                judged = solution.device
                search.judge(judged, solution.priority)
            if search.over:
                return True
    if not stage.covers or math.isinf(solution.value_bound):
        return False
    search.prove(solution.value_bound, "exact")
    overflow, value = search.key
    return not overflow and value <= solution.value_bound + 2 * solution.rounding


def judge_starts(search: Search) -> None:
    """Judge a few baselines where there is no plan to begin with."""
    if search.best is not None:
        return
    for solver in _STARTS:
        search.trying = solver.name
        solver.run(search)
        if search.over:
            break
    search.trying = ""


def streamable(problem: Problem) -> bool:
    """Whether a weight can be on another device than an op that reads it."""
    a = problem.arrays
    reader = np.repeat(np.arange(a.ops), np.diff(a.first_input))
    source = a.producer[a.inputs]
    apart = a.weight[source] & a.turn[reader] & (a.unit[source] != a.unit[reader])
    return bool(apart.any()) and a.devices > 1
