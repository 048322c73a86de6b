"""Local search, genetic search and cross-entropy: their results and their parts."""

from __future__ import annotations

import numpy as np
import pytest
from small_problems import all_placements, random_problem

from placewright import Cluster, Constraints, MaxEvaluations, Plan, Problem, simulator, zoo
from placewright.errors import ConfigError
from placewright.solvers import (
    METF,
    Balanced,
    CrossEntropy,
    Genetic,
    LocalSearch,
    RandomSearch,
    SingleDevices,
    Solver,
    solve,
)
from placewright.solvers.searches.cross_entropy import mean_entropy, sample_rows
from placewright.solvers.searches.crossover import (
    align_devices,
    crossover_mask,
    equal_devices,
)
from placewright.solvers.searches.search_space import SearchSpace, bundle_grouping
from placewright.transforms import by_heavy_edges

SEARCHES: list[Solver] = [LocalSearch(), Genetic(), CrossEntropy()]
every_search = pytest.mark.parametrize("solver", SEARCHES, ids=lambda solver: solver.name)


@every_search
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("objective", ["step", "period"])
def test_no_placement_of_a_tiny_problem_is_better(
    solver: Solver, seed: int, objective: str
) -> None:
    """Among placements with each weight beside its first reader, in the graph's order."""
    problem = random_problem(seed, objective=objective)
    every = np.unique(problem.legalize(all_placements(problem)), axis=0)
    verdict = simulator.judge(problem, every)
    assert solve(problem, solver, seed=1).key <= verdict.key(verdict.best())


@every_search
def test_a_search_beats_its_starts_and_chance(solver: Solver) -> None:
    problem = Problem(zoo.load("layered:ops=150"), Cluster.parse("4xP100+cpu"))
    stop = MaxEvaluations(1500)
    found = solve(problem, solver, stop, seed=2).key
    for other in (SingleDevices(), Balanced(), RandomSearch(count=1500)):
        assert found < solve(problem, other, stop, seed=2).key


@every_search
def test_memory_is_kept_where_no_single_device_has_enough(solver: Solver) -> None:
    problem = Problem(
        zoo.load("series-parallel:ops=80,weights=true"), Cluster.parse("3xV100"), discipline="ready"
    )
    everything = simulator.judge(problem, np.zeros((1, len(problem.graph)))).peak[0, 0]
    limits = {f"gpu{at}": int(everything * 0.55) for at in range(3)}
    tight = Problem(problem.graph, problem.cluster, constraints=Constraints(limits=limits))
    assert not solve(tight, SingleDevices()).fits
    result = solve(tight, solver, MaxEvaluations(1500))
    assert result.fits
    assert result.key < solve(tight, Balanced()).key


@every_search
def test_a_start_with_an_order_is_where_it_goes_on(solver: Solver) -> None:
    problem = Problem(zoo.load("layered:ops=150"), Cluster.parse("4xP100+cpu"))
    start = solve(problem, METF())
    assert start.plan.priority is not None
    result = solve(problem, solver, MaxEvaluations(1500), warm_start=start.plan)
    assert result.step_time < start.step_time


@every_search
def test_a_start_with_staging_or_fusion_is_no_trouble(solver: Solver) -> None:
    problem = random_problem(4, ops=9)
    room = np.full(problem.arrays.devices, 10_000, dtype=np.int64)
    start = Plan.of(problem, problem.legalize(np.zeros(9, dtype=np.int32)), staging=room)
    assert solve(problem, solver, MaxEvaluations(60), warm_start=start).evaluations == 60


def test_groups_stay_together_and_the_search_ends_by_itself() -> None:
    problem = Problem(zoo.load("cifar10"), Cluster.parse("2xP100+cpu"))
    search = LocalSearch(lambda p: by_heavy_edges(p, 20), max_plans=500)
    result = solve(problem, search, seed=1)
    assert result.step_time < solve(problem, SingleDevices()).step_time  # two GPUs help here
    for members in by_heavy_edges(problem, 20).members():
        turn = members[problem.arrays.scheduled[members]]
        assert len(set(result.plan.placement[turn].tolist())) <= 1
    assert 500 <= result.evaluations < 700


@every_search
def test_a_search_ends_by_itself_where_there_is_little_to_search(solver: Solver) -> None:
    problem = Problem(zoo.load("diamond"), Cluster.parse("2xP100"))
    assert solve(problem, solver).evaluations < 50 * 2**4 + 400


def test_equal_devices_are_alike_and_others_are_not() -> None:
    problem = Problem(zoo.load("chain:ops=6"), Cluster.parse("2xP100+2xV100+cpu"))
    assert [group.tolist() for group in equal_devices(problem)] == [[0, 1], [2, 3]]
    pinned = Problem(
        problem.graph, problem.cluster, constraints=Constraints(forbid={"op1": ("gpu1",)})
    )
    assert [group.tolist() for group in equal_devices(pinned)] == [[2, 3]]


def test_parents_that_differ_in_names_alone_are_aligned() -> None:
    problem = Problem(zoo.load("chain:ops=6"), Cluster.parse("3xP100+cpu"))
    space = SearchSpace.of(problem, bundle_grouping(problem))
    mine = np.array([[0, 0, 1, 1, 2, 3]], dtype=np.int32)
    theirs = np.array([[2, 2, 0, 0, 1, 3]], dtype=np.int32)
    assert align_devices(space, mine, theirs, equal_devices(problem)).tolist() == mine.tolist()
    assert align_devices(space, mine, theirs, []).tolist() == theirs.tolist()


def test_children_take_stretches_or_single_groups() -> None:
    problem = Problem(zoo.load("chain:ops=30"), Cluster.parse("2xP100"))
    space = SearchSpace.of(problem, bundle_grouping(problem))
    mask = crossover_mask(space, np.random.default_rng(0), 600)
    edges = np.abs(np.diff(mask, axis=1).astype(int)).sum(axis=1)
    behind = (edges == 1) & mask[:, -1]
    assert behind.sum() > 100  # one point
    assert ((edges == 2) & ~mask[:, -1]).sum() > 50  # two points
    assert (edges > 3).sum() > 100  # each group for itself


def test_draws_follow_the_chances_and_come_in_stretches() -> None:
    problem = Problem(zoo.load("chain:ops=30"), Cluster.parse("3xP100"))
    space = SearchSpace.of(problem, bundle_grouping(problem))
    chances = np.tile([0.5, 0.3, 0.2], (30, 1))
    chances[7] = [0.0, 0.0, 1.0]
    rows = sample_rows(space, chances, np.random.default_rng(0), 20_000)
    shares = (rows[:, :, None] == np.arange(3)).mean(axis=0)
    assert np.allclose(shares, chances, atol=0.03)  # whatever the neighbours do
    assert (rows[:, 7] == 2).all()
    together = (rows[:, 1:7] == rows[:, :6]).mean()
    assert together > 0.7  # 0.38 if each were drawn alone
    assert mean_entropy(chances) > mean_entropy(np.eye(3)) == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LocalSearch(batch=0), r"LocalSearch in batches of 0: expected 1 or more"),
        (lambda: LocalSearch(max_plans=0), r"LocalSearch of 0 plans: expected 1 or more"),
        (lambda: Genetic(population=3), r"Genetic with a population of 3: expected 4 or more"),
        (lambda: Genetic(max_plans=0), r"Genetic of 0 plans: expected 1 or more"),
        (lambda: CrossEntropy(batch=1), r"CrossEntropy in batches of 1: expected 2 or more"),
        (lambda: CrossEntropy(max_plans=0), r"CrossEntropy of 0 plans: expected 1 or more"),
        (lambda: CrossEntropy(elite=0.0), r"CrossEntropy has elite 0.0: expected a share up to 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
