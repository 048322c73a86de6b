"""Islands: the plan depends neither on workers nor on kills, and is no worse than `auto`'s."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from small_problems import random_problem

import placewright as pw
from placewright import Cluster, MaxEvaluations, MaxTime, Problem, solve
from placewright.errors import ConfigError, FileError
from placewright.solvers import Auto, Islands, Search, island_rounds, islands
from placewright.solvers.search_snapshot import SearchSnapshot
from placewright.solvers.stop import Gap
from placewright.workers import open_workers
from placewright.zoo import load

if TYPE_CHECKING:
    from pathlib import Path

    from placewright.result import Result
    from placewright.workers import Workers

QUICK = (Auto(first_evaluations=40, exact=False),)
"""Short rounds of annealing, so that a few hundred plans are several exchanges."""
EVALUATIONS = MaxEvaluations(1_801)
FOUR = "4xP100+cpu"


@cache
def branches() -> Problem:
    """A network of some hundred ops."""
    return Problem(load("branches"), Cluster.parse("2xP100+cpu"))


@cache
def any_problem(seed: int) -> Problem:
    return random_problem(seed, ops=14)


def quick(count: int = 3, workers: Workers | str = "threads:1", **settings: object) -> Islands:
    return Islands(count, QUICK, round_evaluations=150, workers=workers, **settings)  # type: ignore[arg-type]


@cache
def undisturbed() -> Result:
    return solve(branches(), quick(), EVALUATIONS, seed=5)


def assert_same(result: Result, expected: Result) -> None:
    assert result.plan == expected.plan
    assert result.objective_value == expected.objective_value
    assert result.evaluations == expected.evaluations
    assert (result.bound, result.found_by) == (expected.bound, expected.found_by)
    figures = [[entry[0::2] for entry in one.history] for one in (result, expected)]
    assert figures[0] == figures[1]


@pytest.mark.parametrize("workers", ["threads:3", "processes:2"])
def test_any_workers_give_the_same_plan(workers):
    assert undisturbed().evaluations == 1_801
    assert_same(solve(branches(), quick(workers=workers), EVALUATIONS, seed=5), undisturbed())


@pytest.mark.slow
def test_ray_gives_the_same_plan():
    pytest.importorskip("ray")
    assert_same(solve(branches(), quick(workers="ray:2"), EVALUATIONS, seed=5), undisturbed())


@pytest.mark.parametrize("exchange", ["ring", "best", "none"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_islands_are_never_worse_than_auto_with_the_evaluations_of_one(seed, exchange):
    problem = any_problem(seed)
    alone = solve(problem, QUICK[0], MaxEvaluations(400), seed=seed, select="best")
    three = solve(
        problem, quick(exchange=exchange), MaxEvaluations(1_200), seed=seed, select="best"
    )
    assert (three.overflow, three.objective_value) <= (alone.overflow, alone.objective_value)
    assert three.evaluations <= 1_200


def test_the_bound_and_the_proof_are_those_of_auto():
    for seed in range(2):
        problem = any_problem(seed)
        alone = solve(problem, Auto(exact=False), MaxEvaluations(500), seed=seed)
        three = solve(problem, replace(quick(), autos=(Auto(exact=False),)), MaxEvaluations(1_500))
        assert (three.bound, three.bound_name) == (alone.bound, alone.bound_name)


def test_what_an_island_proves_is_the_bound_of_the_result(monkeypatch):
    """As if CP-SAT proved a little more than is known, on island 0: the others end before."""
    pytest.importorskip("ortools")
    problem = next(
        each
        for each in map(any_problem, range(20))
        if solve(each, QUICK[0], MaxEvaluations(2_000), select="best").gap > 0.01
    )
    bound = pw.evaluate(problem, solve(problem, QUICK[0], MaxEvaluations(9)).plan).bound * 1.001
    monkeypatch.setattr(
        "placewright.solvers.auto.Exact.run", lambda _, search: search.prove(bound, "exact")
    )
    proving = (replace(QUICK[0], exact=True),)
    result = solve(problem, replace(quick(2), autos=proving), MaxEvaluations(20_000), select="best")
    assert (result.bound, result.bound_name) == (bound, "exact")


def test_plans_go_round_the_ring_and_best_goes_to_all(monkeypatch):
    starts: dict[tuple[int, int], island_rounds.IslandRound] = {}
    reports: dict[tuple[int, int], island_rounds.IslandReport] = {}
    run_round = island_rounds.run_island_round

    def watch(problem, start):
        starts[start.island, start.number] = start
        reports[start.island, start.number] = run_round(problem, start)
        return reports[start.island, start.number]

    monkeypatch.setattr(island_rounds, "run_island_round", watch)
    for exchange in islands.EXCHANGES:
        starts.clear()
        solve(branches(), quick(4, exchange=exchange), MaxEvaluations(1_600), seed=1)
        first = [reports[island, 0].search.best for island in range(4)]
        best = min(first, key=lambda plan: plan.key)
        for island in range(4):
            given = {"ring": first[island - 1], "best": best, "none": first[island]}[exchange]
            is_new = island > 0 and given.digest != first[island].digest
            newcomers = starts[island, 1].plans
            assert [plan.digest for plan in newcomers] == [given.digest] * is_new
        assert len({start.seed for start in starts.values()}) == 4


RANDOM_PROBLEMS = [
    *((seed, objective, "in order") for seed in range(3) for objective in ("step", "period")),
    (4, "step", "ready"),
]


@pytest.mark.parametrize(("seed", "objective", "discipline"), RANDOM_PROBLEMS)
def test_one_island_in_rounds_is_auto_to_the_last_plan(seed, objective, discipline, tmp_path):
    """Also where each round is read from a journal: a snapshot leaves nothing out."""
    problem = random_problem(seed, discipline, objective, ops=14)
    auto = replace(QUICK[0], fuse=seed % 2 == 1 and objective == "step")
    stop = MaxEvaluations(1_500)
    whole = solve(problem, auto, stop, seed=seed)
    path = tmp_path / "run.journal"
    one = Islands(1, (auto,), 90, workers="threads:1", journal=path)
    assert_same(solve(problem, one, stop, seed=seed), whole)
    lines = path.read_bytes().splitlines(keepends=True)
    for count in range(2, len(lines), 3):  # go on behind any record
        path.write_bytes(b"".join(lines[:count]))
        assert_same(solve(problem, one, stop, seed=seed), whole)


@pytest.mark.parametrize(
    ("network", "cluster", "phases"),
    [
        ("branches", FOUR, {"annealing order hot"}),
        ("offload", "1xP100+cpu", {"annealing streaming warm"}),
        ("layered:ops=500", FOUR, {"annealing order by scout", "local-search restart"}),
    ],
)
def test_all_that_a_search_keeps_is_the_same_in_rounds(network, cluster, phases):
    """Down to the state of its generator; 500 ops have restarts and a scout."""
    limits = {"gpu0": "2GiB"} if network == "offload" else None
    problem = Problem(load(network), Cluster.parse(cluster), limits=limits)
    auto = Auto(first_evaluations=30, exact=False)
    whole, cut = (Search(problem, MaxEvaluations(1_200), seed=1) for _ in range(2))
    auto.run(whole)
    Islands(1, (auto,), 100, workers="threads:1").run(cut)
    assert phases <= whole.best_by_phase.keys()
    expected, found = SearchSnapshot.of(whole), SearchSnapshot.of(cut)
    for field in ("evaluations", "random", "found_by", "proven", "own_bound"):
        assert getattr(found, field) == getattr(expected, field)
    for field in ("by_phase", "top"):
        plans = [
            [(plan.phase, plan.key, plan.digest) for plan in getattr(each, field)]
            for each in (found, expected)
        ]
        assert plans[0] == plans[1]


def test_a_time_budget_ends_a_run_inside_a_round_and_keeps_the_best():
    result = solve(branches(), Islands(2, QUICK, 10**9, workers="threads:2"), MaxTime(1.0))
    assert result.evaluations > 100
    assert result.overflow == 0


def test_a_gap_that_is_reached_ends_the_rounds():
    stop = Gap(1e6) | MaxEvaluations(100_000)
    result = solve(branches(), replace(quick(1), round_evaluations=200), stop)
    assert result.evaluations < 1_000  # that of one round and the rest of its annealing


def test_fewer_plans_than_islands_are_evaluated_by_as_many_islands():
    for evaluations in (1, 2, 5):
        result = solve(branches(), quick(3), MaxEvaluations(evaluations))
        assert result.evaluations == evaluations


def test_a_warm_start_is_where_all_islands_begin():
    good = undisturbed().plan
    result = solve(branches(), quick(), MaxEvaluations(30), warm_start=good, select="best")
    assert result.objective_value <= undisturbed().objective_value


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"count": 0}, "0 islands: expected at least 1"),
        ({"exchange": "all"}, "by 'all': expected ring, best, none"),
        ({"autos": ()}, r"expected one or several Auto\(\)"),
        ({"round_evaluations": 0}, "rounds of 0 plans"),
        ({"workers": "horses:3"}, "workers 'horses:3'"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        solve(branches(), Islands(**settings), MaxEvaluations(10))


# -- journals ----------------------------------------------------------------------------------


def test_a_journal_is_of_one_warm_start_with_its_order_and_streaming(tmp_path):
    """Plans of equal placements that differ in what else a plan has are other starts."""
    problem, stop = branches(), MaxEvaluations(30)
    plan = solve(problem, quick(1), MaxEvaluations(60)).plan
    order = np.arange(len(problem.graph), dtype=np.float64)
    staging = np.array([2**30, -1, -1])
    plain = replace(plan, priority=order, staging=None)
    others = [replace(plain, priority=order[::-1].copy()), replace(plain, staging=staging)]
    first = solve(problem, quick(1, journal=tmp_path / "a"), stop, warm_start=plain)
    again = solve(problem, quick(1, journal=tmp_path / "a"), stop, warm_start=plain)
    assert again.plan == first.plan
    for other in others:
        with pytest.raises(FileError, match="journal is of another run: warm start is"):
            solve(problem, quick(1, journal=tmp_path / "a"), stop, warm_start=other)


def rounds_run(monkeypatch) -> list[tuple[int, int]]:
    """The islands and rounds that are run from now on."""
    run: list[tuple[int, int]] = []
    run_round = island_rounds.run_island_round

    def watch(problem, start):
        run.append((start.island, start.number))
        return run_round(problem, start)

    monkeypatch.setattr(island_rounds, "run_island_round", watch)
    return run


def test_a_run_cut_after_any_record_ends_alike_and_repeats_no_finished_round(tmp_path, monkeypatch):
    path = tmp_path / "run.journal"
    assert_same(solve(branches(), quick(journal=path), EVALUATIONS, seed=5), undisturbed())
    lines = path.read_bytes().splitlines(keepends=True)
    finished = [json.loads(line[17:])["record"] for line in lines[2:]]
    rounds = [(record["island"], record["round"]) for record in finished]
    assert len(rounds) == len(set(rounds)) >= 6
    assert sum(record["evaluations"] for record in finished) == 1_801
    for count in range(0, len(finished) + 1, 2):
        path.write_bytes(b"".join(lines[: 2 + count]))
        run = rounds_run(monkeypatch)
        assert_same(solve(branches(), quick(journal=path), EVALUATIONS, seed=5), undisturbed())
        before = {(record["island"], record["round"]) for record in finished[:count]}
        assert not before & set(run)
        assert len(run) == len(finished) - count
        monkeypatch.undo()


def test_one_island_in_rounds_resumes_too(tmp_path):
    path = tmp_path / "run.journal"
    expected = solve(branches(), quick(1, journal=path), MaxEvaluations(700))
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]) + b"half a li")
    assert_same(solve(branches(), quick(1, journal=path), MaxEvaluations(700)), expected)
    assert expected.evaluations == 700


def test_the_journal_of_another_run_is_refused(tmp_path):
    path = tmp_path / "run.journal"
    solve(branches(), quick(journal=path), MaxEvaluations(60), seed=5)
    with pytest.raises(FileError, match="of another run: seed is 5 there and 6 here"):
        solve(branches(), quick(journal=path), MaxEvaluations(60), seed=6)
    other = replace(branches().constraints, limits={"gpu0": 2**33})
    problem = Problem(branches().graph, branches().cluster, constraints=other)
    with pytest.raises(FileError, match="of another run: problem is"):
        solve(problem, quick(journal=path), MaxEvaluations(60), seed=5)
    islands_of_151 = replace(quick(journal=path), round_evaluations=151)
    with pytest.raises(FileError, match="of another run: round is 150 there and 151 here"):
        solve(branches(), islands_of_151, MaxEvaluations(60), seed=5)


def test_the_time_of_earlier_processes_counts(tmp_path):
    path = tmp_path / "run.journal"
    first = solve(branches(), quick(1, journal=path), budget=1.0)
    size = path.stat().st_size
    started = time.perf_counter()
    again = solve(branches(), quick(1, journal=path), budget=first.seconds / 2)
    assert again.seconds > time.perf_counter() - started  # it is that of both processes
    assert path.stat().st_size == size  # no time was left for another round
    assert_same(again, first)


# -- kills -------------------------------------------------------------------------------------

DRIVER = """
import sys
import placewright as pw
from placewright.solvers import Auto, Islands

problem = pw.Problem(pw.zoo.load("branches"), pw.Cluster.parse("2xP100+cpu"))
auto = Auto(first_evaluations=40, exact=False)
islands = Islands(3, (auto,), 150, workers=sys.argv[2], journal=sys.argv[1])
print("ready", flush=True)
result = pw.solve(problem, islands, pw.MaxEvaluations(1801), seed=5)
pw.files.save(result, sys.argv[3])
"""


def kill_driver(path: Path, workers: str, bytes_written: int, delay: float) -> bool:
    """Kill a driver a moment after its journal has grown by so much; whether it was running."""
    command = [sys.executable, "-c", DRIVER, str(path), workers, str(path.with_suffix(".json"))]
    before = path.stat().st_size if path.exists() else 0
    with subprocess.Popen(command, stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        driver.stdout.readline()
        while driver.poll() is None:
            if path.exists() and path.stat().st_size >= before + bytes_written:
                break
            time.sleep(0.002)
        time.sleep(delay)
        driver.send_signal(signal.SIGKILL)
        return driver.wait() == -signal.SIGKILL


def check_driver_kills(path: Path, kills: int, workers: str, seed: int) -> None:
    """Runs of several kills each, until there were so many in all."""
    rng, done, run = random.Random(seed), 0, 0
    while done < kills:
        run += 1
        journal = path / f"{run}.journal"
        for _ in range(min(3, kills - done)):
            if not kill_driver(journal, workers, rng.randrange(4_000), 0.05 * rng.random()):
                break
            done += 1
        result = solve(branches(), quick(journal=journal), EVALUATIONS, seed=5)
        assert_same(result, undisturbed())
        records = [json.loads(line[17:]) for line in journal.read_bytes().splitlines()[2:]]
        finished = [each["record"] for each in records]
        rounds = [(record["island"], record["round"]) for record in finished]
        assert len(rounds) == len(set(rounds))  # none is there twice, and none is lost:
        assert sum(record["evaluations"] for record in finished) == 1_801


def test_a_driver_that_is_killed_three_times_ends_with_the_same_plan(tmp_path):
    check_driver_kills(tmp_path, 3, "threads:1", random.randrange(1_000))


@pytest.mark.slow
def test_a_driver_that_is_killed_fifty_times_ends_with_the_same_plan(tmp_path):
    check_driver_kills(tmp_path, 50, "processes:2", 0)


def worker_processes() -> list[int]:
    """The processes of workers that this process has started."""
    found = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/children") as children:
            for pid in children.read().split():
                with suppress(OSError), open(f"/proc/{pid}/cmdline") as command:
                    found += [int(pid)] * ("process_worker" in command.read())
    return found


def check_worker_kills(kills: int, seed: int) -> None:
    """Kill a process of the workers at a random moment, again and again while islands search."""
    rng, killed = random.Random(seed), 0
    for _ in range(3 * kills):
        if killed >= kills:
            return
        with open_workers("processes:2", attempts=20) as workers:
            ended, pids, most = threading.Event(), [], min(3, kills - killed)

            def kill(ended=ended, pids=pids, most=most) -> None:
                while len(pids) < most and not ended.wait(0.3 * rng.random()):
                    if running := worker_processes():
                        pids.append(rng.choice(running))
                        with suppress(ProcessLookupError):
                            os.kill(pids[-1], signal.SIGKILL)

            thread = threading.Thread(target=kill)
            thread.start()
            try:
                result = solve(branches(), quick(workers=workers), EVALUATIONS, seed=5)
            finally:
                ended.set()
                thread.join()
        assert_same(result, undisturbed())
        killed += len(pids)
    raise AssertionError(f"only {killed} workers were killed")


def test_workers_that_are_killed_three_times_change_nothing():
    check_worker_kills(3, random.randrange(1_000))


@pytest.mark.slow
def test_workers_that_are_killed_fifty_times_change_nothing():
    check_worker_kills(50, 0)


def test_the_islands_of_the_library_are_those_of_the_registry():
    assert pw.solvers.METHODS["islands"]() == Islands()
    assert np.isfinite(undisturbed().objective_value)
