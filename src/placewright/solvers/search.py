"""Search: judges plans of one problem and keeps the best.

A `Search` owns the random generator, the stop rule and the progress, so that a solver holds
nothing but its idea. `solvers/results.py` runs a solver and returns a result.
"""

from __future__ import annotations

import os
import time
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

import numpy as np

from placewright import simulator
from placewright.errors import ConfigError, PlanError
from placewright.plan import Plan, check_names
from placewright.simulator import Verdict
from placewright.solvers.best_plans import (
    MAX_PLANS,
    BestPlans,
    Candidate,
    plan_fingerprint,
)
from placewright.solvers.bounds import Bound, bound
from placewright.solvers.stop import Stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from placewright.problem import Problem

Scalar = TypeVar("Scalar", bound=np.generic)

_BATCH_WORK = 500_000  # ops × plans judged between two looks at the stop rule: a tenth of a second
_MIN_THREAD_WORK = 20_000  # ops × plans below which starting a thread costs more than it saves
_MAX_THREADS = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2)


def thread_count(work: int) -> int:
    """How many threads are worth starting to judge so many ops × plans."""
    return _MAX_THREADS if work > _MIN_THREAD_WORK else 1


class Solver(Protocol):
    """A way to make plans: it judges them until it is done or the search is over."""

    @property
    def name(self) -> str:
        """What the command line and reports call it."""
        ...

    def run(self, search: Search) -> None:
        """Judge plans with `search.judge`; the search keeps the best."""
        ...


@runtime_checkable
class RuntimeSolver(Solver, Protocol):
    """A solver that stands for another runtime, which runs plans in its own way."""

    def as_executed(self, problem: Problem) -> Problem:
        """The problem as that runtime runs it."""
        ...


class Search:
    """Judges plans of one problem and keeps the best by (bytes over, objective).

    It also remembers the best few that differ in placement, staging or fusion. The first found wins
    ties. At least one plan is judged whatever the stop rule says, so a search always has a best
    plan.

    Args:
        stop: When to stop; `Stop()` never does.
        progress: Called with the search after each batch.
    """

    def __init__(
        self,
        problem: Problem,
        stop: Stop,
        seed: int,
        progress: Callable[[Search], None] | None = None,
    ) -> None:
        if not isinstance(stop, Stop):
            raise ConfigError(
                f"found {stop!r} as the stop rule: expected one such as MaxTime(5) (seconds) or "
                "MaxEvaluations(100)"
            )
        if not (isinstance(seed, (int, np.integer)) and seed >= 0):
            raise ConfigError(f"seed {seed!r}: expected a whole number, 0 or more")
        self.problem, self.stop, self.seed, self.progress = problem, stop, seed, progress
        self.rng = np.random.default_rng(seed)
        self.evaluations = 0
        self.best: Plan | None = None
        self.key: tuple[float, float] = (np.inf, np.inf)
        """Bytes over and objective of the best plan."""
        self.phase = ""
        """What a solver of several parts is at, set by it."""
        self.found_by = ""
        """What it was at when the best plan was found."""
        self.best_by_phase: dict[str, Candidate] = {}
        """For each part of the solver (`trying`) the best plan it found."""
        self._best_plans = BestPlans()
        self.history: list[tuple[int, float, float]] = []
        """(evaluations, seconds, best objective) each time the best improved."""
        self.proven_bound: Bound | None = None
        """The best bound that a solver has proven."""
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """How long the search has been going on."""
        return time.perf_counter() - self._started

    @property
    def over(self) -> bool:
        """Whether the stop rule says stop."""
        return self.evaluations > 0 and self.stop(self)

    @property
    def top_plans(self) -> list[Candidate]:
        """The best few plans, best first; they differ in more than their order of ops."""
        return self._best_plans.best_first()

    @property
    def bound(self) -> Bound:
        """What no plan that fits can beat: the problem's own bound, or a better proven one."""
        problem_bound = self._own_bound
        return (
            problem_bound
            if self.proven_bound is None or problem_bound.seconds >= self.proven_bound.seconds
            else self.proven_bound
        )

    @property
    def bound_known(self) -> bool:
        """Whether the bound has been worked out: it may take seconds for a large graph."""
        return "_own_bound" in self.__dict__

    @cached_property
    def _own_bound(self) -> Bound:
        return bound(self.problem)

    def prove(self, seconds: float, name: str) -> None:
        """A solver has proven that no plan that fits, and has no fused ops, takes less."""
        if self.proven_bound is None or seconds > self.proven_bound.seconds:
            self.proven_bound = Bound(seconds, name)

    def judge(
        self,
        placement: ArrayLike,
        priority: ArrayLike | None = None,
        staging: ArrayLike | None = None,
        fusion: ArrayLike | None = None,
    ) -> Verdict:
        """Judge plans (plans × ops, or one plan's ops) and keep the best.

        A priority (ops), staging (devices) or fusion (ops) without a row for each plan holds for
        all of them.

        Returns:
            The verdict on the plans in turn, on fewer than given if the search was over before.

        Raises:
            PlanError: A plan has the wrong length, names no device, or breaks a constraint.
        """
        a = self.problem.arrays
        placements = np.ascontiguousarray(np.atleast_2d(placement), dtype=np.int32)
        plan_count = len(placements)
        priorities = _row_per_plan("priority", priority, np.float64, (plan_count, a.ops))
        staging_rows = _row_per_plan("staging", staging, np.int64, (plan_count, a.devices))
        fusions = _row_per_plan("fusion", fusion, np.int32, (plan_count, a.ops))
        batch, offset = max(1, _BATCH_WORK // a.ops), 0
        verdicts: list[Verdict] = []
        while not verdicts or (offset < plan_count and not self.over):
            count = 0 if self.over else int(min(batch, plan_count - offset, self.stop.left(self)))
            batch_slice = slice(offset, offset + count)
            verdict = simulator.judge(
                self.problem,
                placements[batch_slice],
                None if priorities is None else priorities[batch_slice],
                None if staging_rows is None else staging_rows[batch_slice],
                threads=thread_count(count * a.ops),
                fusion=None if fusions is None else fusions[batch_slice],
            )
            self._record(
                verdict, placements[batch_slice], priorities, staging_rows, offset, fusions
            )
            verdicts.append(verdict)
            offset += count
        return verdicts[0] if len(verdicts) == 1 else Verdict.concatenate(verdicts)

    def count_external(
        self,
        evaluations: int,
        placement: ArrayLike | None = None,
        priority: ArrayLike | None = None,
        staging: ArrayLike | None = None,
    ) -> Verdict | None:
        """Count plans that a compiled walk has judged by the same rules, and keep the best of them.

        Being counted already, that plan is kept even if the search is over by now.
        """
        self.evaluations += evaluations
        verdict = None
        if placement is not None:
            placements = np.ascontiguousarray(np.atleast_2d(placement), dtype=np.int32)
            priorities = _row_per_plan("priority", priority, np.float64, (1, placements.shape[1]))
            staging_rows = _row_per_plan(
                "staging", staging, np.int64, (1, self.problem.arrays.devices)
            )
            verdict = simulator.judge(self.problem, placements, priorities, staging_rows)
            self.evaluations -= 1  # it is one of those counted above
            self._record(verdict, placements, priorities, staging_rows, 0)
        else:
            self._report_progress()
        return verdict

    def judge_plan(self, plan: Plan) -> None:
        """Judge one whole plan, which may have fused ops.

        Raises:
            PlanError: It was made for other ops or devices.
        """
        check_names(self.problem, plan)
        self.judge(plan.placement, plan.priority, plan.staging, plan.fusion)

    def _record(
        self,
        verdict: Verdict,
        placements: NDArray[np.int32],
        priorities: NDArray[np.float64] | None,
        staging_rows: NDArray[np.int64] | None,
        offset: int,
        fusions: NDArray[np.int32] | None = None,
    ) -> None:
        if not len(placements):
            return
        for rank, index in enumerate(verdict.best_first(MAX_PLANS)):
            key = int(verdict.overflow[index]), float(verdict.value[index])
            if not self._best_plans.qualifies(key) and (rank or not self._improves_phase(key)):
                break
            # Copies, so that the plans we remember do not keep whole batches alive.
            placement = placements[index].copy()
            priority = None if priorities is None else priorities[offset + index].copy()
            staging = None if staging_rows is None else staging_rows[offset + index].copy()
            fusion = None if fusions is None else fusions[offset + index].copy()
            build_plan = partial(Plan.of, self.problem, placement, priority, fusion, staging)
            candidate = Candidate(key, self.phase, build_plan)
            if rank == 0:
                self._update_best(candidate, self.evaluations + index + 1)
            self._best_plans.add(candidate, plan_fingerprint(placement, staging, fusion))
        self.evaluations += len(placements)
        self._report_progress()

    def _update_best(self, candidate: Candidate, evaluation: int) -> None:
        if self._improves_phase(candidate.key):
            self.best_by_phase[self.phase] = candidate
        if candidate.key < self.key:
            self.best, self.key, self.found_by = candidate.plan, candidate.key, self.phase
            self.history.append((evaluation, self.seconds, candidate.key[1]))

    def _improves_phase(self, key: tuple[float, float]) -> bool:
        previous = self.best_by_phase.get(self.phase)
        return previous is None or key < previous.key

    def _report_progress(self) -> None:
        if self.progress is not None:
            self.progress(self)


def simulated_problem(problem: Problem, solver: Solver) -> Problem:
    """The problem that a solver's plans are judged on: its own runtime's, if it stands for one."""
    return solver.as_executed(problem) if isinstance(solver, RuntimeSolver) else problem


def phase_name(solver: Solver) -> str:
    """The name under which another solver reports this solver's plans.

    The plans of a solver that stands for another runtime are judged as if our runtime ran them.
    """
    return f"{solver.name}'s placement" if isinstance(solver, RuntimeSolver) else solver.name


def _row_per_plan(
    field: str, values: ArrayLike | None, dtype: type[Scalar], shape: tuple[int, int]
) -> NDArray[Scalar] | None:
    """One row a plan, from one a plan or one for all."""
    if values is None:
        return None
    rows = np.atleast_2d(np.asarray(values, dtype=dtype))
    if rows.shape not in (shape, (1, shape[1])):
        raise PlanError(f"the {field} of {shape[0]} plans has shape {rows.shape}: expected {shape}")
    return np.ascontiguousarray(np.broadcast_to(rows, shape))
