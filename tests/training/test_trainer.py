"""The trainer: it counts, repeats itself, leaves out what does not fit, goes on where it was."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from placewright import Cluster, MaxEvaluations, Problem, judge, solve, zoo
from placewright.errors import ConfigError, FileError
from placewright.training import (
    PPO,
    RECIPES,
    Environment,
    FixedPenalty,
    Outcome,
    TrainedSolver,
    Trainer,
    find_recipe,
    simulate_plans,
    training_result,
)
from placewright.training.run import TrainingRun

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def problem() -> Problem:
    """A small network with branches on two GPUs and a host."""
    return Problem(zoo.load("branches:modules=1"), Cluster.parse("2xP100+cpu"))


def small(name, **changed):
    groups = None if name in ("go", "go-paper") else 8
    made = find_recipe(name, groups=groups, hidden=None if name == "pair" else 16)
    return replace(made, **changed)


def trained(problem, name="colocrl", plans=60, seed=0, **changed):
    trainer = Trainer([Environment(problem)], small(name, **changed), seed, plans, device="cpu")
    trainer.run()
    return trainer


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_runs_within_its_budget_and_repeats_itself(problem, name):
    each = 9 if getattr(small(name).policy_config, "steps", False) else 1  # plans of an episode
    plans = 40 * each
    one, same, other = (trained(problem, name, plans=plans, seed=seed) for seed in (0, 0, 1))
    environment = one.environments[0]
    assert one.log == same.log
    assert one.log != other.log
    assert one.finished
    assert environment.evaluations <= plans
    assert environment.evaluations > plans - 2 * each * one.recipe.episodes - 1
    order = environment.best_priority
    assert environment.best_key[1] == judge(problem, environment.best_placement, order).value[0]
    assert environment.history[-1][2] == environment.best_key[1]
    updates = [row.update for row in one.log]
    # GO's first episodes are learned from an update later, and that update has no row.
    assert updates == [at for at in range(1, updates[-1] + 1) if at in updates]
    assert updates[-1] - len(updates) == (1 if name == "go" else 0)


def test_ppo_trains_too(problem):
    trainer = trained(problem, algorithm=PPO(epochs=2))
    assert trainer.environments[0].best_placement is not None
    assert trainer.log[-1].gradient > 0


def test_the_argmax_plan_is_judged_as_often_as_the_recipe_asks(problem):
    every, third, never = (
        trained(problem, episodes=4, plans=48, greedy_every=n) for n in (1, 3, 0)
    )
    assert all(np.isfinite(row.greedy) for row in every.log)
    asked = [np.isfinite(row.greedy) for row in third.log]
    assert asked == [row.update % 3 == 0 for row in third.log]
    assert not any(np.isfinite(row.greedy) for row in never.log)
    assert never.evaluations == 4 * never.updates == 48


def test_the_argmax_plan_is_judged_and_counted_when_it_changes(problem):
    judged = []

    def measure(problem, device):
        judged.append(device.copy())
        return simulate_plans(problem, device)

    trainer = Trainer([Environment(problem, measure)], small("colocrl"), 0, 60, device="cpu")
    trainer.run()
    single = [device for device in judged if len(device) == 1]
    assert 1 <= len(single) <= trainer.updates
    assert all((a != b).any() for a, b in itertools.pairwise(single))
    assert trainer.evaluations == sum(map(len, judged))


def test_anything_that_measures_can_take_the_simulators_place(problem):
    """Here a plan takes as long as it has ops off gpu0, and one with ops on the host fails."""
    host = problem.cluster.host

    def measure(problem, device):
        seconds = (device[:, problem.arrays.scheduled] != 0).sum(axis=1) + 1.0
        failed = (device[:, problem.arrays.scheduled] == host).any(axis=1)
        nothing = np.zeros(len(device))
        return Outcome(np.where(failed, np.inf, seconds), nothing.astype(np.int64), nothing)

    environment = Environment(problem, measure, reference_seconds=10.0)
    Trainer([environment], small("colocrl", reward=FixedPenalty()), 0, 200, device="cpu").run()
    assert environment.best_key[1] < (problem.arrays.scheduled.sum()) / 2


def test_a_trainer_counts_the_plans_that_it_simulates_inside_episodes(problem):
    made = find_recipe("placeto", groups=4, hidden=4)
    told = replace(made, policy_config=replace(made.policy_config, times=True), episodes=2)
    trainer = Trainer([Environment(problem)], told, seed=0, max_evaluations=1000, device="cpu")
    trainer.update()
    groups = len(trainer.policy.grouping(problem))
    # Two episodes and the likeliest plan, each simulated before every step and judged in the end.
    assert trainer.evaluations == 3 * groups + 3


def test_late_in_training_plans_that_do_not_fit_are_left_out(problem):
    def never(problem, device):
        found = simulate_plans(problem, device)
        return replace(found, overflow=found.overflow + 1, overflow_share=found.overflow_share + 1)

    seen = []
    for share in (1.0, 0.0):
        made = small("colocrl", drop_infeasible_after=share)
        trainer = Trainer([Environment(problem, never)], made, 0, 40, device="cpu")
        before = [each.detach().clone() for each in trainer.policy.parameters()]
        trainer.run()
        after = trainer.policy.parameters()
        seen.append(all((a == b).all() for a, b in zip(before, after, strict=True)))
        assert {row.infeasible for row in trainer.log} == {1.0}
    assert seen == [False, True]


def test_several_problems_take_turns(problem):
    environments = [Environment(problem), Environment(replace(problem, objective="period"))]
    trainer = Trainer(environments, small("colocrl"), 0, 100, device="cpu")
    trainer.run()
    counts = [environment.evaluations for environment in environments]
    assert sum(counts) <= 100
    assert min(counts) > 30


def test_a_recipe_is_a_method_too(problem):
    method = TrainedSolver(small("colocrl"), max_evaluations=50)
    result = solve(problem, method, MaxEvaluations(30), seed=0)
    assert result.solver == "colocrl"
    assert result.evaluations == 30
    whole = solve(problem, method, seed=0)
    assert whole.evaluations <= 50
    assert whole.objective_value == training_result(trained(problem, plans=50)).objective_value


@pytest.mark.parametrize("name", ["colocrl", "hierarchical", "colocrl-paper"])
def test_a_run_that_goes_on_ends_as_one_never_stopped(problem, name, tmp_path):
    whole = trained(problem, name, plans=80)
    first = TrainingRun(
        Trainer([Environment(problem)], small(name), 0, 80, device="cpu"), tmp_path, {}
    )
    for _ in range(3):
        first.trainer.update()
    first.save()
    fresh = Trainer([Environment(problem)], small(name), 0, 80, device="cpu")
    second = TrainingRun(fresh, tmp_path, {})
    second.resume()
    assert fresh.updates == 3
    assert second.train()
    assert fresh.log == whole.log
    assert (fresh.environments[0].best_placement == whole.environments[0].best_placement).all()
    assert fresh.environments[0].best_key == whole.environments[0].best_key
    state, expected = fresh.policy.state_dict(), whole.policy.state_dict()
    assert all((state[key] == expected[key]).all() for key in expected)


@pytest.mark.parametrize("name", ["colocrl", "go"])
def test_a_finished_run_goes_on_with_a_larger_budget_from_then_on(problem, name, tmp_path):
    """As if the budget had been raised at that moment; schedules go by shares of the new one."""
    raised = trained(problem, name, plans=60)
    TrainingRun(raised, tmp_path, {}).save()
    raised.max_evaluations, raised.finished = 120, False
    raised.planned_updates = raised.hooks.planned_updates(raised)
    raised.run()
    resumed = Trainer([Environment(problem)], small(name), 0, 120, device="cpu")
    TrainingRun(resumed, tmp_path, {}).resume()
    assert not resumed.finished
    assert 0.3 < resumed.progress < 0.6
    resumed.run()
    assert resumed.log == raised.log
    assert 80 < resumed.evaluations <= 120
    state, expected = resumed.policy.state_dict(), raised.policy.state_dict()
    assert all((state[key] == expected[key]).all() for key in expected)


@pytest.mark.parametrize("name", RECIPES)
def test_the_smallest_budget_makes_one_update_and_a_plan(problem, name):
    trainer = trained(problem, name, plans=1)
    assert trainer.finished
    assert len(trainer.log) >= 1
    assert training_result(trainer).objective_value > 0


def test_an_interrupt_saves_the_end_of_an_update_and_says_it_is_not_over(problem, tmp_path):
    trainer = Trainer([Environment(problem)], small("colocrl"), 0, 200, device="cpu")
    run = TrainingRun(trainer, tmp_path, {"kept": "word"})

    def watch(trainer):
        if trainer.updates == 2:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    assert not run.train(watch)
    assert signal.getsignal(signal.SIGINT) is before
    assert trainer.updates in (2, 3)  # python hears a signal between two instructions
    data = json.loads(run.path.read_text())
    assert data["updates"] == trainer.updates
    assert data["metadata"] == {"kept": "word"}


def test_what_a_killed_run_left_is_cleared_by_the_next(problem, tmp_path):
    def fresh(plans):
        return TrainingRun(
            Trainer([Environment(problem)], small("colocrl"), 0, plans), tmp_path, {}
        )

    fresh(20).train()
    files = {path.name for path in tmp_path.iterdir()}
    assert len(files) == 4
    others = {"notes.tmp", ".0123.tmp", f"checkpoint.{'g' * 32}.safetensors", "mine.safetensors"}
    orphans = {
        ".0123456789abcdef.tmp",
        f"checkpoint.{'0' * 32}.safetensors",
        f"policy.{'a' * 32}.safetensors",
    }
    for name in others | orphans:
        (tmp_path / name).write_bytes(b"half")
    run = fresh(40)
    run.resume()
    run.train()
    left = {path.name for path in tmp_path.iterdir()}
    assert others <= left
    assert not orphans & left
    assert len(left) == 4 + len(others)


def test_checkpoints_of_other_runs_and_damaged_ones_are_refused(problem, tmp_path):
    def fresh(seed=0, plans=40, **sizes):
        made = find_recipe("colocrl", **{"groups": 8, "hidden": 16, **sizes})
        return TrainingRun(Trainer([Environment(problem)], made, seed, plans), tmp_path, {})

    with pytest.raises(FileError, match="no such file"):
        fresh().resume()
    fresh().train()
    with pytest.raises(FileError, match="of another run: seed is"):
        fresh(seed=1).resume()
    with pytest.raises(FileError, match="is of a run of 40 plans: expected a budget as large"):
        fresh(plans=39).resume()
    with pytest.raises(FileError, match="of another run: settings"):
        fresh(hidden=18).resume()
    path = tmp_path / "checkpoint.json"
    data = json.loads(path.read_text())
    for key in ("updates", "log", "problems", "greedy"):
        path.write_text(json.dumps({**data, key: None}))
        with pytest.raises(FileError, match="malformed"):
            fresh().resume()
    path.write_text("{}")
    with pytest.raises(FileError):
        fresh().resume()


def test_torch_is_loaded_when_it_is_needed_and_not_before():
    code = "import sys, placewright.policies, placewright.training; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout == "False\n"


def test_unknown_recipes_and_sizes_are_named():
    with pytest.raises(ConfigError, match="did you mean 'colocrl'"):
        find_recipe("colocr")
    with pytest.raises(ConfigError, match="expected 2 or more"):
        find_recipe("colocrl", groups=1)
    with pytest.raises(ConfigError, match="even"):
        find_recipe("colocrl", hidden=17)
    with pytest.raises(ConfigError, match="learns its groups"):
        find_recipe("hierarchical", grouping="coarse")
    assert find_recipe("hierarchical", groups=7).policy_config.groups == 7
