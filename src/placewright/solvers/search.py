"""Search: evaluates plans of one problem and keeps the best.

It owns the random generator, the stop rule and the progress, so that a solver consists of its idea
only. `solvers/results.py` runs a solver and returns a result.
"""

from __future__ import annotations

import os
import time
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

import numpy as np

from placewright import simulator
from placewright.errors import ConfigError, PlanError
from placewright.logs import logger
from placewright.plan import check_names, exact_array
from placewright.plan_batch import PlanBatch
from placewright.simulator import Verdict
from placewright.solvers.best_plans import (
    MAX_PLANS,
    BestPlans,
    Candidate,
    plan_fingerprint,
)
from placewright.solvers.bounds import Bound, bound
from placewright.solvers.stop import Stop
from placewright.solvers.worker_batches import WorkerBatches

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from placewright.plan import Plan
    from placewright.problem import Problem
    from placewright.workers import Workers

Scalar = TypeVar("Scalar", np.int32, np.int64, np.float64)

_BATCH_WORK = 500_000  # ops × plans between two checks of the stop rule: a tenth of a second
_MIN_THREAD_WORK = 20_000  # ops × plans below which starting a thread costs more than it saves
_MAX_THREADS = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2)


def thread_count(work: int) -> int:
    """How many threads are worth starting for this many ops × plans."""
    return _MAX_THREADS if work > _MIN_THREAD_WORK else 1


class Solver(Protocol):
    """A method: it evaluates plans until it is done or the search is over."""

    @property
    def name(self) -> str:
        """Its name on the command line and in reports."""
        ...

    def run(self, search: Search) -> None:
        """Evaluate plans with `search.judge`; the search keeps the best."""
        ...


@runtime_checkable
class RuntimeSolver(Solver, Protocol):
    """A solver that stands for another runtime, which runs plans in its own way."""

    def as_executed(self, problem: Problem) -> Problem:
        """The problem as that runtime runs it."""
        ...


class Search:
    """Evaluates plans of one problem and keeps the best by (overflow, objective).

    It also keeps the best few that differ in placement, staging or fusion. On a tie the first one
    wins. At least one plan is evaluated whatever the stop rule says, so a search always has a best
    plan.

    Args:
        stop: When to stop; `Stop()` never does.
        progress: Called with the search after each batch.
        workers: Workers that share large batches; the same plans are found with and without them.
    """

    def __init__(
        self,
        problem: Problem,
        stop: Stop,
        seed: int,
        progress: Callable[[Search], None] | None = None,
        workers: Workers | None = None,
    ) -> None:
        check_stop_and_seed(stop, seed)
        self.problem, self.stop, self.seed, self.progress = problem, stop, seed, progress
        self.workers = workers
        self.rng = np.random.default_rng(seed)
        self.evaluations = 0
        self.best: Plan | None = None
        self.key: tuple[float, float] = (np.inf, np.inf)
        """Overflow and objective of the best plan."""
        self.phase = ""
        """The current part of a solver that has several; set by the solver."""
        self.found_by = ""
        """The phase that found the best plan."""
        self.best_by_phase: dict[str, Candidate] = {}
        """The best plan of each phase."""
        self._best_plans = BestPlans()
        self.history: list[tuple[int, float, float]] = []
        """(evaluations, seconds, best objective) each time the best improved."""
        self.proven_bound: Bound | None = None
        """The best bound that a solver has proven."""
        self.earlier_seconds = 0.0
        """Seconds that earlier processes spent on the same search."""
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since the search began."""
        return self.earlier_seconds + time.perf_counter() - self._started

    @property
    def over(self) -> bool:
        """Whether the stop rule says stop."""
        return self.evaluations > 0 and self.stop(self)

    @property
    def top_plans(self) -> list[Candidate]:
        """The best few plans, best first; they differ in more than their order of ops."""
        return self._best_plans.best_first()

    @property
    def found_order(self) -> list[Candidate]:
        """The best few plans in the order in which they were found."""
        return self._best_plans.in_order()

    @property
    def own_bound(self) -> Bound | None:
        """The problem's own bound, if it has been computed."""
        return self._own_bound if self.bound_known else None

    def restore_bounds(
        self, best_plans: BestPlans, own_bound: Bound | None, proven_bound: Bound | None
    ) -> None:
        """Take the best few plans and the bounds of a snapshot (`search_snapshot.py`)."""
        self._best_plans, self.proven_bound = best_plans, proven_bound
        if own_bound is not None:
            self.__dict__["_own_bound"] = own_bound

    @property
    def bound(self) -> Bound:
        """A lower bound for plans that fit: the problem's, or a better one that a solver proved."""
        return self._or_proven(self._own_bound)

    @property
    def quick_bound(self) -> Bound:
        """A bound that does not account for memory, which is faster for large graphs; or the proof
        of a solver if that is better."""
        return self._or_proven(bound(self.problem, fits_only=False))

    @property
    def bound_known(self) -> bool:
        """Whether the bound has been computed: it may take seconds for a large graph."""
        return "_own_bound" in self.__dict__

    @cached_property
    def _own_bound(self) -> Bound:
        return bound(self.problem)

    def _or_proven(self, candidate: Bound) -> Bound:
        proven = self.proven_bound
        return candidate if proven is None or candidate.seconds >= proven.seconds else proven

    def prove(self, seconds: float, name: str) -> None:
        """Record a solver's proof that no plan that fits, without fused ops, takes less."""
        if self.proven_bound is None or seconds > self.proven_bound.seconds:
            self.proven_bound = Bound(seconds, name)

    def judge(
        self,
        placement: ArrayLike,
        priority: ArrayLike | None = None,
        staging: ArrayLike | None = None,
        fusion: ArrayLike | None = None,
    ) -> Verdict:
        """Evaluate plans (plans × ops, or one plan's ops) and keep the best.

        A priority (ops), staging (devices) or fusion (ops) of a single row holds for all plans.

        Returns:
            The verdict on the plans, on the first of them only if the search was over before.

        Raises:
            PlanError: A plan has the wrong length, names no device, or breaks a constraint.
        """
        plans = self._batch(placement, priority, staging, fusion)
        ops = self.problem.arrays.ops
        batch, offset = max(1, _BATCH_WORK // ops), 0
        verdicts: list[Verdict] = []
        batches = WorkerBatches(self.problem, plans, batch, self.workers)
        while not verdicts or (offset < len(plans) and not self.over):
            left = self.stop.left(self)
            count = 0 if self.over else int(min(batch, len(plans) - offset, left))
            verdict = batches.judge(offset, count, left, thread_count(count * ops))
            self._record(verdict, plans[offset : offset + count])
            verdicts.append(verdict)
            offset += count
        return verdicts[0] if len(verdicts) == 1 else Verdict.concatenate(verdicts)

    def count_external(
        self,
        evaluations: int,
        best: PlanBatch | None = None,
    ) -> Verdict | None:
        """Count plans that compiled annealing has evaluated by the same rules.

        Args:
            best: The best of them, a batch of one. It is kept even if the search is over by now,
                as it has been counted.
        """
        self.evaluations += evaluations
        verdict = None
        if best is not None:
            verdict = simulator.judge_batch(self.problem, best)
            self.evaluations -= 1  # it is one of those counted above
            self._record(verdict, best)
        else:
            self._report_progress()
        return verdict

    def judge_plan(self, plan: Plan) -> None:
        """Evaluate one whole plan, which may have fused ops.

        Raises:
            PlanError: It was made for other ops or devices.
        """
        check_names(self.problem, plan)
        self.judge(plan.placement, plan.priority, plan.staging, plan.fusion)

    def _batch(
        self,
        placement: ArrayLike,
        priority: ArrayLike | None,
        staging: ArrayLike | None,
        fusion: ArrayLike | None,
    ) -> PlanBatch:
        a = self.problem.arrays
        placements = np.ascontiguousarray(
            np.atleast_2d(exact_array(placement, np.int32, "placement"))
        )
        count = len(placements)
        return PlanBatch(
            placements,
            _row_per_plan("priority", priority, np.float64, (count, a.ops)),
            _row_per_plan("staging", staging, np.int64, (count, a.devices)),
            _row_per_plan("fusion", fusion, np.int32, (count, a.ops)),
        )

    def _record(self, verdict: Verdict, plans: PlanBatch) -> None:
        if not len(plans):
            return
        for rank, index in enumerate(verdict.best_first(MAX_PLANS)):
            key = int(verdict.overflow[index]), float(verdict.value[index])
            if not self._best_plans.qualifies(key) and (rank or not self._improves_phase(key)):
                break
            row = plans[[index]]  # a copy, so that no whole batch stays alive
            candidate = Candidate(key, self.phase, partial(row.plan, self.problem, 0))
            if rank == 0:
                self._update_best(candidate, self.evaluations + index + 1)
            self._best_plans.add(candidate, plan_fingerprint(row))
        self.evaluations += len(plans)
        self._report_progress()

    def _update_best(self, candidate: Candidate, evaluation: int) -> None:
        if self._improves_phase(candidate.key):
            self.best_by_phase[self.phase] = candidate
        if candidate.key < self.key:
            self.best, self.key, self.found_by = candidate.plan, candidate.key, self.phase
            self.history.append((evaluation, self.seconds, candidate.key[1]))
            logger.debug("plan %d by %s: %s", evaluation, self.phase or "the solver", candidate.key)

    def _improves_phase(self, key: tuple[float, float]) -> bool:
        previous = self.best_by_phase.get(self.phase)
        return previous is None or key < previous.key

    def _report_progress(self) -> None:
        if self.progress is not None:
            self.progress(self)


def check_stop_and_seed(stop: object, seed: object) -> None:
    """Raise ConfigError unless a search can stop by this rule and draw with this seed."""
    if not isinstance(stop, Stop):
        raise ConfigError(
            f"found {stop!r} as the stop rule: expected one such as MaxTime(5) (seconds) or "
            "MaxEvaluations(100)"
        )
    if not (isinstance(seed, (int, np.integer)) and seed >= 0):
        raise ConfigError(f"seed {seed!r}: expected a whole number, 0 or more")


def simulated_problem(problem: Problem, solver: Solver) -> Problem:
    """The problem that a solver's plans are evaluated on.

    It is the problem as another runtime runs it, if the solver stands for that runtime.
    """
    return solver.as_executed(problem) if isinstance(solver, RuntimeSolver) else problem


def phase_name(solver: Solver) -> str:
    """The phase of a solver that runs inside another one.

    A solver that stands for another runtime is evaluated as if we ran its placement.
    """
    return f"{solver.name}'s placement" if isinstance(solver, RuntimeSolver) else solver.name


def _row_per_plan(
    field: str, values: ArrayLike | None, dtype: type[Scalar], shape: tuple[int, int]
) -> NDArray[Scalar] | None:
    """One row per plan, from one per plan or one for all."""
    if values is None:
        return None
    rows = np.atleast_2d(exact_array(values, dtype, field))
    if rows.shape not in (shape, (1, shape[1])):
        raise PlanError(f"the {field} of {shape[0]} plans has shape {rows.shape}: expected {shape}")
    return np.ascontiguousarray(np.broadcast_to(rows, shape))
