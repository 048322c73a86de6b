"""Six threads that evaluate, simulate and solve one problem at once find what one thread finds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
from small_problems import random_problem

from placewright import MaxEvaluations, Plan, Problem, judge, simulate, solve
from placewright.solvers import Auto

THREADS = 6


def work(problem: Problem) -> list[object]:
    """Plans evaluated in a batch of threads, fused, simulated and searched, as plain values."""
    a = problem.arrays
    rng = np.random.default_rng(0)
    placements = problem.legalize(rng.integers(0, a.devices, size=(40, a.ops)))
    priority = rng.random((40, a.ops))
    unfused = np.full((40, a.ops), -1)
    verdicts = [
        judge(problem, placements, priority, threads=3),
        judge(problem, placements, fusion=unfused, threads=3),
    ]
    timeline = simulate(problem, Plan.of(problem, placements[0], priority[0]))
    result = solve(problem, Auto(exact=False, first_evaluations=60), MaxEvaluations(600))
    return [
        *(verdict.value.tolist() for verdict in verdicts),
        *(verdict.peak.tolist() for verdict in verdicts),
        timeline.end.tolist(),
        result.key,
        result.plan.placement.tolist(),
    ]


def test_threads_find_what_one_thread_finds() -> None:
    for seed, objective in enumerate(("step", "period")):
        expected = work(random_problem(seed, objective=objective, ops=10))
        shared = random_problem(seed, objective=objective, ops=10)
        start = Barrier(THREADS)

        def at_once(problem: Problem = shared, start: Barrier = start) -> list[object]:
            start.wait()
            return work(problem)

        with ThreadPoolExecutor(THREADS) as pool:
            found = [future.result() for future in [pool.submit(at_once) for _ in range(THREADS)]]
        assert found == [expected] * THREADS
