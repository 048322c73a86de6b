"""Islands: several `auto` side by side, which exchange their best plans between rounds.

The island model of evolutionary search (Tanese 1989; Whitley, Rana and Heckendorn 1999), with
`auto` on each island. A round lasts a fixed number of evaluations, and then to the end of the
current round of annealing. Island 0 gives its plans and takes none: it is `auto` with the seed of
the run, so that the result is never worse than that of `auto` with an island's share of the
evaluations. A round is a pure function of its start, so the plan does not depend on the workers:
not on their kind, not on their number, not on those that die.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from placewright import simulator
from placewright.errors import ConfigError, PlanError
from placewright.files.journal import Journal
from placewright.simulator.plan_key import problem_key
from placewright.solvers.auto import Auto
from placewright.solvers.island_rounds import (
    IslandReport,
    IslandRound,
    RunIslandRounds,
    TargetReached,
    read_report,
    report_record,
)
from placewright.solvers.search_snapshot import PhasePlan
from placewright.solvers.searches.annealing import first_round_length
from placewright.workers import as_workers
from placewright.workers.worker_spec import usable_cores

if TYPE_CHECKING:
    import os
    from concurrent.futures import Future

    from placewright.files.journal import JournalSection
    from placewright.files.validation import Data
    from placewright.plan_batch import PlanBatch
    from placewright.problem import Problem
    from placewright.solvers.search import Search
    from placewright.workers import Workers

Exchange = Literal["ring", "best", "none"]
EXCHANGES: tuple[Exchange, ...] = ("ring", "best", "none")
DEFAULT_ISLANDS = 4
_ROUND_FACTOR = 16  # evaluations of a round, in first rounds of an annealing chain: some seconds
_GRACE_SECONDS = 120.0  # seconds after its deadline at which an island counts as hanging


@dataclass(frozen=True)
class Islands:
    """Several `auto` on workers, which exchange their best plans between rounds.

    The evaluations of the stop rule are divided among the islands; each has all of its seconds.
    The same seed, islands, round and evaluations give the same plan with any workers.

    Args:
        count: How many islands. A single one works in rounds too.
        autos: Settings of the islands, which take turns: island `i` has those at `i` modulo their
            number. Each island has a seed of its own.
        round_evaluations: Evaluations of an island between two exchanges; by default some seconds.
        exchange: Whose best plan an island gets: `ring`, that of the island before it; `best`, the
            best of all; `none`, nobody's.
        workers: Workers, or text such as `processes:8`; by default those of `solve`, or else a
            process for each island, as far as there are cores.
        journal: A journal, or the name of its file: each finished round is written to it, and a run
            with the same settings goes on from there.
    """

    count: int = DEFAULT_ISLANDS
    autos: tuple[Auto, ...] = (Auto(),)
    round_evaluations: int | None = None
    exchange: Exchange = "ring"
    workers: Workers | str | int | None = None
    journal: Journal | str | os.PathLike[str] | None = None
    name = "islands"

    def __post_init__(self) -> None:
        if not self.count >= 1:
            raise ConfigError(f"{self.count!r} islands: expected at least 1")
        if self.exchange not in EXCHANGES:
            raise ConfigError(
                f"islands that exchange by {self.exchange!r}: expected {', '.join(EXCHANGES)}"
            )
        if not self.autos or not all(isinstance(auto, Auto) for auto in self.autos):
            raise ConfigError(f"islands of {self.autos!r}: expected one or several Auto()")
        if self.round_evaluations is not None and self.round_evaluations < 1:
            raise ConfigError(f"rounds of {self.round_evaluations!r} plans: expected 1 or more")

    def run(self, search: Search) -> None:
        with ExitStack() as stack:
            journal = self.journal
            if journal is not None and not isinstance(journal, Journal):
                journal = stack.enter_context(Journal(journal))
            section = None if journal is None else journal.section("search", _run_key(self, search))
            spec = search.workers if self.workers is None else self.workers
            if spec is None:
                spec = f"processes:{min(self.count, usable_cores())}"
            workers = stack.enter_context(as_workers(spec))
            assert workers is not None
            _IslandSearch(self, search, workers, section).run()


class _IslandSearch:
    """One run of islands: gives rounds to workers, and their plans to the search."""

    def __init__(
        self, islands: Islands, search: Search, workers: Workers, section: JournalSection | None
    ) -> None:
        self.islands, self.search, self.workers, self.section = islands, search, workers, section
        self.finished: dict[tuple[int, int], IslandReport] = {}
        """Reports that an earlier process wrote, by island and round."""
        rows: dict[str, PlanBatch] = {}
        for record in [] if section is None else section.records:
            report = read_report(search.problem, record, rows)
            self.finished[report.island, report.number] = report
            search.earlier_seconds = max(search.earlier_seconds, float(record["elapsed"]))
        self.written = set(rows)
        self.recorded: set[str] = set()
        self.deadline = time.time() + search.stop.seconds_left(search)
        self.round_length = _round_length(islands, search.problem)
        self.warm_starts = tuple(map(PhasePlan.of, search.best_by_phase.values()))
        self.shares = [
            share + len(self.warm_starts)  # which the search has counted before
            for share in _shares(search.stop.left(search), islands.count)
            if share >= 1
        ]

    def run(self) -> None:
        starts = [
            IslandRound(
                self._auto(island),
                island,
                0,
                island_seed(self.search.seed, island),
                self.round_length + len(self.warm_starts),
                evaluations,
                self.deadline,
                plans=self.warm_starts,
            )
            for island, evaluations in enumerate(self.shares)
        ]
        latest: dict[int, IslandReport] = {}
        while starts:
            reports = self._run_rounds(starts)
            for report in reports:
                self._record(report)
                latest[report.island] = report
            bounds = [report.search.bound for report in latest.values()]
            target = max((bound.seconds for bound in bounds if bound is not None), default=0.0)
            starts = self._next_starts(latest, target)
            # What earlier processes finished counts, also where no time is left.
            is_known = all((start.island, start.number) in self.finished for start in starts)
            if TargetReached(target)(self.search) or (self.search.over and not is_known):
                break

    def _next_starts(self, latest: dict[int, IslandReport], target: float) -> list[IslandRound]:
        """The next round of all islands that may still gain."""
        starts = []
        for island, report in latest.items():
            newcomers = self._newcomers(latest, island)
            gains = any(plan.key < report.search.best.key for plan in newcomers)
            is_spent = report.search.evaluations >= self.shares[island]
            if is_spent or (report.has_ended and not gains):
                continue
            starts.append(
                IslandRound(
                    self._auto(island),
                    island,
                    report.number + 1,
                    island_seed(self.search.seed, island),
                    self.round_length,
                    self.shares[island],
                    self.deadline,
                    target,
                    newcomers,
                    report,
                )
            )
        return starts

    def _newcomers(self, latest: dict[int, IslandReport], island: int) -> tuple[PhasePlan, ...]:
        """The plan that an island gets from another one, unless it is its own best."""
        if island == 0 or self.islands.exchange == "none":
            return ()
        if self.islands.exchange == "ring":  # plans spread slowly: islands differ for longer
            given = latest[island - 1].search.best
        else:
            given = min((each.search.best for each in latest.values()), key=lambda plan: plan.key)
        if given.digest == latest[island].search.best.digest:
            return ()
        return (PhasePlan("exchange", given.key, given.row),)

    def _auto(self, island: int) -> Auto:
        return self.islands.autos[island % len(self.islands.autos)]

    def _run_rounds(self, starts: list[IslandRound]) -> list[IslandReport]:
        """The reports of rounds; each is in the journal as soon as it is there."""
        known = {(start.island, start.number): start for start in starts}
        reports = {at: self.finished[at] for at in known if at in self.finished}
        timeout = max(0.0, self.deadline - time.time()) + _GRACE_SECONDS
        futures: dict[Future[list[IslandReport]], tuple[int, int]] = {
            self.workers.submit(
                RunIslandRounds(), [start], self.search.problem, timeout=timeout
            ): at
            for at, start in known.items()
            if at not in reports
        }
        try:
            for future in as_completed(futures):
                [report] = future.result()
                reports[futures[future]] = report
                if self.section is not None:
                    record = report_record(report, self.written)
                    self.section.append({**record, "elapsed": self.search.seconds})
        finally:
            for future in futures:
                future.cancel()
        return [reports[at] for at in known]

    def _record(self, report: IslandReport) -> None:
        """Count an island's plans, and let the search keep the best of them."""
        search, snapshot = self.search, report.search
        count = report.evaluations - (0 if report.number else len(self.warm_starts))
        if self.islands.count == 1:  # it is one search: nothing of it is lost
            self._check(snapshot.best)
            snapshot.restore(search)
            search.count_external(0)
            return
        search.count_external(count)
        plans = (snapshot.best, *snapshot.top, *snapshot.by_phase)
        for plan in plans:
            if plan.digest not in self.recorded:
                self.recorded.add(plan.digest)
                search.phase = plan.phase
                self._check(plan)
                search.count_external(0, plan.row)
        if snapshot.bound is not None:
            search.prove(snapshot.bound.seconds, snapshot.bound.name)

    def _check(self, plan: PhasePlan) -> None:
        """Check that this process agrees with the worker, which may be on another machine."""
        key = simulator.judge_batch(self.search.problem, plan.row).key(0)
        if key != plan.key:
            raise PlanError(
                f"a worker found {plan.key} for a plan that has {key} here: expected the same "
                "release and simulator on all workers, and for the whole of a journal"
            )


def island_seed(seed: int, island: int) -> int:
    """The seed of an island; island 0 has that of the run."""
    if island == 0:
        return seed
    state = np.random.SeedSequence([seed, island]).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


def _round_length(islands: Islands, problem: Problem) -> int:
    return islands.round_evaluations or _ROUND_FACTOR * first_round_length(problem)


def _shares(evaluations: float, count: int) -> list[float]:
    """The evaluations of each island."""
    if math.isinf(evaluations):
        return [math.inf] * count
    each, rest = divmod(int(evaluations), count)
    return [float(each + (island < rest)) for island in range(count)]


def _run_key(islands: Islands, search: Search) -> Data:
    """What the rounds of a run depend on."""
    evaluations = search.stop.left(search)
    starts = [PhasePlan.of(candidate) for candidate in search.best_by_phase.values()]
    return {
        "problem": problem_key(search.problem, any(auto.fuse for auto in islands.autos)),
        "seed": int(search.seed),
        "islands": islands.count,
        "round": _round_length(islands, search.problem),
        "exchange": islands.exchange,
        "evaluations": None if math.isinf(evaluations) else int(evaluations),
        "auto": [_auto_key(auto) for auto in islands.autos],
        "warm start": ", ".join(f"{start.phase} {start.digest}" for start in starts),
    }


def _auto_key(auto: Auto) -> list[Any]:
    settings = [auto.chains, auto.first_evaluations, auto.exact, auto.fuse]
    return [*settings, *(proposer.name for proposer in auto.proposers)]
