"""Search and solve: a problem and a solver in, the best plan it found out, as a result.

A `Search` judges plans, keeps the best, and owns the random generator, the stop rule and the
progress, so that a solver holds nothing but its idea.
"""

from __future__ import annotations

import os
import time
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from placewright import simulator
from placewright.errors import ConfigError, PlanError
from placewright.plan import Plan, check_names
from placewright.result import Result, Use
from placewright.simulator import Verdict
from placewright.solvers.best_plans import (
    MOST,
    Few,
    Found,
    mark,
)
from placewright.solvers.bounds import Bound, bound
from placewright.solvers.stop import Stop
from placewright.transforms import contract

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from placewright.problem import Problem
    from placewright.timeline import Timeline

Scalar = TypeVar("Scalar", bound=np.generic)

_BATCH = 500_000  # ops × plans judged between two looks at the stop rule: a tenth of a second
_SMALL = 20_000  # ops × plans below which starting a thread costs more than it saves
_THREADS = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2)


def threads(work: int) -> int:
    """How many threads are worth starting to judge so many ops × plans."""
    return _THREADS if work > _SMALL else 1


class Solver(Protocol):
    """A way to make plans: it judges them until it is done or the search is over."""

    @property
    def name(self) -> str:
        """What the command line and reports call it."""
        ...

    def run(self, search: Search) -> None:
        """Judge plans with `search.judge`; the search keeps the best."""
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
        self.trying = ""
        """What a solver of several parts is at, set by it."""
        self.found_by = ""
        """What it was at when the best plan was found."""
        self.parts: dict[str, Found] = {}
        """For each part of the solver (`trying`) the best plan it found."""
        self._few = Few()
        self.history: list[tuple[int, float, float]] = []
        """(evaluations, seconds, best objective) each time the best improved."""
        self.proven: Bound | None = None
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
    def few(self) -> list[Found]:
        """The best few plans, best first; they differ in more than their order of ops."""
        return self._few.best_first()

    @property
    def bound(self) -> Bound:
        """What no plan that fits can beat: the problem's own bound, or a better proven one."""
        own = self._own_bound
        return own if self.proven is None or own.seconds >= self.proven.seconds else self.proven

    @property
    def bound_known(self) -> bool:
        """Whether the bound has been worked out: it may take seconds for a large graph."""
        return "_own_bound" in self.__dict__

    @cached_property
    def _own_bound(self) -> Bound:
        return bound(self.problem)

    def prove(self, seconds: float, name: str) -> None:
        """A solver has proven that no plan that fits, and has no fused ops, takes less."""
        if self.proven is None or seconds > self.proven.seconds:
            self.proven = Bound(seconds, name)

    def judge(
        self,
        device: ArrayLike,
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
        placements = np.ascontiguousarray(np.atleast_2d(device), dtype=np.int32)
        plans = len(placements)
        priorities = _rows("priority", priority, np.float64, (plans, a.ops))
        rooms = _rows("staging", staging, np.int64, (plans, a.devices))
        groups = _rows("fusion", fusion, np.int32, (plans, a.ops))
        batch, done = max(1, _BATCH // a.ops), 0
        verdicts: list[Verdict] = []
        while not verdicts or (done < plans and not self.over):
            count = 0 if self.over else int(min(batch, plans - done, self.stop.left(self)))
            part = slice(done, done + count)
            verdict = simulator.judge(
                self.problem,
                placements[part],
                None if priorities is None else priorities[part],
                None if rooms is None else rooms[part],
                threads=threads(count * a.ops),
                fusion=None if groups is None else groups[part],
            )
            self._keep(verdict, placements[part], priorities, rooms, done, groups)
            verdicts.append(verdict)
            done += count
        return verdicts[0] if len(verdicts) == 1 else Verdict.joined(verdicts)

    def walked(
        self,
        evaluations: int,
        device: ArrayLike | None = None,
        priority: ArrayLike | None = None,
        staging: ArrayLike | None = None,
    ) -> Verdict | None:
        """Count plans that a compiled walk has judged by the same rules, and keep the best of them.

        Being counted already, that plan is kept even if the search is over by now.
        """
        self.evaluations += evaluations
        verdict = None
        if device is not None:
            placement = np.ascontiguousarray(np.atleast_2d(device), dtype=np.int32)
            rows = _rows("priority", priority, np.float64, (1, placement.shape[1]))
            rooms = _rows("staging", staging, np.int64, (1, self.problem.arrays.devices))
            verdict = simulator.judge(self.problem, placement, rows, rooms)
            self.evaluations -= 1  # it is one of those counted above
            self._keep(verdict, placement, rows, rooms, 0)
        else:
            self._report()
        return verdict

    def propose(self, plan: Plan) -> None:
        """Judge one whole plan, which may have fused ops.

        Raises:
            PlanError: It was made for other ops or devices.
        """
        check_names(self.problem, plan)
        self.judge(plan.device, plan.priority, plan.staging, plan.fusion)

    def _keep(
        self,
        verdict: Verdict,
        placements: NDArray[np.int32],
        priorities: NDArray[np.float64] | None,
        rooms: NDArray[np.int64] | None,
        done: int,
        groups: NDArray[np.int32] | None = None,
    ) -> None:
        if not len(placements):
            return
        for place, at in enumerate(verdict.order(MOST)):
            key = int(verdict.overflow[at]), float(verdict.value[at])
            if not self._few.memorable(key) and (place or not self._new_to_part(key)):
                break
            # Copies, so that the plans we remember do not keep whole batches alive.
            device = placements[at].copy()
            priority = None if priorities is None else priorities[done + at].copy()
            room = None if rooms is None else rooms[done + at].copy()
            group = None if groups is None else groups[done + at].copy()
            make = partial(Plan.of, self.problem, device, priority, group, room)
            found = Found(key, self.trying, make)
            if place == 0:
                self._improve(found, self.evaluations + at + 1)
            self._few.remember(found, mark(device, room, group))
        self.evaluations += len(placements)
        self._report()

    def _improve(self, found: Found, evaluation: int) -> None:
        if self._new_to_part(found.key):
            self.parts[self.trying] = found
        if found.key < self.key:
            self.best, self.key, self.found_by = found.plan, found.key, self.trying
            self.history.append((evaluation, self.seconds, found.key[1]))

    def _new_to_part(self, key: tuple[float, float]) -> bool:
        known = self.parts.get(self.trying)
        return known is None or key < known.key

    def _report(self) -> None:
        if self.progress is not None:
            self.progress(self)


def solve(
    problem: Problem,
    solver: Solver,
    stop: Stop | None = None,
    seed: int = 0,
    progress: Callable[[Search], None] | None = None,
    start: Plan | None = None,
    choose: Callable[[Search], Found] | None = None,
) -> Result:
    """Run a solver on a problem.

    The same problem, solver, seed, start and number of evaluations give the same plan.

    Args:
        stop: When to stop; without it the solver runs to its own end.
        progress: Called with the search after each batch of plans.
        start: A plan to be judged first, so that the result is no worse.
        choose: Takes one of `search.few`, such as `Robust()`; without it the best is taken.

    A solver with an `as_run` method stands for another runtime: it is judged on the problem that
    this method makes of the given one. The bound is the given one's: what no plan beats here.
    """
    if isinstance(solver, type) or not hasattr(solver, "run"):
        found = f"the class {solver.__name__}" if isinstance(solver, type) else repr(solver)
        raise ConfigError(f"expected a solver such as solvers.Auto(), found {found}")
    given = problem
    if hasattr(solver, "as_run"):
        problem = solver.as_run(given)
    search = Search(problem, Stop() if stop is None else stop, seed, progress)
    if start is not None:
        search.trying = "start"
        search.propose(start)
        search.trying = ""
    if not search.over:
        solver.run(search)
    if search.best is None:
        raise PlanError(f"solver {solver.name!r} judged no plan: a solver must judge at least one")
    plan, found_by, seconds = search.best, search.found_by, search.seconds
    if choose is not None:
        chosen = choose(search)
        plan, found_by = chosen.plan, chosen.found_by
    timeline = simulator.simulate(problem, plan)
    # The bound holds for the ops that are really run, and some bounds for plans that fit only.
    if plan.fusion is None and not timeline.overflow and problem is given:
        proven = search.bound
    else:
        run = given if plan.fusion is None else contract(given, plan).problem
        proven = bound(run, fits=timeline.overflow == 0)
    return Result(
        solver=solver.name,
        plan=plan,
        objective=problem.objective,
        step_time=timeline.step_time,
        period=timeline.period,
        bound=proven.seconds,
        bound_name=proven.name,
        overflow=timeline.overflow,
        evaluations=search.evaluations,
        seconds=seconds,
        seed=seed,
        devices=_uses(problem, plan, timeline),
        found_by=found_by,
        history=tuple(search.history),
        problem=problem,
    )


def called(solver: Solver) -> str:
    """What a solver's plans are said to be by, where another solver asks it for them.

    One that stands for another runtime is judged as if we ran its placement.
    """
    return f"{solver.name}'s placement" if hasattr(solver, "as_run") else solver.name


def _uses(problem: Problem, plan: Plan, timeline: Timeline) -> tuple[Use, ...]:
    counts = np.bincount(plan.device, minlength=len(problem.cluster))
    return tuple(
        Use(
            name=device.name,
            ops=int(counts[at]),
            busy=float(timeline.busy[at]),
            peak=int(timeline.peak[at]),
            limit=int(timeline.capacity[at]),
            reserve=device.reserve,
        )
        for at, device in enumerate(problem.cluster.devices)
    )


def _rows(
    what: str, values: ArrayLike | None, dtype: type[Scalar], shape: tuple[int, int]
) -> NDArray[Scalar] | None:
    """One row a plan, from one a plan or one for all."""
    if values is None:
        return None
    rows = np.atleast_2d(np.asarray(values, dtype=dtype))
    if rows.shape not in (shape, (1, shape[1])):
        raise PlanError(f"the {what} of {shape[0]} plans has shape {rows.shape}: expected {shape}")
    return np.ascontiguousarray(np.broadcast_to(rows, shape))
