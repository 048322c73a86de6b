"""REINFORCE and PPO on a policy of one decision."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.policies import Episodes, HeadScores, Scores
from placewright.training import (
    PPO,
    Regularization,
    Reinforce,
)

torch = pytest.importorskip("torch")


class Coin(torch.nn.Module):
    """A policy of one decision, 0 or 1, and a value."""

    name = "coin"

    def __init__(self, valued=False, leads=False):
        super().__init__()
        self.leads = leads
        self.logit = torch.nn.Parameter(torch.zeros(1))
        self.value = torch.nn.Parameter(torch.zeros(1)) if valued else None

    def score(self, problem, episodes, best=None):
        one = torch.nn.functional.logsigmoid(self.logit)
        none = torch.nn.functional.logsigmoid(-self.logit)
        drawn = torch.as_tensor(episodes.actions["coin"])
        entropy = -(one.exp() * one + none.exp() * none)
        head = HeadScores(
            "coin",
            torch.where(drawn > 0, one, none)[:, None],
            entropy.expand(len(drawn))[:, None],
            torch.full((1,), float(np.log(2))),
        )
        toward = None
        if best is not None and self.leads:
            same = torch.where(torch.as_tensor(best.actions["coin"]) > 0, one, none)
            toward = same.expand(len(drawn))[:, None]
        value = None if self.value is None else self.value.expand(len(drawn))
        return Scores((head,), value, toward)


TOSSED = Episodes(
    {"coin": np.array([1, 0, 1, 0])},
    np.zeros((4, 1), dtype=np.int32),
    np.arange(4),
    np.full((4, 1), np.log(0.5), dtype=np.float32),
)


def learn(algorithm, advantage, pressure=None, rate=0.1, policy=None):
    policy = policy or Coin()
    optimizer = torch.optim.SGD(policy.parameters(), lr=rate)
    said = algorithm.update(
        policy, None, TOSSED, np.array(advantage)[:, None], optimizer, pressure or Regularization()
    )
    return policy, said


def test_reinforce_takes_one_step_along_the_policy_gradient():
    """d log p / d logit is 0.5 for heads and -0.5 for tails: mean of (1, 1, 1, 1) · 0.5 = 0.5."""
    policy, said = learn(Reinforce(), [1.0, -1.0, 1.0, -1.0])
    assert float(policy.logit.detach()) == pytest.approx(0.1 * 0.5)
    assert said == {"gradient": pytest.approx(0.5), "entropy/coin": pytest.approx(1.0)}


def test_gradients_are_clipped():
    policy, said = learn(Reinforce(), [4.0, -4.0, 4.0, -4.0], Regularization(max_grad_norm=1.0))
    assert said["gradient"] == pytest.approx(2.0)
    assert float(policy.logit.detach()) == pytest.approx(0.1, rel=1e-4)


def test_a_gradient_that_is_no_number_changes_nothing():
    policy, _ = learn(Reinforce(), [np.nan, 0.0, 0.0, 0.0])
    assert float(policy.logit.detach()) == 0.0


def test_ppo_stops_at_its_clip_and_reinforce_would_not():
    """Its probability may move from 0.5 to 0.6 before gains count no more: logit ln(0.6 / 0.4)."""
    advantage = [1.0, -1.0, 1.0, -1.0]
    policy, _ = learn(PPO(epochs=200, clip_ratio=0.2, max_kl=100.0), advantage, rate=0.05)
    assert np.log(1.5) < float(policy.logit.detach()) < np.log(1.5) + 0.05
    stopped, _ = learn(PPO(epochs=200, clip_ratio=0.2, max_kl=0.002), advantage, rate=0.05)
    assert 0 < float(stopped.logit.detach()) < 0.2


@pytest.mark.parametrize("algorithm", [Reinforce(), PPO(epochs=1)])
def test_entropy_is_pushed_up_below_its_floor_alone(algorithm):
    sure = Coin()
    with torch.no_grad():
        sure.logit.fill_(4.0)
    for floor, moved in ((0.5, True), (0.01, False)):
        with torch.no_grad():
            sure.logit.fill_(4.0)
        learn(algorithm, [0.0] * 4, Regularization(entropy_floor=floor), policy=sure)
        assert (float(sure.logit.detach()) < 4.0) == moved
    with torch.no_grad():
        sure.logit.fill_(4.0)
    learn(algorithm, [0.0] * 4, Regularization(entropy_bonus=0.1), policy=sure)
    assert float(sure.logit.detach()) < 4.0


@pytest.mark.parametrize("algorithm", [Reinforce(), PPO(epochs=1)])
def test_a_value_learns_what_the_baseline_leaves_and_is_subtracted(algorithm):
    policy = Coin(valued=True)
    for _ in range(100):
        learn(algorithm, [3.0] * 4, Regularization(max_grad_norm=0.0), rate=0.5, policy=policy)
    assert float(policy.value.detach()) == pytest.approx(3.0, abs=0.01)
    before = float(policy.logit.detach())
    learn(algorithm, [3.0] * 4, Regularization(max_grad_norm=0.0), rate=0.5, policy=policy)
    assert float(policy.logit.detach()) == pytest.approx(before, abs=1e-3)


@pytest.mark.parametrize("algorithm", [Reinforce(), PPO(epochs=1)])
@pytest.mark.parametrize("leads", [False, True])
@pytest.mark.parametrize("side", [0, 1])
def test_the_best_episode_is_imitated_whether_or_not_a_policy_can_say_toward(
    algorithm, leads, side
):
    """d log p / d logit is plus or minus 0.5: 0.1 · 2 · 0.5, the same from one or four episodes."""
    best = Episodes(
        {"coin": np.array([side])},
        np.zeros((1, 1), dtype=np.int32),
        np.arange(1),
        np.full((1, 1), np.log(0.5), dtype=np.float32),
    )
    policy, _ = learn(
        algorithm,
        [0.0] * 4,
        Regularization(max_grad_norm=0.0, self_imitation=2.0, best_episode=best),
        policy=Coin(leads=leads),
    )
    assert float(policy.logit.detach()) == pytest.approx(0.1 if side else -0.1)
    policy, _ = learn(
        algorithm, [0.0] * 4, Regularization(best_episode=best), policy=Coin(leads=leads)
    )
    assert float(policy.logit.detach()) == 0.0
