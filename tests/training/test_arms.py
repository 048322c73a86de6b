"""Arms: each leaves out one part of learning, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright import Cluster, Problem, zoo
from placewright.errors import ConfigError, FileError
from placewright.training import Environment, Trainer, find_recipe
from placewright.training.recipes.arms import ARMS, has_teacher, with_arm
from placewright.training.run import TrainingRun

pytest.importorskip("torch")

SYSTEMS = ("colocrl", "hierarchical", "placeto", "go")
REINFORCE = ("colocrl", "hierarchical")


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(zoo.load("branches:modules=1"), Cluster.parse("2xP100+cpu"), discipline="ready")


def small(name, arm):
    recipe = find_recipe(name, groups=None if name == "go" else 8, hidden=16)
    return with_arm(replace(recipe, episodes=4), arm)


class Recorder(Environment):
    """Remembers all plans that it judges."""

    def __init__(self, problem, **options):
        super().__init__(problem, **options)
        self.placements = []

    def judge(self, placements, *arguments, **options):
        self.placements.append(placements.copy())
        return super().judge(placements, *arguments, **options)


def trainer_of(problem, name, arm, plans=48, seed=0):
    return Trainer([Recorder(problem)], small(name, arm), seed, plans, device="cpu")


def weights(trainer):
    return {name: value.clone() for name, value in trainer.policy.state_dict().items()}


def same(one, other):
    return all(bool((value == other[name]).all()) for name, value in one.items())


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_policy_that_never_learns_ends_as_it_began(problem, name):
    frozen, shipped = (trainer_of(problem, name, arm) for arm in ("never learns", "as shipped"))
    first = weights(frozen)
    assert same(first, weights(shipped))
    frozen.run()
    shipped.run()
    assert frozen.updates > 2
    assert same(first, weights(frozen))
    assert not same(first, weights(shipped))


@pytest.mark.parametrize("name", REINFORCE)
@pytest.mark.parametrize("arm", [arm for arm in ARMS if arm != "as shipped"])
def test_arms_begin_with_the_plans_of_the_recipe(problem, name, arm):
    runs = [trainer_of(problem, name, each, plans=4) for each in (arm, "as shipped")]
    for trainer in runs:
        trainer.run()
    mine, theirs = (trainer.environments[0].placements[0] for trainer in runs)
    assert (mine == theirs).all()


@pytest.mark.parametrize("name", SYSTEMS)
def test_an_arm_with_rewards_only_imitates_nothing(name):
    recipe = small(name, "rewards only")
    assert recipe.self_imitation(0.0) == 0.0
    assert not has_teacher(recipe)
    assert has_teacher(small(name, "as shipped")) == (name == "go")
    with pytest.raises(ConfigError, match="imitates nothing"):
        with_arm(recipe, "imitation only")


@pytest.mark.parametrize("name", ["colocrl", "placeto"])
def test_a_policy_without_a_teacher_is_frozen_after_half_of_its_plans(problem, name):
    trainer = trainer_of(problem, name, "taught then frozen", plans=60)
    seen = []
    trainer.run(lambda each: bool(seen.append((each.evaluations, weights(each))) or True))
    late = [state for plans, state in seen if plans >= 40]
    assert len(late) >= 2
    assert all(same(late[0], state) for state in late)
    assert not same(seen[0][1], late[0])


def test_a_policy_with_a_teacher_is_frozen_after_imitation(problem):
    trainer = trainer_of(problem, "go", "taught then frozen")
    first, taught = weights(trainer), []
    trainer.run(lambda each: bool(taught.append((each.log[-1:], weights(each))) or True))
    states = [state for rows, state in taught if rows and rows[0].phase == "imitation"]
    assert states
    assert not same(first, states[-1])
    assert same(states[-1], weights(trainer))


def test_imitation_alone_follows_the_best_plan_whatever_other_plans_cost(problem):
    """Two rewards that agree on the best plan of each update give the same weights."""

    def train(reward):
        recipe = replace(small("colocrl", "imitation only"), reward=reward)
        trainer = Trainer([Environment(problem)], recipe, 0, 40, device="cpu")
        trainer.run()
        return weights(trainer)

    def by_time(outcome, reference_seconds):
        return -outcome.seconds

    def by_nothing(outcome, reference_seconds):
        return np.zeros(len(outcome.seconds))

    assert same(train(by_time), train(by_nothing))


@pytest.mark.parametrize("name", ["placeto", "go"])
def test_only_reinforce_can_be_clipped_apart(name):
    with pytest.raises(ConfigError, match="does not use REINFORCE"):
        small(name, "clipped apart")


def test_an_unknown_arm_is_refused():
    with pytest.raises(ConfigError, match="no arm is named 'rewards': did you mean 'rewards only'"):
        with_arm(find_recipe("colocrl"), "rewards")


def test_a_run_of_one_arm_is_not_continued_as_another(problem, tmp_path):
    for arm in ("never learns", "rewards only"):
        run = TrainingRun(trainer_of(problem, "colocrl", arm, plans=8), tmp_path, {})
        if arm == "never learns":
            run.train()
        else:
            with pytest.raises(FileError, match="of another run: settings"):
                run.resume()


@pytest.mark.parametrize(("arm", "moves"), [("never learns", False), ("imitation only", True)])
def test_arms_hold_in_micro_batches(problem, arm, moves):
    recipe = small("colocrl", arm)
    trainer = Trainer([Environment(problem)], recipe, 0, 40, device="cpu", micro_batch=2)
    first = weights(trainer)
    trainer.run()
    assert same(first, weights(trainer)) != moves


def test_an_arm_that_is_clipped_apart_refuses_micro_batches(problem):
    recipe = small("colocrl", "clipped apart")
    trainer = Trainer([Environment(problem)], recipe, 0, 40, device="cpu", micro_batch=2)
    with pytest.raises(ConfigError, match="clips its terms one by one"):
        trainer.run()
