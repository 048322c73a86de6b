"""Training on workers: the same episodes, figures and weights for any number and kind of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright import Cluster, Problem, zoo
from placewright.errors import ConfigError
from placewright.training import Environment, Trainer, find_recipe, simulate_plans
from placewright.training.checkpoints import read_checkpoint
from placewright.training.recipes.registry import multi_graph_recipe
from placewright.training.run import TrainingRun
from placewright.workers import open_workers

pytest.importorskip("torch")

RECIPES = ("colocrl", "hierarchical", "placeto", "go")
KINDS = ("threads:1", "threads:3", "processes:1", "processes:2")


@pytest.fixture(scope="module")
def problem() -> Problem:
    """A small network with branches on two GPUs and a host."""
    return Problem(zoo.load("branches:modules=1"), Cluster.parse("2xP100+cpu"))


@pytest.fixture(scope="module", params=[*KINDS, pytest.param("ray:2", marks=pytest.mark.slow)])
def workers(request):
    if request.param.startswith("ray"):
        pytest.importorskip("ray")
    with open_workers(request.param) as opened:
        yield opened


def small(name, **changed):
    recipe = find_recipe(name, groups=None if name.startswith("go") else 6, hidden=8)
    if name == "hierarchical":  # two groupings, which may go to two workers
        changed = {"episodes": 8, **changed}
    if name == "go":
        changed = {"episodes": 8, **changed}
    return replace(recipe, **changed)


def run(problem, recipe, updates=3, **settings):
    environments = [recipe.environment(each) for each in np.atleast_1d(problem)]
    if recipe.name == "go":
        updates += 3  # imitation, and episodes that the next update learns from
    trainer = Trainer(environments, recipe, 0, None, max_updates=updates, **settings)
    trainer.run()
    return trainer


_in_process = {}


def in_process(problem, name):
    if name not in _in_process:
        _in_process[name] = run(problem, small(name), micro_batch=default_size(name))
    return _in_process[name]


def default_size(name):
    return {"colocrl": 1, "hierarchical": 4, "placeto": 2, "go": 1}[name]


def assert_same(trainer, expected):
    assert trainer.evaluations == expected.evaluations
    assert repr(trainer.log) == repr(expected.log)  # text, since NaN is not equal to itself
    found, state = trainer.policy.state_dict(), expected.policy.state_dict()
    assert all(np.array_equal(found[key].numpy(), state[key].numpy()) for key in state)
    for mine, other in zip(trainer.environments, expected.environments, strict=True):
        assert mine.best_key == other.best_key
        assert (mine.best_placement == other.best_placement).all()


@pytest.mark.parametrize("name", RECIPES)
def test_workers_of_any_kind_and_number_end_with_the_weights_of_one_process(problem, name, workers):
    trainer = run(problem, small(name), workers=workers)
    assert trainer.micro_batches.size == default_size(name)
    assert any(row.gradient > 0 for row in trainer.log if row.phase == "reinforcement")
    assert_same(trainer, in_process(problem, name))
