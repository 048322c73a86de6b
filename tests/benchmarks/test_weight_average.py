"""Averages of the last weights."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.train.weight_average import WeightAverage
from placewright import Cluster, Problem, zoo

torch = pytest.importorskip("torch")

from placewright.training import Environment, Trainer, find_recipe  # noqa: E402


@pytest.fixture(scope="module")
def several() -> list[Problem]:
    cluster = Cluster.parse("2xP100")
    names = ("branches:modules=1", "branches:modules=2", "layered:ops=12")
    return [Problem(zoo.load(name), cluster) for name in names]


@pytest.mark.slow
def test_the_mean_of_the_last_weights_is_what_a_policy_settles_on(several):
    made = replace(find_recipe("placeto", groups=4, hidden=4), episodes=3)
    trainer = Trainer([Environment(several[0])], made, seed=0, max_evaluations=40, device="cpu")
    averaged, seen = WeightAverage(0.5), []

    def watch(trainer):
        if trainer.evaluations > 20:
            seen.append(next(trainer.policy.parameters()).detach().clone())
        return averaged(trainer)

    trainer.run(watch)
    averaged.apply_to(trainer)
    assert averaged.count == len(seen) > 2
    mean = sum(seen) / len(seen)
    torch.testing.assert_close(next(trainer.policy.parameters()).detach(), mean)
    fresh = WeightAverage()
    fresh.apply_to(trainer)  # nothing was seen: nothing changes
    torch.testing.assert_close(next(trainer.policy.parameters()).detach(), mean)
