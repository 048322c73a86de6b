"""Islands: several `auto` side by side, which exchange their best plans between rounds.

The island model of evolutionary search (Tanese 1989; Whitley, Rana and Heckendorn 1999), with
annealing on each island. Island 0 is `auto` itself with the seed of the run, undisturbed from its
first plan to its last, so that the result is never worse than `auto` with an island's share of the
evaluations. The others work in rounds of a fixed number of evaluations, and exchange plans after
each. A round is a pure function of its start, so the plan does not depend on the workers: not on
their kind, not on their number, not on those that die.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import ExitStack
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from placewright.errors import ConfigError, PlanError
from placewright.files.journal import Journal
from placewright.plan_batch import PlanBatch
from placewright.solvers.annealing_rounds import AnnealingState
from placewright.solvers.auto import Auto
from placewright.solvers.island_rounds import (
    MAX_PLANS,
    IslandPlan,
    IslandReport,
    IslandRound,
    RunIslandRounds,
    TargetReached,
    distinct_plans,
    read_report,
    report_record,
)
from placewright.solvers.searches.annealing import first_round_length
from placewright.solvers.single import SingleDevices
from placewright.workers import as_workers
from placewright.workers.worker_spec import usable_cores

if TYPE_CHECKING:
    import os
    from concurrent.futures import Future

    from placewright.files.journal import JournalSection
    from placewright.files.validation import Data
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
        self.started, self.seconds_left = time.time(), search.stop.seconds_left(search)
        self.finished: dict[tuple[int, int], IslandReport] = {}
        """Reports that an earlier run wrote, by island and round."""
        for record in [] if section is None else section.records:
            report = read_report(search.problem, record)
            self.finished[report.island, report.number] = report
            search.earlier_seconds = max(search.earlier_seconds, float(record["elapsed"]))
        self.seconds_left = search.stop.seconds_left(search)
        self.round_length = _round_length(islands, search.problem)
        self.shares = _shares(search.stop.left(search), islands.count)
        self.is_limited = math.isfinite(sum(self.shares))
        self.start_plans = tuple(
            IslandPlan(candidate.found_by, candidate.key, PlanBatch.repeat(candidate.plan))
            for candidate in search.best_by_phase.values()
        )

    def run(self) -> None:
        search = self.search
        plain = None
        in_rounds = [island for island, share in enumerate(self.shares) if share >= 1]
        if len(in_rounds) > 1:  # the first is not cut into rounds
            share = min(1.0, self.workers.count / len(in_rounds))
            plain = self._begin(self._start(in_rounds.pop(0), 0, share))
        starts = [self._start(island, 0) for island in in_rounds]
        used = dict.fromkeys(in_rounds, 0)
        while starts:
            reports = self._finish([self._begin(start) for start in starts], plain)
            for report in reports:
                used[report.island] += report.evaluations
                self._record(report)
            is_proven = self._reaches_bound(reports)
            if not self.is_limited and plain is not None and plain.done():
                is_proven |= self._reaches_bound([plain.report()])
            starts = self._next_starts(reports, starts, used)
            # What earlier processes finished counts, also where no time is left.
            is_known = all((start.island, start.number) in self.finished for start in starts)
            if is_proven or (search.over and not is_known):
                break
        if plain is not None:
            self._record(self._finish([plain])[0])

    def _start(self, island: int, number: int, share: float | None = None) -> IslandRound:
        """The first round of an island, or all of island 0.

        Args:
            share: Of the time left, for an island that is not cut into rounds.
        """
        evaluations = self.shares[island]
        seconds = self.seconds_left * (1.0 if share is None else share)
        return IslandRound(
            self._auto(island),
            island,
            number,
            island_seed(self.search.seed, island, number),
            evaluations if share is not None else min(evaluations, self.round_length),
            share is not None,
            self.started + seconds,
            plans=self.start_plans,
        )

    def _next_starts(
        self, reports: list[IslandReport], starts: list[IslandRound], used: dict[int, int]
    ) -> list[IslandRound]:
        """The next round of all islands that may still gain."""
        target = max((start.target for start in starts), default=0.0)
        target = max([target, *(each.bound.seconds for each in reports if each.bound is not None)])
        next_starts = []
        for position, report in enumerate(reports):
            newcomer = self._newcomer(reports, position)
            has_gained = newcomer is not None and newcomer.key < report.plans[0].key
            evaluations = min(self.shares[report.island] - used[report.island], self.round_length)
            if evaluations < 1 or (report.ended and not has_gained):
                continue
            number, annealing = report.number + 1, report.annealing
            if has_gained:
                annealing = AnnealingState(annealing.arms, annealing.round_count)
            next_starts.append(
                IslandRound(
                    self._auto(report.island),
                    report.island,
                    number,
                    island_seed(self.search.seed, report.island, number),
                    evaluations,
                    False,
                    self.started + self.seconds_left,
                    target,
                    _start_plans(report, newcomer),
                    annealing,
                )
            )
        return next_starts

    def _newcomer(self, reports: list[IslandReport], position: int) -> IslandPlan | None:
        """The plan that an island gets from the others."""
        exchange = self.islands.exchange
        if exchange == "none" or len(reports) == 1:
            return None
        if exchange == "ring":  # plans spread slowly, so that islands stay different for a while
            return reports[position - 1].plans[0]
        return min((report.plans[0] for report in reports), key=lambda plan: plan.key)

    def _auto(self, island: int) -> Auto:
        return self.islands.autos[island % len(self.islands.autos)]

    def _begin(self, start: IslandRound) -> _PendingRound:
        if (report := self.finished.get((start.island, start.number))) is not None:
            return _PendingRound(report)
        timeout = max(0.0, start.deadline - time.time()) + _GRACE_SECONDS
        task = RunIslandRounds()
        return _PendingRound(
            None, self.workers.submit(task, [start], self.search.problem, timeout=timeout)
        )

    def _finish(
        self, rounds: list[_PendingRound], plain: _PendingRound | None = None
    ) -> list[IslandReport]:
        """The reports of all rounds; each is in the journal as soon as it is there."""
        waiting = [each for each in rounds if not each.written]
        while waiting:
            futures = [each.future for each in (*waiting, plain) if each is not None]
            pending = [future for future in futures if future is not None and not future.done()]
            for each in (*waiting, plain):
                if each is not None and each.done() and not each.written:
                    self._write(each.report())
                    each.written = True
            waiting = [each for each in waiting if not each.written]
            if waiting and pending:
                wait(pending, return_when=FIRST_COMPLETED)
        return [each.report() for each in rounds]

    def _write(self, report: IslandReport) -> None:
        if self.section is not None:
            elapsed = self.search.seconds
            self.section.append({**report_record(report), "elapsed": elapsed})

    def _record(self, report: IslandReport) -> None:
        """Count an island's plans, and let the search keep the best of them."""
        search, count = self.search, report.evaluations
        for plan in report.plans:
            search.phase = plan.phase
            verdict = search.count_external(count, plan.row)
            count = 0  # each is one of those that are counted with the first
            if verdict is None or verdict.key(0) != plan.key:
                found = None if verdict is None else verdict.key(0)
                raise PlanError(
                    f"a plan of island {report.island} has {plan.key} there and {found} here: "
                    "expected the same simulator on all workers and for the whole journal"
                )
        if report.bound is not None:
            search.prove(report.bound.seconds, report.bound.name)

    def _reaches_bound(self, reports: list[IslandReport]) -> bool:
        return any(
            report.bound is not None and TargetReached(report.bound.seconds)(self.search)
            for report in reports
        )


@dataclass
class _PendingRound:
    """A round that a worker runs, or one that is finished already."""

    finished: IslandReport | None
    future: Future[list[IslandReport]] | None = None

    def __post_init__(self) -> None:
        self.written = self.finished is not None

    def done(self) -> bool:
        return self.future is None or self.future.done()

    def report(self) -> IslandReport:
        if self.finished is None:
            assert self.future is not None
            self.finished = self.future.result()[0]
        return self.finished


def island_seed(seed: int, island: int, number: int) -> int:
    """The seed of a round; island 0 begins with that of the run."""
    if island == 0 and number == 0:
        return seed
    state = np.random.SeedSequence([seed, island, number]).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


def _start_plans(report: IslandReport, newcomer: IslandPlan | None) -> tuple[IslandPlan, ...]:
    """An island's own best plans, its best single device, and what it got from another one."""
    single = [plan for plan in report.plans if plan.phase == SingleDevices.name]
    kept = [*report.plans[:MAX_PLANS], *single]
    if newcomer is not None:
        kept.append(IslandPlan("exchange", newcomer.key, newcomer.row))
    return distinct_plans(kept)


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
    starts = [candidate.plan.placement for candidate in search.best_by_phase.values()]
    return {
        "problem": _problem_digest(search.problem),
        "seed": int(search.seed),
        "islands": islands.count,
        "round": _round_length(islands, search.problem),
        "exchange": islands.exchange,
        "evaluations": None if math.isinf(evaluations) else int(evaluations),
        "auto": [_auto_key(auto) for auto in islands.autos],
        "warm start": _digest(*starts) if starts else "",
    }


def _auto_key(auto: Auto) -> list[Any]:
    settings = [auto.chains, auto.first_evaluations, auto.exact, auto.fuse]
    return [*settings, *(proposer.name for proposer in auto.proposers)]


def _problem_digest(problem: Problem) -> str:
    arrays = problem.arrays
    texts = [problem.objective, problem.discipline, str(problem.overlap), problem.graph.fingerprint]
    names = ",".join(device.name for device in problem.cluster.devices)
    parts = [np.frombuffer("|".join([*texts, names]).encode(), dtype=np.uint8)]
    return _digest(*parts, *(getattr(arrays, field.name) for field in fields(arrays)))


def _digest(*arrays: Any) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in itertools.chain(arrays):
        digest.update(repr((array.shape, array.dtype.str)).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
