"""The training of GO: imitation, then PPO."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from placewright import judge
from placewright.solvers.ordering.priority_rules import rule_priorities

torch = pytest.importorskip("torch")

from placewright.policies.go.config import GoConfig  # noqa: E402
from placewright.training.go.demonstrations import (  # noqa: E402
    DemonstrationTask,
    make_demonstration,
    read_demonstrations,
)
from placewright.training.go.trainer import (  # noqa: E402
    GoRecipe,
    GoTrainer,
    report_rows,
)

SMALL = GoConfig(hidden=16, heads=2, segment=16, layers=1, tasks=("device", "priority"))

TASKS = (
    DemonstrationTask("branches:modules=1", "2xP100+cpu", "ready"),
    DemonstrationTask("branches:modules=1", "3xP100+cpu", "in order", 1.5),
)


@pytest.fixture(scope="module")
def taught_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("go") / "teachers.jsonl"
    rows = [make_demonstration(task, task.problem(), (50, 300), 20.0) for task in TASKS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def lessons(taught_file):
    return read_demonstrations(taught_file)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_training_imitates_then_learns_from_rewards_and_reports(lessons, tmp_path):
    recipe = GoRecipe(episodes=8, imitation_share=0.5)
    shape = replace(SMALL, timed=True, starts=3)
    training = GoTrainer(shape.build(lessons[0].problem), lessons, recipe, device="cpu")
    training.run(1e9, max_steps=12)
    parts = [point.part for point in training.log]
    assert parts == ["imitation"] * 6 + ["ppo"] * 5  # the last problem's plans were judged alone
    assert all(np.isfinite(point.said["gradient"]) for point in training.log)
    rows = report_rows(training)
    assert [row["task"] for row in rows] == [task.key for task in TASKS]
    assert all(row["best"] <= min(1.0, row["likeliest"]) for row in rows)
    evaluations = [each.evaluations for each in training.environments]
    assert sum(evaluations) >= 6 * 8 + 5 + 2  # drawn, argmax, teachers

    own, plans = dict(training.best_keys), [each.evaluations for each in training.environments]
    training.try_priority_rules(0)
    more = training.environments[0].evaluations - plans[0]
    assert more >= 10  # a plan in so many orders at least
    best = training.best_keys[0]
    assert best <= own[0]
    devices = training.policy.observe(lessons[0].problem).legalize(training.elites[0].placements)
    orders = [rule_priorities(lessons[0].problem, one).values() for one in devices]
    values = [
        float(judge(lessons[0].problem, device[None], order[None]).value[0])
        for device, several in zip(devices, orders, strict=True)
        for order in several
    ]
    assert best[1] == min(own[0][1], *values)

    training.save(tmp_path / "run" / "checkpoint.json")
    again = GoTrainer(shape.build(lessons[0].problem, seed=9), lessons, recipe, device="cpu")
    again.resume(tmp_path / "run" / "checkpoint.json")
    assert (again.steps, again.seconds) == (12, training.seconds)
    expected, found = training.policy.state_dict(), again.policy.state_dict()
    assert all((expected[name] == found[name]).all() for name in expected)
    mine, theirs = (each.optimizer.state_dict()["state"] for each in (training, again))
    assert mine.keys() == theirs.keys()
    assert all((mine[at]["exp_avg"] == theirs[at]["exp_avg"]).all() for at in mine)


def test_a_plan_better_than_the_teachers_is_taught_from_then_on(lessons):
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
    training = GoTrainer(SMALL.build(weak.problem), [weak], device="cpu")
    reference = training.reference_seconds(0)
    order = training.policy.priorities(weak.problem, better)
    judged = training.environments[0].judge(better, "sampled", order)
    assert judged.seconds[0] < reference
    training._improve_demonstration(0)
    assert training.demonstrations[0].found_by[0] == "go"
    assert (training.demonstrations[0].placements[0] == better[0]).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_training_runs_on_a_gpu(lessons):
    training = GoTrainer(SMALL.build(lessons[0].problem), lessons, device="cuda", threads=4)
    training.run(1e9, max_steps=10)
    assert training.policy.torch_device.type == "cuda"
    assert {point.part for point in training.log} == {"imitation", "ppo"}
    episodes = training.policy.act(lessons[0].problem, 4, seed=0)
    scores = training.policy.score(lessons[0].problem, episodes)
    np.testing.assert_allclose(scores.log_prob.detach().cpu(), episodes.log_prob, atol=1e-4)
