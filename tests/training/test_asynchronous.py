"""Asynchronous controllers: every gradient counts once, and one controller repeats itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright import Cluster, Problem, judge, zoo
from placewright.errors import ConfigError, FileError
from placewright.training import Environment, find_recipe, simulate_plans
from placewright.training.asynchronous import AsynchronousTrainer, Controllers
from placewright.training.run import TrainingRun
from placewright.workers import open_workers

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(zoo.load("branches:modules=1"), Cluster.parse("2xP100+cpu"))


@pytest.fixture(scope="module")
def workers():
    with open_workers("threads:3") as opened:
        yield opened


def make_trainer(problem, workers, controllers="3:4", plans=100, name="colocrl", **settings):
    environment = settings.pop("environment", None) or Environment(problem)
    recipe = replace(find_recipe(name, groups=6, hidden=8), **settings)
    return AsynchronousTrainer(
        [environment], recipe, workers, Controllers.parse(controllers), 0, plans
    )


@pytest.mark.parametrize("name", ["colocrl", "colocrl-paper", "hierarchical"])
def test_controllers_learn_within_the_budget_and_every_plan_counts_once(problem, workers, name):
    judged = []

    class Counting(Environment):
        def record(self, plans, found_by):
            judged.append((found_by, len(plans.placements)))
            return super().record(plans, found_by)

    trainer = make_trainer(problem, workers, name=name, environment=Counting(problem))
    before = [each.detach().clone() for each in trainer.policy.parameters()]
    trainer.run()
    assert trainer.finished
    assert 100 - 5 < trainer.evaluations <= 100
    assert trainer.evaluations == sum(count for _, count in judged)
    assert [count for found_by, count in judged if found_by == "sampled"] == [4] * trainer.updates
    assert sum(trainer.baseline.batches) == trainer.updates == len(trainer.log)
    assert min(trainer.baseline.batches) > 0
    assert any((a != b).any() for a, b in zip(before, trainer.policy.parameters(), strict=True))
    environment = trainer.environments[0]
    assert environment.best_key[1] == judge(problem, environment.best_placement).value[0]
    # The first gradients of the others were computed with the first weights.
    stale = [row.stats["staleness"] for row in trainer.log]
    assert stale[0] == 0.0
    assert max(stale) >= 2.0


def test_one_controller_repeats_itself_and_another_seed_does_not(problem, workers):
    one, same = (make_trainer(problem, workers, "1:4", plans=40) for _ in range(2))
    other = make_trainer(problem, workers, "1:4", plans=40)
    other.seed = 1
    for trainer in (one, same, other):
        trainer.run()
    assert one.log == same.log
    assert one.log != other.log
    assert {row.stats["staleness"] for row in one.log} == {0.0}


def test_one_controller_that_stops_goes_on_as_if_it_had_not(problem, workers, tmp_path):
    whole = make_trainer(problem, workers, "1:4", plans=60)
    whole.run()
    first = make_trainer(problem, workers, "1:4", plans=60)
    first.run(lambda trainer: trainer.updates < 4)
    TrainingRun(first, tmp_path, {}).save()
    second = make_trainer(problem, workers, "1:4", plans=60)
    run = TrainingRun(second, tmp_path, {})
    run.resume()
    assert second.updates == 4
    assert run.train()
    assert second.log == whole.log
    found, state = second.policy.state_dict(), whole.policy.state_dict()
    assert all(np.array_equal(found[key].numpy(), state[key].numpy()) for key in state)


def test_several_controllers_resume_with_their_counts_and_baselines(problem, workers, tmp_path):
    first = make_trainer(problem, workers, name="colocrl-paper")
    first.run(lambda trainer: trainer.updates < 7)
    TrainingRun(first, tmp_path, {}).save()
    second = make_trainer(problem, workers, name="colocrl-paper")
    run = TrainingRun(second, tmp_path, {})
    run.resume()
    assert second.baseline.state() == first.baseline.state()
    assert sum(second.baseline.batches) == second.updates == 7
    assert second.evaluations == first.evaluations
    assert run.train()
    assert sum(second.baseline.batches) == second.updates
    with pytest.raises(FileError, match="asynchronous is '3:4' there and '2:4' here"):
        TrainingRun(
            make_trainer(problem, workers, "2:4", name="colocrl-paper"), tmp_path, {}
        ).resume()


def test_what_controllers_cannot_train_is_refused(problem, workers):
    with pytest.raises(ConfigError, match="recipe 'placeto' makes 4 steps on the same episodes"):
        make_trainer(problem, workers, name="placeto")
    measured = Environment(problem, lambda *plans: simulate_plans(*plans))
    with pytest.raises(ConfigError, match="learn from measured plans"):
        make_trainer(problem, workers, environment=measured)
    for text in ("4", "0:4", "4:0", "a:b", "4:8:2", ""):
        with pytest.raises(ConfigError, match="expected their number and the workers of each"):
            Controllers.parse(text)
    assert Controllers.parse("4:8") == Controllers(4, 8)
