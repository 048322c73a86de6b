"""A round of an island: what a worker is given, what it reports, and how a journal keeps that."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from placewright.errors import FileError
from placewright.solvers.annealing_rounds import AnnealingSnapshot, ArmEffort
from placewright.solvers.auto import AutoSnapshot
from placewright.solvers.search import Search
from placewright.solvers.search_snapshot import (
    PhasePlan,
    SearchSnapshot,
    read_snapshot,
    snapshot_record,
)
from placewright.solvers.stop import MaxEvaluations, Stop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placewright.files.validation import Data
    from placewright.plan_batch import PlanBatch
    from placewright.problem import Problem
    from placewright.solvers.auto import Auto
    from placewright.solvers.stop import SearchState


@dataclass(frozen=True, eq=False)
class IslandRound:
    """What an island does in one round.

    Args:
        auto: Its settings.
        number: Counts the rounds of an island from 0.
        length: Plans after which it pauses, between two rounds of annealing.
        evaluations: Plans that the island may evaluate in all its rounds.
        deadline: When it must end, in seconds since the epoch: it may run on another machine.
        target: A known lower bound: a plan that reaches it ends the round.
        plans: Plans to evaluate first.
        before: The report of its round before.
    """

    auto: Auto
    island: int
    number: int
    seed: int
    length: int
    evaluations: float
    deadline: float = math.inf
    target: float = 0.0
    plans: tuple[PhasePlan, ...] = ()
    before: IslandReport | None = None


@dataclass(frozen=True, eq=False)
class IslandReport:
    """Where an island is after a round.

    Args:
        evaluations: Plans of this round.
        has_ended: Whether it ended by itself: it reached the bound, or gains no more.
    """

    island: int
    number: int
    evaluations: int
    search: SearchSnapshot
    auto: AutoSnapshot
    has_ended: bool


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
        stop |= MaxEvaluations(int(start.evaluations))
    if math.isfinite(start.deadline):
        stop |= Deadline(start.deadline)
    if start.target > 0:
        stop |= TargetReached(start.target)
    search = Search(problem, stop, start.seed)
    state = AutoSnapshot()
    if start.before is not None:
        start.before.search.restore(search)
        search.earlier_seconds = start.before.search.seconds
        state = start.before.auto
    before, best = search.evaluations, search.key
    for plan in start.plans:
        if not search.over:
            search.phase, row = plan.phase, plan.row
            search.judge(row.placement, row.priority, row.staging, row.fusion)
    search.phase = ""
    if start.before is not None and search.key < best:
        state = state.revived()
    if not search.over:
        state = start.auto.run_until(search, before + start.length, state)
    reached = start.target > 0 and TargetReached(start.target)(search)
    return IslandReport(
        start.island,
        start.number,
        search.evaluations - before,
        SearchSnapshot.of(search),
        state,
        reached or (state.is_over and not search.over),
    )


# -- records of a journal ----------------------------------------------------------------------


def report_record(report: IslandReport, written: set[str]) -> Data:
    """A report as plain data.

    Args:
        written: Digests of plans that earlier records have; those of this one are added.
    """
    return {
        "island": report.island,
        "round": report.number,
        "evaluations": report.evaluations,
        "has_ended": report.has_ended,
        "auto": asdict(report.auto),
        "search": snapshot_record(report.search, written),
    }


def read_report(problem: Problem, record: Data, rows: dict[str, PlanBatch]) -> IslandReport:
    """The report that plain data describe.

    Args:
        rows: Plans of earlier records by digest; those of this one are added.

    Raises:
        FileError: The data are malformed, or of another problem.
    """
    try:
        return IslandReport(
            int(record["island"]),
            int(record["round"]),
            int(record["evaluations"]),
            read_snapshot(problem, record["search"], rows),
            _read_auto(record["auto"]),
            bool(record["has_ended"]),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise FileError(f"the journal has a malformed round of an island: {error!r}") from None


def _read_auto(record: Data) -> AutoSnapshot:
    annealing = record["annealing"]
    expected, used = record["proposer_seconds"]
    return AutoSnapshot(
        int(record["stage"]),
        int(record["stage_rounds"]),
        bool(record["is_over"]),
        None if annealing is None else _read_annealing(annealing),
        (float(expected), float(used)),
        tuple(map(str, record["without_moves"])),
    )


def _read_annealing(record: Data) -> AnnealingSnapshot:
    overflow, value = record["key"]
    return AnnealingSnapshot(
        bool(record["streams"]),
        tuple(map(str, record["proposers"])),
        tuple(ArmEffort(**arm) for arm in record["arms"]),
        int(record["round_count"]),
        int(record["idle_rounds"]),
        (float(overflow), float(value)),
        tuple(map(int, record["memory_margin"])),
    )
