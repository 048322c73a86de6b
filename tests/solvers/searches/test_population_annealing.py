"""Population annealing: its moves, its choice of replicas, and lanes that stand in for a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from placewright import Cluster, MaxEvaluations, Problem, judge, solve, zoo
from placewright.errors import ConfigError
from placewright.solvers import Balanced, PopulationAnnealing, Search
from placewright.solvers.searches.population_annealing import (
    _COLD,
    _HOT,
    _Budget,
    _GpuEvaluator,
)

torch = pytest.importorskip("torch")

from placewright.simulator.gpu_lanes import GpuLanes  # noqa: E402
from placewright.solvers.searches.replicas import Replicas  # noqa: E402
from placewright.solvers.searches.search_space import bounded_grouping  # noqa: E402


def replicas(groups: int, devices: int = 4, seed: int = 0) -> Replicas:
    return Replicas.of(np.arange(groups)[None], devices, "cpu", seed)


@pytest.fixture
def problem() -> Problem:
    return Problem(zoo.load("layered:ops=150,seed=2"), Cluster.parse("4xP100"))


def test_a_proposal_changes_one_run_of_groups_and_runs_have_all_lengths():
    rows = torch.randint(
        4, (64, 500), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    crossed_only = replicas(64).propose(rows)
    changed = crossed_only != rows
    first = changed.int().argmax(dim=0)
    last = 63 - changed.flip(0).int().argmax(dim=0)
    spans = (last - first + 1)[changed.any(dim=0)]
    assert int(spans.min()) == 1
    assert int(spans.max()) > 32
    assert (spans <= 2).float().mean() > 0.1
    # what is not from another replica is on one device within the run
    alike = sum(len(crossed_only[changed[:, at], at].unique()) <= 1 for at in range(rows.shape[1]))
    assert alike / rows.shape[1] > 0.85


def test_proposals_repeat_with_the_seed():
    rows = torch.zeros((30, 50), dtype=torch.uint8)
    one, same, other = (replicas(30, seed=seed).propose(rows) for seed in (1, 1, 2))
    assert bool((one == same).all())
    assert bool((one != other).any())


def test_better_proposals_are_always_accepted_and_worse_ones_by_metropolis():
    cost = torch.full((20_000,), 2.0, dtype=torch.float64)
    chain = replicas(3)
    assert bool(chain.accept(cost, cost * 0.9, 0.01).all())
    # exp(-0.01 / 0.01) = 0.368; the standard deviation of the share is 0.0034
    share = chain.accept(cost, cost * 1.01, 0.01).double().mean()
    assert float(share) == pytest.approx(np.exp(-1.0), abs=0.02)


def test_resampling_multiplies_replicas_by_their_weight():
    # weights 1 and exp(-(1/0.5 - 1/1) × 1) = 0.368: shares 0.731 and 0.269 of 1,000
    cost = torch.tensor([1.0, 2.0], dtype=torch.float64).repeat(500)
    chosen = replicas(3).resample(cost, hot=1.0, cold=0.5)
    better = int((cost[chosen] == 1.0).sum())
    assert better == pytest.approx(731, abs=70)  # five standard deviations of 14


def test_it_improves_on_the_plans_that_it_starts_from(problem):
    found = solve(problem, PopulationAnnealing(replicas=32), MaxEvaluations(3_000), seed=0)
    start = solve(problem, Balanced(), MaxEvaluations(3_000), seed=0)
    assert found.evaluations <= 3_000
    assert found.step_time < start.step_time


def test_on_lanes_of_a_gpu_the_result_is_exact_and_as_good(problem, monkeypatch):
    """The host stands in for the GPU: the same kernel source, float32 times."""
    exact = solve(problem, PopulationAnnealing(replicas=32), MaxEvaluations(3_000), seed=0)
    monkeypatch.setattr(
        PopulationAnnealing,
        "_evaluator",
        lambda self, search, grouping: _GpuEvaluator(search, grouping, "cpu"),
    )
    found = solve(problem, PopulationAnnealing(replicas=32), MaxEvaluations(3_000), seed=0)
    verdict = judge(
        problem,
        found.plan.placement[None],
        None if found.plan.priority is None else found.plan.priority[None],
    )
    assert found.step_time == verdict.step_time[0]
    assert found.step_time < 1.1 * exact.step_time
    assert 2_900 < found.evaluations <= 3_000


def test_plans_that_do_not_fit_are_left_behind(monkeypatch):
    graph = zoo.load("layered:ops=150,seed=2,weights=true")
    problem = Problem(graph, Cluster.parse("4xP100"))
    peak = judge(problem, problem.single_device_placements()).peak.max()
    tight = problem.with_arrays(capacity=np.full(4, int(0.4 * peak)))
    for evaluator in (None, _GpuEvaluator):
        if evaluator is not None:
            monkeypatch.setattr(
                PopulationAnnealing,
                "_evaluator",
                lambda self, search, grouping: _GpuEvaluator(search, grouping, "cpu"),
            )
        found = solve(tight, PopulationAnnealing(replicas=32), MaxEvaluations(2_000), seed=1)
        assert found.fits


def test_settings_that_make_no_population_are_refused():
    with pytest.raises(ConfigError, match="1 replicas: expected 2 or more"):
        PopulationAnnealing(replicas=1)
    with pytest.raises(ConfigError, match="0 plans"):
        PopulationAnnealing(max_plans=0)


def test_the_temperature_falls_from_hot_to_cold_with_the_plans(problem):
    search = Search(problem, MaxEvaluations(1_000), 0)
    budget = _Budget(search, 500.0)  # the method's own limit is nearer than the search's
    temperatures = []
    for plans in (0, 250, 500):
        search.evaluations = plans
        temperatures.append(budget.temperature)
    assert temperatures == pytest.approx([_HOT, (_HOT * _COLD) ** 0.5, _COLD])
    assert budget.is_used


@pytest.mark.parametrize("fits", [True, False])
def test_plans_whose_fit_is_open_count_as_the_first_of_them_do(monkeypatch, fits):
    """The capacity is the largest exact peak, or the largest lower bound, which is below it."""
    problem = Problem(zoo.load("layered:ops=60,weights=true"), Cluster.parse("3xP100"))
    grouping = bounded_grouping(problem, 10)
    lanes = GpuLanes(problem, grouping.group, device="cpu")
    places = lanes.draw(24, torch.Generator().manual_seed(6))
    rows = places.T.numpy().astype(np.int32)
    peak = judge(problem, problem.legalize(grouping.expand(rows))).peak.max()
    low = int(lanes.evaluate(places).low.max())
    assert low < peak
    tight = problem.with_arrays(capacity=np.full(3, int(peak) if fits else low))
    evaluator = _GpuEvaluator(Search(tight, MaxEvaluations(100), seed=0), grouping, "cpu")
    evaluator.lanes = GpuLanes(tight, grouping.group, device="cpu")
    verdict = evaluator.lanes.evaluate(places)
    is_open = ~verdict.fits & ~(verdict.least_excess > 0).any(dim=0)
    assert bool(is_open.any())
    evaluator.open_plans_fit = evaluator._do_open_plans_fit(rows)
    assert evaluator.open_plans_fit == fits
    is_punished = evaluator._costs(verdict)[is_open] > verdict.step_time[is_open]
    assert bool(is_punished.any()) != fits
