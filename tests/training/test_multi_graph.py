"""Several problems in one update."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright import Cluster, Problem, zoo

torch = pytest.importorskip("torch")

from placewright.policies.placeto import policy as placeto  # noqa: E402
from placewright.training import Environment, Trainer, find_recipe  # noqa: E402


@pytest.fixture(scope="module")
def several() -> list[Problem]:
    cluster = Cluster.parse("2xP100")
    names = ("branches:modules=1", "branches:modules=2", "layered:ops=12")
    return [Problem(zoo.load(name), cluster) for name in names]


def sized(**changed) -> placeto.PlacetoConfig:
    return placeto.PlacetoConfig(**{"max_groups": 7, "hidden": 8, "rounds": 2, **changed})


def test_an_update_on_several_graphs_has_the_mean_of_their_gradients(several):
    from placewright.training.algorithms import Regularization, Reinforce
    from placewright.training.multi_graph import (
        MultiGraphEpisodes,
        MultiGraphPolicy,
    )

    policy = sized().build(several[0])
    drawn = policy.act_all(several, 2, [1, 2, 3])
    luck = [np.random.default_rng(at).normal(size=(2, 1)) for at in range(3)]

    def slopes(policy_, episodes, advantage):
        still = torch.optim.SGD(policy.parameters(), lr=0.0)
        pressure = Regularization(max_grad_norm=0.0)
        Reinforce().update(policy_, several[0], episodes, advantage, still, pressure)
        return [each.grad.clone() for each in policy.parameters()]

    joined = slopes(
        MultiGraphPolicy(policy, several), MultiGraphEpisodes.of(drawn), np.concatenate(luck)
    )
    apart = []
    for problem, episodes, advantage in zip(several, drawn, luck, strict=True):
        apart.append(
            slopes(
                MultiGraphPolicy(policy, [problem]), MultiGraphEpisodes.of([episodes]), advantage
            )
        )
    for mine, *others in zip(joined, *apart, strict=True):
        torch.testing.assert_close(mine, sum(others) / 3, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("name", ["placeto", "pair"])
def test_several_graphs_an_update_take_turns_and_have_a_row_each(several, name):
    made = replace(find_recipe(name, groups=6), episodes=3, problems=2)
    trainer = Trainer(
        [Environment(each) for each in several], made, seed=0, max_evaluations=80, device="cpu"
    )
    trainer.update()
    assert [each.evaluations > 0 for each in trainer.environments] == [True, True, False]
    trainer.update()
    assert [row.update for row in trainer.log] == [1, 1, 2, 2]
    assert trainer.environments[2].evaluations > 0
    assert trainer.log[2].best == trainer.environments[2].best_key[1]
    trainer.run()
    assert trainer.finished
    assert trainer.evaluations <= 80
