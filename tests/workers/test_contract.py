"""The contract of workers: every kind gives the results that a plain call of the task gives."""

from __future__ import annotations

import numpy as np
import pytest
from worker_tasks import (
    CountedProblem,
    Draw,
    Fail,
    ProblemLoads,
    Scale,
    StrangeError,
    ThreadCounts,
    WrongCount,
    Zeros,
)

import placewright as pw
from placewright.errors import ConfigError, MissingDependency, PlanError, WorkerError
from placewright.plan_batch import PlanBatch
from placewright.workers import open_workers
from placewright.workers.recent_problems import MAX_PROBLEM_BYTES, RecentProblems


@pytest.fixture(scope="module")
def problem() -> pw.Problem:
    """One that some plans do not fit."""
    free = pw.Problem(pw.zoo.load("layered:ops=60,seed=1"), pw.Cluster.parse("2xP100+cpu"))
    peak = pw.judge(free, some_plans(free, 40).placement).peak[:, 0]
    return pw.Problem(free.graph, free.cluster, limits={"gpu0": int(np.median(peak))})


def some_plans(problem: pw.Problem, count: int) -> PlanBatch:
    rng = np.random.default_rng(0)
    a = problem.arrays
    return PlanBatch(
        problem.legalize(rng.integers(0, a.devices, size=(count, a.ops))),
        rng.random((count, a.ops)),
    )


def test_results_are_those_of_a_plain_call_in_the_order_of_items(workers, problem):
    for count in (0, 1, 2, 7, 100):
        seeds = list(range(count))
        results = workers.map(Draw(), seeds, problem)
        assert len(results) == count
        assert all(map(np.array_equal, results, Draw()(problem, seeds)))
    assert workers.map(Scale(3), range(10)) == [3 * item for item in range(10)]
    assert workers.map(Scale(2), np.arange(9)) == [2 * item for item in range(9)]


def test_chunks_of_one_future_are_those_of_map(workers, problem):
    futures = [workers.submit(Draw(), [seed, seed + 1], problem) for seed in (5, 1)]
    results = [result for future in futures for result in future.result(60)]
    assert all(map(np.array_equal, results, Draw()(problem, [5, 6, 1, 2])))


def test_plans_have_the_figures_of_this_process(workers, problem):
    plans = some_plans(problem, 40)
    columns = (plans.placement, plans.priority)
    here, there = pw.judge(problem, *columns), pw.judge(problem, *columns, workers=workers)
    for figure in ("value", "step_time", "overflow", "excess", "peak", "period"):
        assert np.array_equal(getattr(here, figure), getattr(there, figure)), figure
    assert here.overflow.any()
    assert there.best_first(5) == here.best_first(5)
    nothing = pw.judge(problem, plans.placement[:0], workers=workers)
    assert len(nothing.value) == 0


def test_an_error_of_the_task_is_the_first_one_in_the_order_of_items(workers):
    errors = {3: "plan", 90: "missing"}
    with pytest.raises(PlanError, match=r"^item 3 is no plan") as caught:
        workers.map(Fail(errors), range(100))
    notes = "\n".join(caught.value.__notes__)
    assert "in a worker " in notes
    assert 'raise PlanError(f"item {item} is no plan")' in notes
    with pytest.raises(MissingDependency, match="nothing is not installed"):
        workers.map(Fail({0: "missing"}), range(2))
    strange = StrangeError if workers.kind == "threads" else WorkerError
    with pytest.raises(strange, match="item 1: two arguments"):
        workers.map(Fail({1: "strange"}), range(2))
    assert workers.map(Scale(), range(5)) == [0, 2, 4, 6, 8]


def test_a_plan_that_breaks_a_constraint_is_an_error_with_the_text_of_this_process(
    workers, problem
):
    plans = some_plans(problem, 30).placement
    plans[20] = 99
    with pytest.raises(PlanError) as here:
        pw.judge(problem, plans)
    with pytest.raises(PlanError) as there:
        pw.judge(problem, plans, workers=workers)
    assert str(here.value) == str(there.value)


def test_a_task_must_return_one_result_per_item(workers):
    with pytest.raises(WorkerError, match="WrongCount returned 3 results for 4 items: expected a"):
        workers.submit(WrongCount(), range(4)).result(60)


def test_a_problem_is_read_once_by_each_worker(workers):
    if workers.kind == "threads":
        pytest.skip("threads share the driver's memory")
    problems = [CountedProblem(f"p{at}") for at in range(3)]
    seen: dict[tuple[int, str], set[int]] = {}
    for _ in range(3):
        for problem in problems:
            for pid, name, count in workers.map(ProblemLoads(), range(8), problem):
                assert name == problem.name
                seen.setdefault((pid, name), set()).add(count)
    assert len(seen) >= 3
    assert all(counts == {1} for counts in seen.values())


def test_all_problems_of_a_family_are_sent_once(workers):
    if workers.kind == "threads":
        pytest.skip("threads share the driver's memory")
    problems = [CountedProblem(f"f{at}", 10_000) for at in range(24)]
    for problem in [*problems, *problems]:
        assert {count for _, _, count in workers.map(ProblemLoads(), range(4), problem)} == {1}


def test_the_least_recent_problem_is_dropped_and_sent_again(workers):
    if workers.kind == "threads":
        pytest.skip("threads share the driver's memory")
    large = MAX_PROBLEM_BYTES // 3
    problems = [CountedProblem(f"q{at}", large) for at in range(3)]
    pids = set()
    for problem in [*problems, problems[0]]:
        results = workers.map(ProblemLoads(), range(4), problem)
        assert {name for _, name, _ in results} == {problem.name}
        pids |= {pid for pid, _, _ in results}
    if len(pids) == 1:  # which has had the first one twice
        assert {count for _, _, count in results} == {2}


def test_problems_are_dropped_by_their_bytes_but_for_the_last():
    recent = RecentProblems(100)
    for key, size in (("a", 40), ("b", 40), ("a", 40), ("c", 30)):
        recent.add(key, key.upper(), size)
    assert [key in recent for key in "abc"] == [True, False, True]
    recent.add("d", "D", 1000)
    assert [key in recent for key in "acd"] == [False, False, True]
    assert recent.get("d") == "D"
    recent.add("e", "E", 100)
    assert [key in recent for key in "de"] == [False, True]


def test_a_worker_process_computes_with_one_thread(workers):
    if workers.kind == "threads":
        pytest.skip("threads share the driver's settings")
    assert set(workers.map(ThreadCounts(), range(4))) == {"1"}


def test_a_cancelled_chunk_is_not_run(workers, tmp_path):
    slow = [workers.submit(Scale(1, seconds=0.2), [0]) for _ in range(workers.count)]
    late = workers.submit(Scale(1), [1])
    assert late.cancel() or late.done()
    assert [future.result(60) for future in slow] == [[0]] * workers.count
    assert workers.map(Scale(5), [1, 2]) == [5, 10]


def test_eight_processes_give_the_figures_of_this_process(problem):
    placement = some_plans(problem, 100).placement
    with open_workers("processes:8") as workers:
        there = pw.judge(problem, placement, workers=workers)
    assert np.array_equal(there.value, pw.judge(problem, placement).value)


# -- what holds for the kinds alike is shown with one of them --------------------------------


class LocalTask:
    """No dataclass, though it could be called."""

    def __call__(self, problem, items):
        return list(items)


def test_a_task_that_a_worker_cannot_import_is_refused_by_every_kind():
    with open_workers("threads:1") as workers:
        with pytest.raises(ConfigError, match="expected an instance of a frozen dataclass"):
            workers.map(LocalTask(), [1])

        from dataclasses import dataclass

        @dataclass(frozen=True)
        class Hidden:
            def __call__(self, problem, items):
                return list(items)

        with pytest.raises(ConfigError, match="where a worker cannot import it"):
            workers.map(Hidden(), [1])


def test_messages_are_limited_in_both_directions():
    with open_workers("processes:1", max_message_bytes=100_000) as workers:
        assert len(workers.map(Zeros(), [50_000])[0]) == 50_000
        with pytest.raises(WorkerError, match=r"task Zeros has 1 results: it takes more than"):
            workers.map(Zeros(), [200_000])
        with pytest.raises(
            WorkerError, match=r"Scale on items 0 to 0: it takes more than 97.66 KiB"
        ):
            workers.submit(Scale(), [b"x" * 200_000]).result(60)
        with pytest.raises(WorkerError, match="it takes more than"):
            workers.map(Scale(), [1], problem=[b"x" * 200_000])
        # Items that fit one by one are cut into chunks that fit.
        large = [bytes([at]) * 30_000 for at in range(20)]
        assert workers.map(Scale(0), large) == [b""] * 20
        assert workers.lost == 0


def test_closed_workers_refuse_work_and_end_what_they_do():
    workers = open_workers("threads:2")
    futures = [workers.submit(Scale(1, seconds=0.05), [item]) for item in range(40)]
    workers.close()
    workers.close()
    done = [future for future in futures if not future.cancelled() and not future.exception(60)]
    assert len(done) < 40
    assert any("the workers were closed" in str(future.exception(60)) for future in futures)
    with pytest.raises(ConfigError, match="these workers are closed"):
        workers.map(Scale(), [1])
