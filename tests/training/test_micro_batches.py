"""Training on workers: the same episodes, figures and weights for any number and kind of them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from placewright import Cluster, Problem, zoo
from placewright.errors import ConfigError
from placewright.training import (
    PPO,
    Environment,
    Trainer,
    TrainerHooks,
    find_recipe,
    simulate_plans,
)
from placewright.training.gradients import (
    GradientSum,
    LossGradient,
    add_gradients,
    loss_gradient,
    mean_gradient,
    set_gradient,
)
from placewright.training.micro_batches import default_size
from placewright.workers import open_workers

torch = pytest.importorskip("torch")

RECIPES = ("colocrl", "hierarchical", "placeto", "go")
KINDS = ("threads:3", "processes:1", "processes:2")


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
    usual = {
        "hierarchical": {"episodes": 8},  # two groupings, which may go to two workers
        "placeto": {"episodes": 4, "algorithm": PPO(epochs=2)},
        "go": {"episodes": 4, "algorithm": PPO(epochs=2)},
    }
    changed = {**usual.get(name, {}), **changed}
    return replace(recipe, **changed)


def run(problem, recipe, updates=3, **settings):
    environments = [recipe.environment(each) for each in np.atleast_1d(problem)]
    if recipe.name == "go":
        updates += 2  # imitation, and episodes that the next update learns from
    trainer = Trainer(environments, recipe, 0, None, max_updates=updates, **settings)
    trainer.run()
    return trainer


_in_process = {}


def in_process(problem, name):
    if name not in _in_process:
        _in_process[name] = run(problem, small(name), micro_batch=small_size(name))
    return _in_process[name]


def small_size(name):
    return {"colocrl": 1, "hierarchical": 4, "placeto": 1, "go": 1}[name]


def assert_same(trainer, expected):
    assert trainer.evaluations == expected.evaluations
    assert repr(trainer.log) == repr(expected.log)  # text, since NaN is not equal to itself
    found, state = trainer.policy.state_dict(), expected.policy.state_dict()
    assert all(np.array_equal(found[key].numpy(), state[key].numpy()) for key in state)
    for mine, other in zip(trainer.environments, expected.environments, strict=True):
        assert mine.best_key == other.best_key
        assert (mine.best_placement == other.best_placement).all()


@pytest.mark.parametrize("name", ["colocrl", "hierarchical"])
def test_large_micro_batches_decode_a_tree_and_do_not_depend_on_workers(problem, name):
    """Of 64 episodes, which share the steps of those that begin alike."""
    recipe = small(name, episodes=128)
    expected = run(problem, recipe, 2, micro_batch=64)
    with open_workers("threads:2") as workers:
        assert_same(run(problem, recipe, 2, micro_batch=64, workers=workers), expected)


@pytest.mark.parametrize("name", RECIPES)
def test_workers_of_any_kind_and_number_end_with_the_weights_of_one_process(problem, name, workers):
    trainer = run(problem, small(name), workers=workers, micro_batch=small_size(name))
    assert any(row.gradient > 0 for row in trainer.log if row.phase == "reinforcement")
    assert_same(trainer, in_process(problem, name))


def test_plans_are_sampled_alike_whoever_samples_them(problem):
    """Two micro-batches have other seeds, and the second does not depend on the first."""
    recipe = small("colocrl", episodes=4)
    one, two, four = (run(problem, recipe, updates=1, micro_batch=size) for size in (1, 2, 4))
    assert len({trainer.log[0].mean for trainer in (one, two, four)}) == 3
    assert {trainer.log[0].plans for trainer in (one, two, four)} == {5}


@pytest.mark.parametrize("name", ["colocrl", "colocrl-paper", "placeto", "pair"])
def test_the_mean_gradient_of_micro_batches_is_that_of_the_batch(problem, name):
    """Losses are means over episodes, but for an entropy floor, which is 0.1 late in training."""
    recipe = find_recipe(name, groups=6, hidden=None if name == "pair" else 8)
    policy = recipe.policy_config.build(problem, 0)
    episodes = policy.act(problem, 6, seed=1, noise=1.0)
    advantage = np.random.default_rng(2).normal(size=(6, 1))
    regularization = recipe.regularization(1.0, policy.select(episodes, 3))
    arguments = recipe.algorithm, regularization
    whole = loss_gradient(policy, problem, episodes, advantage, *arguments)
    parts = [
        loss_gradient(
            policy, problem, policy.take(episodes, *rows), advantage[slice(*rows)], *arguments
        )
        for rows in ((0, 1), (1, 4), (4, 6))
    ]
    mean = mean_gradient([GradientSum.of(at, part) for at, part in enumerate(parts)])
    set_gradient(policy, mean)
    gradient = torch.cat([each.grad.flatten() for each in policy.parameters()]).numpy()
    assert np.abs(whole.values).max() > 1e-3
    assert np.allclose(gradient, whole.values, rtol=1e-3, atol=1e-5 * np.abs(whole.values).max())
    for figure, value in whole.figures.items():
        assert mean.figures[figure] == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize("count", [1, 2, 5, 8, 13])
def test_gradients_have_the_same_sum_however_they_are_cut_into_runs(count):
    rng = np.random.default_rng(count)
    leaves = []
    for at in range(count):
        values, used = rng.normal(size=50).astype(np.float32), bool(at % 2)
        gradient = LossGradient(1 + at % 3, values, (used, True), {"kl": float(values[0])})
        leaves.append(GradientSum.of(at, gradient))
    expected = mean_gradient(leaves)
    for _ in range(20):
        cuts = sorted({0, count, *rng.integers(0, count + 1, size=3).tolist()})
        runs = [add_gradients(leaves[a:b]) for a, b in itertools.pairwise(cuts)]
        found = mean_gradient([each for run in runs for each in run])
        assert found.values.tobytes() == expected.values.tobytes()
        assert (found.is_used, found.figures) == (expected.is_used, expected.figures)
    exact = sum(leaf.total.values.astype(np.float64) for leaf in leaves) / expected.episodes
    assert np.allclose(expected.values, exact, atol=1e-6)
    assert len(add_gradients(leaves)) == bin(count).count("1")


@pytest.fixture(scope="module")
def one_process():
    with open_workers("processes:1") as workers:
        yield workers


@pytest.fixture
def process(one_process, monkeypatch):
    """One process, and the tasks that it was given."""
    submit, tasks = one_process.submit, []

    def log_and_submit(task, *arguments):
        tasks.append(type(task).__name__)
        return submit(task, *arguments)

    monkeypatch.setattr(one_process, "submit", log_and_submit)
    return one_process, tasks


def test_the_next_episodes_are_sampled_once_while_the_driver_judges_the_argmax_plan(
    problem, process
):
    workers, tasks = process
    recipe, begun = small("colocrl"), []
    assert recipe.hooks is TrainerHooks
    settings = {"max_updates": 3, "workers": workers, "micro_batch": 1}
    trainer = Trainer([Environment(problem)], recipe, 0, None, **settings)
    judge = trainer.judge_last_plan
    trainer.judge_last_plan = lambda *plan: (begun.append(len(tasks)), judge(*plan))[1]
    trainer.run()
    assert tasks == ["SampleEpisodes", "ComputeGradients"] * 3
    assert begun == [3, 5, 6]  # the third sampling has begun when the second argmax is judged
    assert_same(trainer, run(problem, recipe, micro_batch=1))


def test_episodes_that_were_sampled_with_other_weights_are_not_used(problem, process):
    """Whoever watches a run may change its policy between two updates."""

    def change(trainer):
        with torch.no_grad():
            next(iter(trainer.policy.parameters())).mul_(0.5)
        return True

    trainers = []
    for settings in ({"workers": process[0], "micro_batch": 1}, {"micro_batch": 1}):
        environments, recipe = [Environment(problem)], small("colocrl")
        trainer = Trainer(environments, recipe, 0, None, max_updates=3, **settings)
        trainer.run(change)
        trainers.append(trainer)
    assert_same(*trainers)
    assert not trainers[0].micro_batches.prefetch.may_guess
    assert process[1].count("SampleEpisodes") == 4  # one was in vain, and the last


def test_several_problems_share_an_update(problem):
    problems = np.empty(3, dtype=object)
    problems[:] = [problem, replace(problem, objective="period"), problem]
    recipe = small("placeto", problems=2, episodes=2)
    expected = run(problems, recipe, micro_batch=1)
    assert {row.problem for row in expected.log} == {0, 1, 2}
    with open_workers("threads:3") as workers:
        assert_same(run(problems, recipe, workers=workers, micro_batch=1), expected)


def test_plans_are_measured_in_the_driver(problem):
    measured = []

    def measure(problem, placements):
        measured.append(len(placements))
        return simulate_plans(problem, placements)

    recipe = small("colocrl")
    with open_workers("threads:2") as workers:
        settings = {"max_updates": 2, "workers": workers, "micro_batch": 1}
        trainer = Trainer([Environment(problem, measure)], recipe, 0, None, **settings)
        trainer.run()
    assert measured[0] == recipe.episodes
    assert sum(measured) == trainer.evaluations
    trainer.environments[0].evaluations = trainer.evaluations
    assert_same(trainer, run(problem, recipe, updates=2, micro_batch=1))


def test_plans_simulated_inside_episodes_are_counted_once(problem):
    recipe = find_recipe("placeto", groups=4, hidden=4, start_times=True)
    recipe = replace(recipe, episodes=2)
    trainer = run(problem, recipe, updates=1, micro_batch=1)
    groups = len(trainer.policy.grouping(problem))
    # Two episodes and the argmax plan, each simulated before every step and judged in the end.
    assert trainer.evaluations == 3 * groups + 3


def test_a_run_on_micro_batches_stays_within_its_budget(problem):
    trainer = Trainer([Environment(problem)], small("colocrl"), 0, 50, micro_batch=1)
    trainer.run()
    assert trainer.finished
    assert 50 - 4 - 1 < trainer.evaluations <= 50


def test_what_micro_batches_cannot_do_is_refused(problem):
    def make(name="colocrl", **settings):
        return Trainer([Environment(problem)], small(name), **settings)

    with pytest.raises(ConfigError, match="micro-batches of 0 episodes: expected 1 or more"):
        make(micro_batch=0)
    with pytest.raises(ConfigError, match="expected a multiple of 4, since hierarchical"):
        make("hierarchical", micro_batch=2)
    with pytest.raises(ConfigError, match="compute on 'cuda': with workers or micro-batches"):
        make(micro_batch=1, device="cuda")
    policy = small("colocrl").policy_config.build(problem)
    policy.__class__ = type("MyPolicy", (type(policy),), {})
    with pytest.raises(ConfigError, match=r"MyPolicy is none of them.*train it without workers"):
        make(micro_batch=1, policy=policy)


@pytest.mark.parametrize(
    ("episodes", "tied", "size"), [(3, 1, 2), (4, 4, 4), (16, 1, 8), (24, 4, 8), (128, 1, 16)]
)
def test_micro_batches_are_large_by_default_and_two_or_more_where_episodes_allow(
    episodes, tied, size
):
    assert default_size(episodes, tied) == size
