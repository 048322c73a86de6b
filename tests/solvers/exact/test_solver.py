"""The exact solver: its optimum is that of trying everything, its bound holds, its child obeys."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from small_problems import all_orders, all_placements, optimum, random_problem

from placewright import (
    Cluster,
    Constraints,
    Device,
    Graph,
    Link,
    MaxEvaluations,
    MaxTime,
    Op,
    Plan,
    Problem,
    Roofline,
    Search,
    Table,
    judge,
    zoo,
)
from placewright.errors import MissingDependency, PlacewrightError
from placewright.solvers import Exact, SingleDevice, Stop, solve
from placewright.solvers.exact import process as exact_process
from placewright.solvers.exact.integer_problem import IntegerProblem
from placewright.solvers.exact.process import SolverWorker, borrow_worker
from placewright.solvers.exact.solver import (
    SolveLimits,
    solutions,
    solve_model,
)
from placewright.transforms import Grouping, by_heavy_edges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from placewright.problem import Discipline, Objective

pytest.importorskip("ortools")

ROUNDING = 1e-6


def small(problem: Problem) -> bool:
    """Whether there are few enough plans to try them all."""
    return len(all_orders(problem)) * len(all_placements(problem)) <= 20_000


def problems(seeds: range, discipline: Discipline, objective: Objective) -> Iterator[Problem]:
    for seed in seeds:
        problem = random_problem(seed, discipline, objective)
        if small(problem):
            yield problem


@pytest.mark.parametrize("objective", ["step", "period"])
@pytest.mark.parametrize("discipline", ["in order", "ready"])
def test_the_optimum_is_that_of_trying_every_plan(
    discipline: Discipline, objective: Objective
) -> None:
    proven = 0
    for problem in problems(range(16), discipline, objective):
        over, best = optimum(problem)
        result = solve(problem, Exact(deterministic=0.2))
        if over:
            assert not result.fits
            continue
        assert result.bound <= best
        if (problem.arrays.issuer >= 0).any() and objective == "step":
            continue  # who of those that share an issuer is served first is not modelled
        assert result.overflow == 0
        assert result.objective_value <= best * (1 + 1e-12)
        proven += result.gap < ROUNDING
    assert proven >= 6


@pytest.mark.parametrize("objective", ["step", "period"])
def test_no_plan_that_streams_weights_beats_the_bound(objective: Objective) -> None:
    tried = 0
    for problem in problems(range(60, 80), "in order", objective):
        if problem.arrays.has_streamable_weights:
            over, best = optimum(problem, with_staging=True)
            result = solve(problem, Exact(deterministic=0.1))
            if not over:
                tried += 1
                assert result.bound <= best
    assert tried >= 5


def test_first_come_first_served_is_in_the_model(exact: Roofline) -> None:
    """A bulky tensor that is handed over first holds up a small one that is urgent.

    All ops are pinned and all links share one wire. `bulk` ends at 1 and sends 8 bytes from 1 to 9;
    `urgent` ends at 2 and sends 1 byte from 9 to 10; its reader takes 10 and ends at 20, by when
    the other reader has run from 9 to 10. A wire that served the urgent one first, from 2 to 3,
    would get done at 14, with `slow` from 3 to 13 and `quick` after it.
    """
    graph = Graph(
        "bulk",
        (
            Op("bulk", outputs=(8,), flops=1),
            Op("urgent", outputs=(1,), flops=2),
            Op("slow", inputs=((1, 0),), flops=10),
            Op("quick", inputs=((0, 0),), flops=1),
        ),
    )
    names = ("gpu0", "gpu1", "gpu2")
    devices = tuple(
        Device(name, memory=100, rates={"float32": 1.0}, memory_bandwidth=1e30) for name in names
    )
    links = {pair: Link(1.0, 0.0, "wire") for pair in permutations(names, 2)}
    pins = {"bulk": "gpu0", "urgent": "gpu1", "slow": "gpu2", "quick": "gpu2"}
    problem = Problem(graph, Cluster("wire", devices, links), exact, Constraints(pins=pins))
    result = solve(problem, Exact())
    assert result.objective_value == 20.0
    assert result.gap < ROUNDING
    assert result.bound_name == "exact"


def test_whole_durations_are_not_rounded(diamond_problem: Problem) -> None:
    numbers = IntegerProblem.of(diamond_problem, 22.0)
    assert (numbers.tick, numbers.slack) == (1.0, 0)
    assert numbers.payload["horizon"] == 23


def test_rounding_is_below_a_millionth_of_the_step(diamond_problem: Problem) -> None:
    thirds = replace(diamond_problem, costs=Roofline(compute=0.3, memory=1))
    value = float(judge(thirds, [0, 0, 0, 0]).value[0])
    numbers = IntegerProblem.of(thirds, value)
    assert numbers.slack == 4 + 4  # ops, and tensors to the other device
    assert 0 < numbers.slack * numbers.tick < 1e-6 * value
    assert np.log2(numbers.tick) % 1 == 0


def test_memory_that_binds_is_respected(layers_problem: Problem) -> None:
    """Two layers of 50 bytes fill the GPU of 100, so one of them must stay on the slow host."""
    result = solve(layers_problem, Exact())
    assert result.fits
    assert result.objective_value <= solve(layers_problem, SingleDevice("cpu")).objective_value
    assert result.gap < ROUNDING


def test_a_bound_with_memory_is_not_claimed_where_nothing_fits(layers_problem: Problem) -> None:
    limits = Constraints(limits={"gpu0": 0, "cpu": 0})
    result = solve(replace(layers_problem, constraints=limits), Exact())
    assert not result.fits
    assert result.bound_name != "exact"


def test_a_proven_bound_counts_for_plans_that_fit(layers_problem: Problem) -> None:
    search = Search(layers_problem, Stop(), seed=0)
    own = search.bound
    search.prove(own.seconds / 2, "weak")
    assert search.bound == own
    search.prove(own.seconds + 1, "strong")
    search.prove(own.seconds + 0.5, "later")
    assert (search.bound.seconds, search.bound.name) == (own.seconds + 1, "strong")


def test_seconds_left_are_those_of_the_tightest_rule(diamond_problem: Problem) -> None:
    search = Search(diamond_problem, Stop(), seed=0)
    assert Stop().seconds_left(search) == float("inf")
    assert (MaxTime(50) | MaxEvaluations(3) | MaxTime(90)).seconds_left(search) <= 50
    assert MaxTime(0).seconds_left(search) == 0


def chains(lengths: tuple[int, ...]) -> Graph:
    """Chains of ops of 1, 2, 3 … FLOPs that do not know each other."""
    ops: list[Op] = []
    for chain, length in enumerate(lengths):
        for at in range(length):
            reads = ((len(ops) - 1, 0),) if at else ()
            ops.append(Op(f"op{chain}-{at}", inputs=reads, outputs=(1,), flops=at % 3 + 1))
    return Graph("chains", tuple(ops))


def test_only_what_is_free_changes(two_devices: Cluster, exact: Roofline) -> None:
    """Two chains on one device take 12 s; if one may move, they take 6 s each side by side."""
    problem = Problem(chains((3, 3)), two_devices, exact)
    start = Plan.of(problem, [0] * 6)
    free = np.array([False] * 3 + [True] * 3)
    solution = solve_model(problem, start=start, free=free, seconds=20)
    assert solution.status == "optimal"
    assert solution.placement is not None
    assert solution.placement.tolist() == [0, 0, 0, 1, 1, 1]
    assert judge(problem, solution.placement, solution.priority).value.tolist() == [6.0]
    stuck = solve_model(problem, start=start, free=np.zeros(6, dtype=bool), seconds=20)
    assert stuck.placement is not None
    assert stuck.placement.tolist() == [0] * 6


def test_the_same_seed_and_work_give_the_same_answer() -> None:
    problem = random_problem(3, ops=12)
    answers = [solve_model(problem, seconds=60, deterministic=0.05, seed=7) for _ in range(2)]
    assert answers[0].value == answers[1].value
    assert np.array_equal(answers[0].placement, answers[1].placement)
    assert np.array_equal(answers[0].priority, answers[1].priority)


@pytest.mark.parametrize("objective", ["step", "period"])
def test_groups_are_placed_whole(objective: Objective, shared_wire: Cluster) -> None:
    problem = Problem(chains((6, 6, 6)), shared_wire, objective=objective)
    result = solve(problem, Exact(group=lambda problem: by_heavy_edges(problem, 6)))
    assert result.objective_value <= solve(problem, SingleDevice("gpu0")).objective_value
    grouping = by_heavy_edges(problem, 6)
    solution = solve_model(problem, seconds=20, grouping=grouping)
    assert solution.placement is not None
    for members in grouping.members():
        assert len(set(solution.placement[members])) == 1


def test_groups_that_wait_for_themselves_are_placed_op_by_op(two_devices: Cluster) -> None:
    problem = Problem(chains((4,)), two_devices)
    circle = Grouping.of("circle", problem, ["a", "b", "a", "b"])
    assert not circle.is_convex(problem)
    solution = solve_model(problem, seconds=20, grouping=circle)
    assert solution.placement is not None
    assert solution.placement[0] == solution.placement[2]
    assert solution.placement[1] == solution.placement[3]


def test_a_child_that_hangs_is_killed(diamond_problem: Problem) -> None:
    with SolverWorker() as worker:
        request = {**IntegerProblem.of(diamond_problem, 22.0).payload, **LIMITS}
        assert [answer["kind"] for answer in worker.submit(request, 20)][-1] == "done"
        os.kill(worker._process.pid, signal.SIGSTOP)
        start = time.perf_counter()
        assert [answer["kind"] for answer in worker.submit(request, 0.1)] == ["late"]
        assert time.perf_counter() - start < 15
        assert not worker.is_alive


LIMITS = {"deterministic": None, "workers": 1, "seed": 0}


def test_an_interrupt_kills_the_child(diamond_problem: Problem) -> None:
    request = {**IntegerProblem.of(diamond_problem, 22.0).payload, **LIMITS}
    with pytest.raises(KeyboardInterrupt), borrow_worker() as worker:  # noqa: PT012
        for _ in worker.submit(request, 20):
            raise KeyboardInterrupt
    assert not worker.is_alive


def test_a_waiting_child_is_used_again() -> None:
    with borrow_worker() as one:
        pass
    with borrow_worker() as other:
        assert other is one
        with borrow_worker() as third:
            assert third is not one
    assert [third.is_alive, one.is_alive] == [True, False]  # one is kept, the first that came back


def test_an_error_in_the_child_is_told() -> None:
    with SolverWorker() as worker, pytest.raises(PlacewrightError, match="the exact solver failed"):
        list(worker.submit({"objective": "step", **LIMITS}, 20))


def test_the_child_ends_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from placewright.solvers.exact.process import SolverWorker\n"
        "worker = SolverWorker()\n"
        "print(worker._process.pid, flush=True)\n"
        "os._exit(0)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    child = int(json.loads(run.stdout))
    until = time.perf_counter() + 20
    while time.perf_counter() < until and _running(child):
        time.sleep(0.05)
    assert not _running(child)


def _running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_without_ortools_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, diamond_problem: Problem
) -> None:
    monkeypatch.setattr(exact_process, "_idle_workers", [])
    monkeypatch.setattr(exact_process.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"pip install 'placewright\[exact\]'"):
        solve(diamond_problem, Exact())


def test_time_is_up_when_the_search_says_so() -> None:
    problem = Problem(zoo.load("layered:ops=60"), Cluster.parse("3xP100+cpu"))
    start = time.perf_counter()
    result = solve(problem, Exact(), MaxTime(1.0))
    assert result.evaluations >= 1
    assert time.perf_counter() - start < 20  # left to itself it takes a minute


def busy_problem(seed: int) -> Problem:
    """Ops that all have their device, with a lot to send over few channels, and many ties.

    Half of them have just the memory that some order needs, so that others may not fit.
    """
    rng = np.random.default_rng(seed)
    count, devices = int(rng.integers(4, 8)), int(rng.integers(2, 4))
    ops = []
    for at in range(count):
        reads = rng.choice(at, size=min(at, int(rng.integers(0, 4))), replace=False) if at else ()
        kind = "weight" if not len(reads) and rng.random() < 0.3 else "op"
        inputs = tuple((int(source), 0) for source in reads)
        aliases = ((0, 0),) if inputs and rng.random() < 0.2 else ()
        outputs = (int(rng.choice([1, 1, 2, 3])),)
        ops.append(Op(f"op{at}", kind, inputs, outputs, aliases=aliases, workspace=at % 2))
    kept = ((count - 1, 0), (int(rng.integers(count)), 0)) if rng.random() < 0.3 else None
    graph = Graph("busy", tuple(ops), None if kept is None else tuple(dict.fromkeys(kept)))
    seconds = rng.choice([0.0, 1.0, 1.0, 2.0, 1 / 3], size=(count, devices))
    seconds[[op.kind == "weight" for op in ops]] = 0.0
    names = tuple(f"d{at}" for at in range(devices))
    channel = ["", "bus", "out"][int(rng.integers(3))]
    links = {
        (one, other): Link(1.0, float(rng.choice([0.0, 0.5])), channel + one * (channel == "out"))
        for one, other in permutations(names, 2)
    }
    where = rng.integers(devices, size=count)
    problem = Problem(
        graph,
        Cluster("busy", tuple(Device(name, memory=1000) for name in names), links),
        Table(tuple(op.name for op in ops), names, seconds),
        Constraints(pins={op.name: names[at] for op, at in zip(ops, where, strict=True)}),
        discipline="ready" if rng.random() < 0.3 else "in order",
    )
    if rng.random() < 0.5:
        return problem
    peak = judge(problem, where, rng.random(count)).peak[0]
    limits = {name: int(size) for name, size in zip(names, peak, strict=True)}
    return replace(problem, constraints=replace(problem.constraints, limits=limits))


def bound_holds(problem: Problem) -> None:
    """Every model's bound, found without a start: a start could hide plans that a model misses."""
    if not small(problem):
        return
    for with_staging in (False, True):
        over, best = optimum(problem, with_staging)
        if over:
            continue
        for extra in (False, True):
            more = {"strict": extra} if problem.objective == "step" else {"with_schedule": extra}
            numbers = IntegerProblem.of(problem, np.inf, streaming=with_staging, **more)
            with borrow_worker() as worker:
                *_, found = solutions(worker, numbers, SolveLimits(20, deterministic=0.05))
            assert found.value_bound <= best


def test_with_all_it_knows_the_model_is_exact() -> None:
    """Ties, both disciplines, memory to the byte: the bound is the optimum of all orders."""
    for seed in range(40):
        problem = busy_problem(seed)
        over, best = optimum(problem) if small(problem) else (1, 0.0)
        if not over:
            numbers = IntegerProblem.of(problem, np.inf, strict=True)
            with borrow_worker() as worker:
                *_, found = solutions(worker, numbers, SolveLimits(20, deterministic=0.3))
            assert found.value_bound == pytest.approx(best, rel=ROUNDING)


def test_no_plan_beats_the_bound_however_things_coincide() -> None:
    for seed in range(40):
        bound_holds(busy_problem(seed))


@pytest.mark.slow
def test_no_plan_beats_the_bound_in_many_problems() -> None:
    for seed in range(40, 1000):
        bound_holds(busy_problem(seed))


def test_a_plan_that_fits_is_found_where_the_model_takes_a_larger_one() -> None:
    # No time passes, so that no lifetime of the model is longer than its rounding; but a graph
    # input of 5 bytes that is also an output leaves no byte of d1 for the 3 bytes of `op`.
    ops = (
        Op("x", "input", outputs=(5,)),
        Op("op", outputs=(0, 3)),
        Op("state", "state", outputs=(3,), resident=5),
    )
    devices = (Device("d0", memory=3), Device("d1", memory=13), Device("cpu", "cpu", memory=0))
    names = [device.name for device in devices]
    cluster = Cluster("three", devices, {pair: Link(1.0) for pair in permutations(names, 2)})
    seconds = np.array([[0.0, 0.0, 0.0], [1 / 3, 0.0, 2.0], [0.0, 0.0, 0.0]])
    problem = Problem(
        Graph("tiny", ops, ((0, 0), (2, 0))),
        cluster,
        Table(("x", "op", "state"), tuple(names), seconds),
        Constraints(pins={"x": "d1"}),
        objective="period",
    )
    result = solve(problem, Exact(deterministic=0.2))
    assert result.fits
    assert result.period == 1 / 3
    assert result.gap < 1e-6


def test_a_period_that_fits_in_one_order_only_is_found() -> None:
    ops = (
        Op("a", flops=1, outputs=(5,)),
        Op("b", flops=1, outputs=(0,), workspace=5),
        Op("c", flops=1, outputs=(0,), inputs=((0, 0),)),
    )
    cluster = Cluster(
        "one", (Device("gpu0", memory=8, rates={"float32": 1.0}, memory_bandwidth=1e30),), {}
    )
    problem = Problem(Graph("order", ops), cluster, Roofline(compute=1), objective="period")
    assert solve(problem, Exact(deterministic=0.2)).key == (0, 3.0)
