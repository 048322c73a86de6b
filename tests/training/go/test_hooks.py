"""The training of GO: imitation, then PPO."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright import judge
from placewright.solvers.ordering.priority_rules import rule_priorities

torch = pytest.importorskip("torch")

from placewright.policies.go.config import GoConfig  # noqa: E402
from placewright.training.go.demonstrations import (  # noqa: E402
    DemonstrationTask,
)
from placewright.training.go.hooks import training_report  # noqa: E402
from placewright.training.recipes.go import go_recipe  # noqa: E402
from placewright.training.run import TrainingRun  # noqa: E402
from placewright.training.trainer import Trainer  # noqa: E402

SMALL = GoConfig(hidden=16, heads=2, segment=16, layers=1, tasks=("device", "priority"))

TASKS = (
    DemonstrationTask("branches:modules=1", "2xP100+cpu", "ready"),
    DemonstrationTask("branches:modules=1", "3xP100+cpu", "in order", 1.5),
)


def trainer_for(config, demonstrations, max_updates=None, seed=0, device="cpu", **changes):
    recipe = go_recipe(config, **changes)
    environments = [
        recipe.environment(each.problem, demonstration=each, threads=2) for each in demonstrations
    ]
    return Trainer(environments, recipe, seed, None, device=device, max_updates=max_updates)


def test_training_imitates_then_learns_from_rewards_and_reports(lessons):
    config = replace(SMALL, timed=True, starts=3)
    trainer = trainer_for(config, lessons, 12, episodes=8, imitation_share=0.5)
    trainer.run()
    phases = [row.phase for row in trainer.log]
    # The episodes of the last update are judged, and not learned from.
    assert phases == ["imitation"] * 6 + ["reinforcement"] * 5
    assert all(np.isfinite(row.gradient) for row in trainer.log)
    rows = training_report(trainer)
    assert [row["task"] for row in rows] == [task.key for task in TASKS]
    assert all(row["best"] <= min(1.0, row["likeliest"]) for row in rows)
    evaluations = [each.evaluations for each in trainer.environments]
    assert sum(evaluations) >= 6 * 8 + 5 + 2  # sampled, argmax, demonstrated

    hooks = trainer.hooks
    own = dict(hooks.best_keys)
    hooks.try_priority_rules(trainer, 0)
    assert trainer.environments[0].evaluations - evaluations[0] >= 10  # a plan in ten orders
    best = hooks.best_keys[0]
    assert best <= own[0]
    devices = trainer.policy.observe(lessons[0].problem).legalize(hooks.elites[0].placements)
    orders = [rule_priorities(lessons[0].problem, one).values() for one in devices]
    values = [
        float(judge(lessons[0].problem, device[None], order[None]).value[0])
        for device, several in zip(devices, orders, strict=True)
        for order in several
    ]
    assert best[1] == min(own[0][1], *values)


@pytest.mark.parametrize("stopped", [2, 5, 7])
def test_a_run_that_goes_on_ends_as_one_never_stopped(lessons, tmp_path, stopped):
    """Stopped in imitation, before the first episodes are learned from, and after that."""
    changes = {"episodes": 8, "imitation_share": 0.4}
    whole = trainer_for(SMALL, lessons, 10, **changes)
    whole.run()
    first = trainer_for(SMALL, lessons, 10, **changes)
    first.run(lambda trainer: trainer.updates < stopped)
    run = TrainingRun(first, tmp_path, {})
    run.save()
    second = trainer_for(SMALL, lessons, 10, **changes)
    TrainingRun(second, tmp_path, {}).resume()
    assert second.updates == stopped
    second.run()
    assert second.log == whole.log
    expected, found = whole.policy.state_dict(), second.policy.state_dict()
    assert all((expected[name] == found[name]).all() for name in expected)
    for one, other in zip(whole.environments, second.environments, strict=True):
        assert (one.best_key, one.evaluations) == (other.best_key, other.evaluations)
    assert whole.hooks.state() == second.hooks.state()


def test_without_demonstrations_it_imitates_list_schedules_within_its_budget(lessons):
    recipe = go_recipe(SMALL, episodes=8)
    environment = recipe.environment(lessons[0].problem)
    trainer = Trainer([environment], recipe, 0, 60, device="cpu")
    assert {"start", "heft", "m-etf"} == set(trainer.hooks.demonstrations[0].found_by)
    trainer.run()
    assert 40 < environment.evaluations <= 60
    phases = [row.phase for row in trainer.log]
    # 60 plans allow 60 / (8 + 1) updates, which are seven tenths of all.
    assert trainer.planned_updates == 10
    assert phases == ["imitation"] * 3 + ["reinforcement"] * (len(phases) - 3)


def test_a_plan_better_than_the_demonstrated_ones_is_demonstrated_from_then_on(lessons):
    given = lessons[0]
    order = SMALL.build(given.problem).priorities(given.problem, given.placements)
    value = judge(given.problem, given.placements, order).value  # in GO's order, not in their own
    worst, better = [int(value.argmax())], given.placements[[int(value.argmin())]]
    weak = replace(
        given,
        placements=given.placements[worst],
        objective_values=given.objective_values[worst],
        overflow=given.overflow[worst],
        found_by=tuple(given.found_by[at] for at in worst),
    )
    trainer = trainer_for(SMALL, [weak])
    hooks = trainer.hooks
    reference = hooks.reference_seconds(trainer, 0)
    order = trainer.policy.priorities(weak.problem, better)
    judged = trainer.environments[0].judge(better, "sampled", order)
    assert judged.seconds[0] < reference
    hooks._improve_demonstration(trainer, 0)
    assert hooks.demonstrations[0].found_by[0] == "go"
    assert (hooks.demonstrations[0].placements[0] == better[0]).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_training_runs_on_a_gpu(lessons):
    trainer = trainer_for(SMALL, lessons, 10, device="cuda")
    trainer.run()
    assert trainer.policy.torch_device.type == "cuda"
    assert {row.phase for row in trainer.log} == {"imitation", "reinforcement"}
    episodes = trainer.policy.act(lessons[0].problem, 4, seed=0)
    scores = trainer.policy.score(lessons[0].problem, episodes)
    np.testing.assert_allclose(scores.log_prob.detach().cpu(), episodes.log_prob, atol=1e-4)
