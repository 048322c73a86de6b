"""Plans judged by lanes on a GPU, which the host stands in for: what is kept is exact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright import Cluster, Problem, judge, zoo
from placewright.errors import ConfigError

pytest.importorskip("torch")

from placewright.training import Environment, Trainer, find_recipe
from placewright.training.environment import best_plan, simulate_plans
from placewright.training.gpu_simulation import GpuSimulation


@pytest.fixture
def problem() -> Problem:
    return Problem(zoo.load("layered:ops=120,weights=true"), Cluster.parse("4xP100"))


def random_placements(problem: Problem, count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    a = problem.arrays
    return problem.legalize(rng.integers(a.devices, size=(count, a.ops)))


@pytest.mark.parametrize("with_order", [False, True])
def test_the_best_plan_has_exact_figures_and_others_are_rounded(problem, with_order):
    placements = random_placements(problem, 200)
    order = np.random.default_rng(1).random(problem.arrays.ops) if with_order else None
    priority = None if order is None else np.tile(order, (200, 1))
    simulation = GpuSimulation(problem, device="cpu")
    outcome = simulation(problem, placements, priority)
    exact = simulate_plans(problem, placements, priority)
    assert best_plan(outcome) == best_plan(exact)
    assert outcome.seconds[best_plan(outcome)] == exact.seconds[best_plan(exact)]
    np.testing.assert_allclose(outcome.seconds, exact.seconds, rtol=1e-5)
    np.testing.assert_array_equal(outcome.overflow, exact.overflow)
    assert simulation.exact_plans < 200 or with_order


def test_whether_a_plan_fits_is_exact(problem):
    placements = random_placements(problem, 100)
    peak = judge(problem, placements).peak.max(axis=1)
    for limit in np.quantile(peak, [0.05, 0.5]):
        tight = problem.with_arrays(capacity=np.full(4, int(limit)))
        outcome = GpuSimulation(tight, device="cpu")(tight, placements)
        exact = simulate_plans(tight, placements)
        np.testing.assert_array_equal(outcome.overflow > 0, exact.overflow > 0)
        assert (outcome.overflow <= exact.overflow).all()
        assert (outcome.overflow_share <= exact.overflow_share * (1 + 1e-9)).all()
        assert best_plan(outcome) == best_plan(exact)


def test_a_trainer_reports_an_exact_plan(problem):
    recipe = replace(find_recipe("colocrl", groups=12, hidden=16), episodes=16)
    environment = Environment(problem, GpuSimulation(problem, device="cpu"))
    trainer = Trainer([environment], recipe, seed=0, max_evaluations=48, device="cpu")
    trainer.run()
    assert 32 <= environment.evaluations <= 48
    verdict = judge(problem, environment.best_placement)
    assert environment.best_key == (int(verdict.overflow[0]), float(verdict.value[0]))


def test_plans_out_of_scope_are_refused(problem):
    simulation = GpuSimulation(problem, device="cpu")
    placements = random_placements(problem, 2)
    orders = np.random.default_rng(0).random(placements.shape)
    with pytest.raises(ConfigError, match="these have several"):
        simulation(problem, placements, orders)
    with pytest.raises(ConfigError, match="plans with fused ops"):
        simulation(problem, placements, None, np.full_like(placements, -1))
    with pytest.raises(ConfigError, match="its own problem"):
        simulation(problem.with_arrays(capacity=problem.arrays.capacity * 2), placements)
