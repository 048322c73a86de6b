"""Exact: the best plan and a bound that proves it, by CP-SAT (OR-Tools).

`integer_problem.py` rounds a problem to integers, `model.py` and its neighbours state the
simulator's rules as constraints, `process.py` has them solved in another process.
"""

from __future__ import annotations

import math
import time
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from placewright.errors import ProblemError
from placewright.simulator import judge
from placewright.solvers.balanced import Balanced
from placewright.solvers.exact.integer_problem import IntegerProblem
from placewright.solvers.exact.process import borrow_worker
from placewright.solvers.heft import HEFT
from placewright.solvers.m_etf import METF
from placewright.solvers.searches.annealing import anneal_to_fit
from placewright.solvers.single import SingleDevices
from placewright.transforms import by_colocation, by_heavy_edges
from placewright.transforms.bundles import Bundles

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import numpy as np
    from numpy.typing import NDArray

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.solvers.exact.process import SolverWorker
    from placewright.solvers.search import Search, Solver
    from placewright.transforms import Grouping

_BASELINES: tuple[Solver, ...] = (
    SingleDevices(),
    Balanced(),
    HEFT(),
    HEFT(contended=True),
    METF(),
)
_MAX_BUNDLES = 120  # bundles above which ops are placed in groups
_COARSE_GROUPS = 24  # the number of these groups
_MAX_GROUPS = 300  # groups above which it is not tried
_MIN_SECONDS = 0.02  # seconds below which it is not tried


@dataclass(frozen=True, eq=False)
class Solution:
    """CP-SAT's best plan.

    Args:
        status: `optimal`, `feasible`, `infeasible` (no plan of the model that is no worse than the
            start fits), or `unknown`.
        placement: The best plan's devices, or those of the start if no plan was found.
        priority: Its order; None for a period.
        value: The model's value for it, in seconds; the simulator decides.
        value_bound: A lower bound for all plans of the model, in seconds.
        rounding: Seconds by which a bound is too low because durations are rounded.
    """

    status: str
    placement: NDArray[np.int32] | None
    priority: NDArray[np.float64] | None
    value: float
    value_bound: float
    rounding: float


@dataclass(frozen=True)
class SolveLimits:
    """The limits of CP-SAT.

    Args:
        seconds: Wall-clock time: the result then depends on the machine.
        deterministic: CP-SAT's deterministic time, the same on every machine; one unit is about a
            second. With one worker the same limit gives the same answer.
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
    worker: SolverWorker | None = None,
) -> Solution:
    """The best plan without streamed weights, within the model and the limits.

    Args:
        start: A plan to start from; only plans that are no worse are searched.
        free: Ops whose device and order may change; the others keep the start's.
        grouping: Groups to place whole.
        streaming: Whether the bound must also hold for plans that stream weights.
        worker: The process to run in; by default an idle one is reused, or one is started.
    """
    known_seconds = math.inf
    if start is not None and grouping is None:
        verdict = judge(problem, start.placement, start.priority, start.staging)
        known_seconds = math.inf if verdict.overflow[0] else float(verdict.value[0])
    integer_problem = IntegerProblem.of(problem, known_seconds, grouping, streaming)
    if start is not None:
        integer_problem = integer_problem.with_hint(start, free)
    placement = None if start is None else start.placement
    priority = None if start is None else start.priority
    solution = Solution("unknown", placement, priority, known_seconds, 0.0, 0.0)
    limits = SolveLimits(seconds, deterministic, workers, seed)
    with borrow_worker() if worker is None else nullcontext(worker) as process:
        *_, final = solutions(process, integer_problem, limits, solution)
    return final


def solutions(
    worker: SolverWorker,
    integer_problem: IntegerProblem,
    limits: SolveLimits,
    initial: Solution | None = None,
) -> Generator[Solution]:
    """Each plan as it is found, and at the end the best with the final status and bound."""
    request = {
        **integer_problem.payload,
        "deterministic": limits.deterministic,
        "workers": limits.workers,
        "seed": limits.seed,
    }
    rounding = integer_problem.slack * integer_problem.tick
    best = initial or Solution("unknown", None, None, math.inf, 0.0, rounding)
    with closing(worker.submit(request, limits.seconds)) as answers:
        for answer in answers:
            if answer["kind"] == "found":
                best = _solution_from(integer_problem, answer, rounding)
            elif answer["kind"] == "done":
                bound = max(0.0, integer_problem.seconds(answer["bound"]))
                if answer["status"] == "infeasible":
                    bound = math.inf
                best = Solution(
                    answer["status"], best.placement, best.priority, best.value, bound, rounding
                )
            yield best


def _solution_from(
    integer_problem: IntegerProblem, answer: dict[str, Any], rounding: float
) -> Solution:
    return Solution(
        "feasible",
        integer_problem.placement(answer["device"]),
        integer_problem.priority(answer["begin"], answer["end"]) if "begin" in answer else None,
        answer["value"] * integer_problem.tick,
        0.0,
        rounding,
    )


@dataclass(frozen=True)
class Exact:
    """The optimal plan, with a proof, for graphs of up to about 30 ops or groups.

    It starts with the best of a few baselines, or where none fits with a plan that annealing makes
    fit, and evaluates every plan that CP-SAT finds. Its bound holds for every plan that fits,
    streamed weights included, but not for fused ops; the result is proven optimal if its gap is
    below a millionth, else it is the best plan found.

    Args:
        group: Makes groups that are placed whole, e.g. `transforms.by_heavy_edges` with a count,
            for larger graphs. Each runs as one where that makes no cycle, so the model is an
            estimate, and nothing is proven. Without it, graphs of more than 120 bundles are put
            into 24 groups; where that is not possible, only the baselines are evaluated.
        seconds: Its own limit, besides the search's.
        deterministic: A limit in CP-SAT's deterministic time, the same on every machine. With it,
            unless a limit in seconds is reached, the same seed gives the same plan.
        workers: Threads of CP-SAT; with more than one, equally good plans may change from run to
            run.
    """

    group: Callable[[Problem], Grouping] | None = None
    seconds: float = 60.0
    deterministic: float | None = None
    workers: int = 1
    name = "exact"

    def run(self, search: Search) -> None:
        judge_baselines(search)
        # The model's memory is a relaxation: its plans may all be over where another one fits.
        anneal_to_fit(search)
        if search.over:
            return
        grouping = self._grouping(search.problem)
        if grouping is not None and len(grouping) > _MAX_GROUPS:
            return
        deadline = time.perf_counter() + self.seconds
        with borrow_worker() as worker:
            for stage in _solve_stages(search.problem, grouping):
                seconds = min(deadline - time.perf_counter(), search.stop.seconds_left(search))
                if search.over or seconds < _MIN_SECONDS:
                    return
                limits = SolveLimits(seconds, self.deterministic, self.workers, search.seed)
                if _solve_stage(search, worker, stage, limits):
                    return

    def _grouping(self, problem: Problem) -> Grouping | None:
        if self.group is not None:
            return self.group(problem)
        if len(Bundles.of(problem)) <= _MAX_BUNDLES:
            return None
        try:
            return by_heavy_edges(problem, _COARSE_GROUPS)
        except ProblemError:  # units that are not convex
            return by_colocation(problem)


@dataclass(frozen=True)
class _SolveStage:
    """One of the models that are solved one after the other, until one proves optimality."""

    grouping: Grouping | None = None
    streaming: bool = False
    with_schedule: bool = False
    strict: bool = False
    bounds_all_plans: bool = True  # whether its bound holds for all plans that fit


def _solve_stages(problem: Problem, grouping: Grouping | None) -> list[_SolveStage]:
    """First a model whose bound holds for all plans, then more precise ones.

    For a period that is one with a schedule, for memory over time. For a step it is one with all
    order constraints, which takes longer, and with transfers of weights.
    """
    if grouping is not None:
        return [_SolveStage(grouping, bounds_all_plans=False)]
    streaming = problem.arrays.has_streamable_weights
    if problem.objective == "period":
        return [
            _SolveStage(streaming=streaming),
            _SolveStage(streaming=streaming, with_schedule=True),
        ]
    if streaming:
        return [_SolveStage(streaming=True), _SolveStage(strict=True, bounds_all_plans=False)]
    return [_SolveStage(), _SolveStage(strict=True)]


def _solve_stage(
    search: Search, worker: SolverWorker, stage: _SolveStage, limits: SolveLimits
) -> bool:
    """Solve one model and evaluate its plans; whether nothing is left to do."""
    overflow, value = search.key
    known_seconds = math.inf if overflow or stage.grouping is not None else value
    integer_problem = IntegerProblem.of(
        search.problem,
        known_seconds,
        stage.grouping,
        stage.streaming,
        stage.with_schedule,
        stage.strict,
    )
    if search.best is not None and search.best.fusion is None:
        integer_problem = integer_problem.with_hint(search.best)
    last_placement = None
    with closing(solutions(worker, integer_problem, limits)) as results:
        for solution in results:
            if solution.placement is not None and solution.placement is not last_placement:
                last_placement = solution.placement
                search.judge(last_placement, solution.priority)
            if search.over:
                return True
    if not stage.bounds_all_plans or math.isinf(solution.value_bound):
        return False
    search.prove(solution.value_bound, "exact")
    overflow, value = search.key
    return not overflow and value <= solution.value_bound + 2 * solution.rounding


def judge_baselines(search: Search) -> None:
    """Evaluate a few baselines if there is no plan to start from."""
    if search.best is not None:
        return
    for solver in _BASELINES:
        search.phase = solver.name
        solver.run(search)
        if search.over:
            break
    search.phase = ""
