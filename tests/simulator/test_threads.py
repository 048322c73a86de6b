"""Six threads that evaluate, simulate and solve one problem at once find what one thread finds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING

import numpy as np
import pytest

from placewright import Cluster, Graph, MaxEvaluations, Op, Plan, Problem, judge, simulate, solve
from placewright.simulator.evaluation import _set_fused_parts, kernel
from placewright.solvers import Auto

if TYPE_CHECKING:
    from placewright.problem import Objective

THREADS = 6
OPS = 12


def chain(objective: Objective) -> Problem:
    """A chain of ops that may be fused, each with a weight, on two GPUs and a host."""
    ops: list[Op] = []
    for at in range(OPS):
        ops.append(Op(f"weight{at}", "weight", outputs=(2**20,)))
        before = ((len(ops) - 2, 0),) if at else ()
        reads = (*before, (len(ops) - 1, 0))
        ops.append(Op(f"op{at}", "elementwise", reads, (2**18,), flops=1e6, bytes_moved=2**20))
    return Problem(Graph("chain", tuple(ops)), Cluster.parse("2xP100+cpu"), objective=objective)


def work(problem: Problem) -> list[object]:
    """Plans that are fused, evaluated in a batch, simulated and searched, as plain values."""
    a = problem.arrays
    rng = np.random.default_rng(0)
    placements = problem.legalize(rng.integers(0, a.devices, size=(40, a.ops)))
    priority = rng.random((40, a.ops))
    fusion = np.tile(np.where(a.scheduled, 0, -1), (40, 1))
    verdicts = [
        judge(problem, np.zeros_like(placements), fusion=fusion, threads=3),
        judge(problem, placements, priority, threads=3),
    ]
    timeline = simulate(problem, Plan.of(problem, placements[0], priority[0]))
    result = solve(problem, Auto(exact=False, first_evaluations=40), MaxEvaluations(300))
    return [
        *(verdict.value.tolist() for verdict in verdicts),
        *(verdict.peak.tolist() for verdict in verdicts),
        timeline.end.tolist(),
        result.key,
        result.plan.placement.tolist(),
    ]


@pytest.mark.parametrize("objective", ["step", "period"])
def test_threads_find_what_one_thread_finds(objective: Objective) -> None:
    expected = work(chain(objective))
    shared, start = chain(objective), Barrier(THREADS)

    def work_at_once() -> list[object]:
        start.wait()
        return work(shared)

    with ThreadPoolExecutor(THREADS) as pool:
        futures = [pool.submit(work_at_once) for _ in range(THREADS)]
        assert [future.result() for future in futures] == [expected] * THREADS


def test_the_costs_of_fused_groups_are_set_once_whatever_other_threads_read() -> None:
    problem = chain("step")
    a = problem.arrays
    placement = np.zeros((400, a.ops), dtype=np.int32)
    fusion = np.tile(np.where(a.scheduled, 0, -1), (400, 1))
    expected = judge(problem, placement, fusion=fusion).value.tolist()

    def evaluate() -> list[float]:
        return [*judge(problem, placement, fusion=fusion, threads=2).value]

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(evaluate) for _ in range(4)]
        for _ in range(20):
            _set_fused_parts(kernel(a), problem)
        assert [future.result() for future in futures] == [expected] * 4
