"""Scout: its file, its features of moves, and annealing with it."""

from __future__ import annotations

import numpy as np
import pytest

from placewright import Cluster, Plan, Problem
from placewright.errors import FileError
from placewright.plan_batch import PlanBatch
from placewright.solvers import Auto, MaxEvaluations, Search, Stop, solve
from placewright.solvers.baselines import constructive_solvers
from placewright.solvers.move_scorer import (
    FEATURE_COUNT,
    Scout,
    ScoutNetwork,
    shipped_network,
)
from placewright.solvers.proposer import Proposer
from placewright.solvers.searches.annealing import elite_plans, grouping_levels
from placewright.solvers.searches.annealing_chains import (
    AnnealingChains,
    Cooling,
    MoveShares,
)
from placewright.zoo import load


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(load("layered:ops=500,weights=true,width=16"), Cluster.parse("3xP100+cpu"))


@pytest.fixture(scope="module")
def start(problem: Problem) -> Plan:
    search = Search(problem, Stop(), seed=0)
    for solver in constructive_solvers(problem, with_partitioners=False)[0]:
        search.phase = solver.name
        solver.run(search)
    return elite_plans(search, 1)[0]


def walked(problem: Problem, start: Plan, scout: Scout | None, seed: int) -> float:
    search = Search(problem, Stop(), seed)
    search.judge_plan(start)
    rows = PlanBatch.of(problem, [start], with_priorities=False, with_staging=False)
    net = None if scout is None else scout.network(problem)
    annealer = AnnealingChains(search, grouping_levels(problem))
    annealer.run(rows, 1_000, Cooling(0.005, 1e-4), MoveShares(), scout=net)
    assert search.evaluations == 1_001
    return search.key[1]


def test_a_scout_is_a_proposer():
    assert isinstance(Scout(), Proposer)


def test_it_gains_more_than_a_blind_one(problem: Problem, start: Plan):
    """A graph that it never saw, at equal plans judged; blind, it takes any of as many moves."""
    ratios = [
        walked(problem, start, Scout(), seed) / walked(problem, start, Scout(blind=True), seed)
        for seed in range(4)
    ]
    assert np.exp(np.mean(np.log(ratios))) < 0.98


def test_it_likes_moves_that_gain(problem: Problem, start: Plan):
    search = Search(problem, Stop(), seed=0)
    search.judge_plan(start)
    rows = PlanBatch.of(problem, [start], with_priorities=False, with_staging=False)
    features, change = AnnealingChains(search, grouping_levels(problem)).sample_moves(
        rows, 400, seed=1
    )
    assert features.shape == (len(change), FEATURE_COUNT)
    assert np.isfinite(features).all()
    likes = chances(shipped_network(), features)
    gains = change < -1e-7
    assert likes[gains].mean() > 1.5 * likes[~gains].mean()


def chances(net: ScoutNetwork, features: np.ndarray) -> np.ndarray:
    """The network in plain words: layer by layer, biases and then each input's weights."""
    weights, values = list(net.weights), features.astype(float)
    for place, width in enumerate((*net.widths, 1)):
        inputs = values.shape[1]
        bias, weights = weights[:width], weights[width:]
        matrix = np.reshape(weights[: inputs * width], (inputs, width))
        weights = weights[inputs * width :]
        values = values @ matrix + bias
        if place < len(net.widths):
            values = np.maximum(values, 0.0)
    assert not weights
    return 1 / (1 + np.exp(-values[:, 0]))


def test_with_auto_the_same_seed_gives_the_same_plan(problem: Problem):
    auto = Auto(first_evaluations=50, exact=False, proposers=(Scout(),))
    one, two = (solve(problem, auto, MaxEvaluations(600), seed=3) for _ in range(2))
    assert one.plan == two.plan


def test_it_has_nothing_to_say_of_periods_and_small_graphs(problem: Problem):
    assert Scout().network(Problem(problem.graph, problem.cluster, objective="period")) is None
    assert Scout().network(Problem(load("layered:ops=100"), problem.cluster)) is None
    net = Scout(candidates=5).network(problem)
    assert net is not None
    assert net.candidates == 5


def test_a_network_comes_back_from_its_file(tmp_path):
    net = ScoutNetwork.random([4, 3], seed=1)
    net.save(tmp_path / "net.json", "a command")
    again = ScoutNetwork.load(tmp_path / "net.json")
    assert again.widths == (4, 3)
    np.testing.assert_allclose(again.weights, net.weights, rtol=1e-4)


def test_a_network_of_the_wrong_size_is_refused(tmp_path):
    with pytest.raises(FileError, match=r"has 3 weights: expected 39 finite numbers"):
        ScoutNetwork((1,), (0.0, 1.0, 2.0))
    (tmp_path / "net.json").write_text('{"placewright": "policy", "version": 1, "config": {}}')
    with pytest.raises(FileError, match="is not a scout of this release"):
        ScoutNetwork.load(tmp_path / "net.json")
