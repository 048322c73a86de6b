"""A round of an island: what a worker is given, what it reports, and how a journal keeps that."""

from __future__ import annotations

import base64
import math
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from placewright.errors import FileError
from placewright.plan_batch import PlanBatch
from placewright.solvers.annealing_rounds import AnnealingState, ArmEffort
from placewright.solvers.best_plans import plan_fingerprint
from placewright.solvers.bounds import Bound
from placewright.solvers.search import Search
from placewright.solvers.single import SingleDevices
from placewright.solvers.stop import MaxEvaluations, Stop

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from placewright.files.validation import Data
    from placewright.problem import Problem
    from placewright.solvers.auto import Auto
    from placewright.solvers.best_plans import Candidate
    from placewright.solvers.stop import SearchState

MAX_PLANS = 6  # plans that an island takes into its next round
_DTYPES = {"placement": "<i4", "priority": "<f8", "staging": "<i8", "fusion": "<i4"}


@dataclass(frozen=True, eq=False)
class IslandPlan:
    """A plan of an island.

    Args:
        phase: What found it.
        key: Overflow and objective.
        row: A batch of this one plan.
    """

    phase: str
    key: tuple[float, float]
    row: PlanBatch


@dataclass(frozen=True, eq=False)
class IslandRound:
    """What an island does in one round.

    Args:
        auto: Its settings.
        number: 0 is the first round, which runs all of `auto`; later ones anneal.
        evaluations: Plans that it may evaluate at most.
        is_whole: Whether there is no other round, so that it is `auto` itself.
        deadline: When it must end, in seconds since the epoch: it may run on another machine.
        target: A known lower bound: a plan that reaches it ends the round.
        plans: Plans to start from, best first.
        annealing: How far the rounds before came.
    """

    auto: Auto
    island: int
    number: int
    seed: int
    evaluations: float
    is_whole: bool
    deadline: float = math.inf
    target: float = 0.0
    plans: tuple[IslandPlan, ...] = ()
    annealing: AnnealingState = field(default_factory=AnnealingState)


@dataclass(frozen=True, eq=False)
class IslandReport:
    """What an island did in one round.

    Args:
        plans: Its best plans, best first.
        history: (evaluations, seconds, best objective) of the round each time its best improved.
        bound: A bound that it computed or proved.
        ended: Whether it ended by itself, as it reached the bound or gained no more.
    """

    island: int
    number: int
    evaluations: int
    seconds: float
    plans: tuple[IslandPlan, ...]
    annealing: AnnealingState
    history: tuple[tuple[int, float, float], ...]
    bound: Bound | None
    ended: bool


@dataclass(frozen=True)
class RoundEvaluations(Stop):
    """Over once there is less than one evaluation left for each chain.

    The rest is for the next round: arms that are used for nothing would seem to gain nothing.
    """

    count: int
    chains: int
    certain = True

    def __call__(self, search: SearchState) -> bool:
        return search.evaluations + self.chains > self.count

    def left(self, search: SearchState) -> float:
        return self.count - search.evaluations


@dataclass(frozen=True)
class Deadline(Stop):
    """Over at this moment, in seconds since the epoch."""

    moment: float
    certain = True

    def __call__(self, search: SearchState) -> bool:
        return time.time() >= self.moment

    def seconds_left(self, search: SearchState) -> float:
        return max(0.0, self.moment - time.time())


@dataclass(frozen=True)
class TargetReached(Stop):
    """Over once the best plan fits and takes no longer than this."""

    seconds: float

    def __call__(self, search: SearchState) -> bool:
        overflow, value = search.key
        return overflow == 0 and value <= self.seconds * (1 + 1e-6)


@dataclass(frozen=True)
class RunIslandRounds:
    """The task of a worker: rounds of islands, one after the other."""

    def __call__(self, problem: Problem, items: Sequence[IslandRound]) -> list[IslandReport]:
        return [run_island_round(problem, item) for item in items]


def run_island_round(problem: Problem, start: IslandRound) -> IslandReport:
    """Run one round; it depends on its arguments alone, unless the deadline ends it."""
    stop = Stop()
    if math.isfinite(start.evaluations):
        evaluations, chains = int(start.evaluations), start.auto.chains
        stop |= (
            MaxEvaluations(evaluations) if start.is_whole else RoundEvaluations(evaluations, chains)
        )
    if math.isfinite(start.deadline):
        stop |= Deadline(start.deadline)
    if start.target > 0:
        stop |= TargetReached(start.target)
    search = Search(problem, stop, start.seed)
    for plan in start.plans:
        if not search.over:
            search.phase = plan.phase
            row = plan.row
            search.judge(row.placement, row.priority, row.staging, row.fusion)
    search.phase, state = "", start.annealing
    if not search.over and start.number == 0:
        state = start.auto.start(search)
    elif not search.over:
        state = start.auto.resume(search, start.annealing)
    has_ended = not search.over or (start.target > 0 and TargetReached(start.target)(search))
    own = search.bound if search.bound_known else search.proven_bound
    return IslandReport(
        start.island,
        start.number,
        search.evaluations,
        search.seconds,
        _plans_to_report(search),
        state,
        tuple(search.history),
        own,
        has_ended,
    )


def _plans_to_report(search: Search) -> tuple[IslandPlan, ...]:
    """The best plans of all and of each phase, and the best single device."""
    by_phase = sorted(search.best_by_phase.values(), key=lambda candidate: candidate.key)
    single = search.best_by_phase.get(SingleDevices.name)
    candidates = [*by_phase[:MAX_PLANS], *search.top_plans, *([] if single is None else [single])]
    return distinct_plans(map(_island_plan, candidates))


def distinct_plans(plans: Iterable[IslandPlan]) -> tuple[IslandPlan, ...]:
    """The plans that differ in more than their order of ops, best first."""
    distinct: dict[bytes, IslandPlan] = {}
    for plan in sorted(plans, key=lambda plan: plan.key):
        distinct.setdefault(plan_fingerprint(plan.row), plan)
    return tuple(distinct.values())


def _island_plan(candidate: Candidate) -> IslandPlan:
    return IslandPlan(candidate.found_by, candidate.key, PlanBatch.repeat(candidate.plan))


# -- records of a journal ----------------------------------------------------------------------


def report_record(report: IslandReport) -> Data:
    """A report as plain data."""
    return {
        "island": report.island,
        "round": report.number,
        "evaluations": report.evaluations,
        "seconds": report.seconds,
        "ended": report.ended,
        "bound": None if report.bound is None else [report.bound.seconds, report.bound.name],
        "history": [list(improvement) for improvement in report.history],
        "annealing": asdict(report.annealing),
        "plans": [
            {"phase": plan.phase, "key": list(plan.key), **_row_record(plan.row)}
            for plan in report.plans
        ],
    }


def read_report(problem: Problem, record: Data) -> IslandReport:
    """The report that plain data describe.

    Raises:
        FileError: The data are malformed, or of another problem.
    """
    try:
        annealing, bound = record["annealing"], record["bound"]
        return IslandReport(
            int(record["island"]),
            int(record["round"]),
            int(record["evaluations"]),
            float(record["seconds"]),
            tuple(_read_plan(problem, plan) for plan in record["plans"]),
            AnnealingState(
                tuple(ArmEffort(**arm) for arm in annealing["arms"]),
                int(annealing["round_count"]),
                int(annealing["idle_rounds"]),
            ),
            tuple((int(at), float(when), float(value)) for at, when, value in record["history"]),
            None if bound is None else Bound(float(bound[0]), str(bound[1])),
            bool(record["ended"]),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise FileError(f"the journal has a malformed round of an island: {error!r}") from None


def _row_record(row: PlanBatch) -> Data:
    fields = zip(("placement", "priority", "staging", "fusion"), _parts(row), strict=True)
    return {
        name: base64.b64encode(array[0].astype(_DTYPES[name]).tobytes()).decode()
        for name, array in fields
        if array is not None
    }


def _parts(row: PlanBatch) -> tuple[Any, ...]:
    return row.placement, row.priority, row.staging, row.fusion


def _read_plan(problem: Problem, record: Data) -> IslandPlan:
    arrays: dict[str, Any] = {}
    for name, dtype in _DTYPES.items():
        if name in record:
            array = np.frombuffer(base64.b64decode(record[name], validate=True), dtype=dtype)
            length = problem.arrays.devices if name == "staging" else problem.arrays.ops
            if array.shape != (length,):
                raise ValueError(f"a {name} of {len(array)} entries: expected {length}")
            arrays[name] = array.astype(array.dtype.newbyteorder("="))[None]
    overflow, value = record["key"]
    return IslandPlan(str(record["phase"]), (float(overflow), float(value)), PlanBatch(**arrays))
