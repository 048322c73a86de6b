"""Starts of searches: a stored plan is evaluated again before it is believed, results are stored.

A store that cannot be used is a warning, and the search goes on without it.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from placewright import files
from placewright.errors import PlacewrightError
from placewright.plan import Plan
from placewright.simulator import simulate
from placewright.simulator.plan_key import problem_key
from placewright.store.plan_records import PlanRecord
from placewright.store.store import warn_of_failure
from placewright.units import format_seconds
from placewright.version import __version__
from placewright.workload_plan import WorkloadPlan
from placewright.workload_result import WorkloadResult, weighted_sum, worst_overflow

if TYPE_CHECKING:
    from placewright.problem import Problem
    from placewright.result import Result
    from placewright.store.store import Store
    from placewright.workload import Workload

TOLERANCE = 1e-9
"""How far the time of a stored plan may be from what it is now: sums round differently."""

P = TypeVar("P", Plan, WorkloadPlan)
logger = logging.getLogger("placewright")


@dataclass(frozen=True, eq=False)
class SearchStart(Generic[P]):
    """A stored plan to start from, with the figures that it has now.

    Args:
        record: What the store has of it.
    """

    plan: P
    overflow: int
    seconds: float
    record: PlanRecord

    @property
    def text(self) -> str:
        """What it is, in a line."""
        fits = "" if self.overflow == 0 else ", which does not fit"
        seconds = format_seconds(self.seconds)
        return f"started from a stored plan of {self.record.day}: {seconds}{fits}"

    @property
    def data(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "key": self.record.key,
            "created_at": self.record.created_at,
            "seconds": self.seconds,
            "overflow": self.overflow,
        }


def find_start(store: Store, problem: Problem, fuse: bool = False) -> SearchStart[Plan] | None:
    """The best stored plan of a problem, evaluated again; None if there is none."""
    record = _find_record(store, problem, fuse)
    if record is None:
        return None
    try:
        plan = files.plan_for(problem, files.from_data(record.data, "plan"))
        timeline = simulate(problem, plan)
    except PlacewrightError as error:
        _discard(store, record, str(error))
        return None
    seconds = timeline.step_time if problem.objective == "step" else timeline.period
    return _checked(store, SearchStart(plan, timeline.overflow, seconds, record))


def find_workload_start(store: Store, workload: Workload) -> SearchStart[WorkloadPlan] | None:
    """The best stored plan of a workload, evaluated again; None if there is none."""
    record = _find_record(store, workload, False)
    if record is None:
        return None
    try:
        plan = files.workload_plan_for(workload, files.from_data(record.data, "workload_plan"))
        full_plans = plan.full_plans(workload)
        timelines = [
            simulate(problem, full_plan)
            for problem, full_plan in zip(workload.problems, full_plans, strict=True)
        ]
    except PlacewrightError as error:
        _discard(store, record, str(error))
        return None
    is_step = workload.objective == "step"
    values = [timeline.step_time if is_step else timeline.period for timeline in timelines]
    overflow = worst_overflow(
        [(timeline.peak - timeline.capacity).tolist() for timeline in timelines], full_plans
    )
    seconds = weighted_sum(tuple(workload.counts.tolist()), values)
    return _checked(store, SearchStart(plan, overflow, seconds, record))


def store_result(
    store: Store,
    problem: Problem | Workload,
    result: Result | WorkloadResult,
    name: str,
    fuse: bool = False,
) -> bool:
    """Store a result if there is none that is as good; whether it was stored.

    A result that was evaluated as another runtime runs it is not stored.
    """
    solved = result.workload if isinstance(result, WorkloadResult) else result.problem
    value, bound = result.objective_value, result.bound
    if store.database is None or solved is not problem or not math.isfinite(value):
        return False
    now = time.time()
    data = files.to_data(result)
    record = PlanRecord(
        key=problem_key(problem, fuse),
        kind="workload" if isinstance(result, WorkloadResult) else "problem",
        name=name,
        cluster=problem.cluster.name,
        objective=result.objective,
        overflow=int(result.overflow),
        seconds=float(value),
        bound=float(bound) if math.isfinite(bound) else 0.0,
        method=result.solver,
        digest=str(data.get("plan_digest", "")),
        version=__version__,
        created_at=now,
        used_at=now,
        data=data,
    )
    return warn_of_failure(lambda: store.put_plan(record), False)


def _find_record(store: Store, problem: Problem | Workload, fuse: bool) -> PlanRecord | None:
    if store.database is None:
        return None
    key = problem_key(problem, fuse)
    return warn_of_failure(lambda: store.get_plan(key), None)


def _checked(store: Store, start: SearchStart[P]) -> SearchStart[P]:
    """The start; a record whose figures are not those of its plan is removed."""
    record = start.record
    is_same = start.overflow == record.overflow and math.isclose(
        start.seconds, record.seconds, rel_tol=TOLERANCE, abs_tol=0.0
    )
    if not is_same:
        stored, now = format_seconds(record.seconds), format_seconds(start.seconds)
        _discard(store, record, f"it was stored with {stored} and takes {now}")
    return start


def _discard(store: Store, record: PlanRecord, reason: str) -> None:
    logger.warning("the stored plan %s is removed: %s", record.key[:8], reason)
    warn_of_failure(lambda: store.remove_plan(record), False)
