"""REINFORCE and PPO on a policy of one decision."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.errors import ConfigError
from placewright.policies import Episodes, HeadScores, Scores
from placewright.training import (
    PPO,
    Regularization,
    Reinforce,
)
from placewright.training.batched_reinforce import BatchedReinforce
from placewright.training.control_algorithms import NoUpdate, WithoutRewards

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

    tied_episodes = 1

    def take(self, episodes, first, last):
        chosen = slice(first, last)
        actions = {"coin": episodes.actions["coin"][chosen]}
        return Episodes(
            actions, episodes.placements[chosen], np.arange(last - first), episodes.log_prob[chosen]
        )


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


HEADS = Episodes({"coin": np.array([1])}, TOSSED.placements[:1], np.arange(1), TOSSED.log_prob[:1])
TAILS = Episodes({"coin": np.array([0])}, TOSSED.placements[:1], np.arange(1), TOSSED.log_prob[:1])


@pytest.mark.parametrize("batch", [1, 3, 4, 256])
def test_a_batch_in_parts_takes_the_step_of_the_whole(batch):
    """Rewards 0.25 · (1 + 2 + 3 - 1) · 0.5 and imitation 0.3 · 0.5, neither of them clipped."""
    pressure = Regularization(self_imitation=0.3, best_episode=HEADS, max_grad_norm=10.0)
    advantage = [1.0, -2.0, 3.0, 1.0]
    whole, _ = learn(Reinforce(), advantage, pressure)
    parts, said = learn(BatchedReinforce(batch), advantage, pressure)
    assert float(parts.logit.detach()) == pytest.approx(0.1 * (0.625 + 0.15))
    assert float(parts.logit.detach()) == pytest.approx(float(whole.logit.detach()))
    assert said["gradient"] == pytest.approx(0.625)
    assert said["gradient/other"] == pytest.approx(0.15)


def test_opposing_gradients_of_any_size_cancel_when_each_is_clipped():
    """Rewards pull to heads with 2, imitation to tails with 50: clipped to 1 each, they cancel."""
    pressure = Regularization(self_imitation=100.0, best_episode=TAILS, max_grad_norm=1.0)
    apart, said = learn(BatchedReinforce(), [4.0, -4.0, 4.0, -4.0], pressure)
    as_one, _ = learn(Reinforce(), [4.0, -4.0, 4.0, -4.0], pressure)
    assert float(apart.logit.detach()) == pytest.approx(0.0, abs=1e-6)
    assert said["gradient/cosine"] == pytest.approx(-1.0)
    assert float(as_one.logit.detach()) == pytest.approx(-0.1, rel=1e-3)


def test_a_batched_gradient_that_is_no_number_changes_nothing():
    policy, _ = learn(BatchedReinforce(), [np.nan, 0.0, 0.0, 0.0])
    assert float(policy.logit.detach()) == 0.0


def test_no_update_changes_no_weight_and_logs_the_entropy():
    policy, said = learn(NoUpdate(), [4.0, -4.0, 4.0, -4.0])
    assert float(policy.logit.detach()) == 0.0
    assert said == {"gradient": 0.0, "entropy/coin": pytest.approx(1.0)}


@pytest.mark.parametrize("algorithm", [Reinforce(), PPO(epochs=1), BatchedReinforce()])
def test_without_rewards_only_imitation_moves_the_policy(algorithm):
    pressure = Regularization(self_imitation=0.3, best_episode=TAILS)
    moved, _ = learn(WithoutRewards(algorithm), [4.0, -4.0, 4.0, -4.0], pressure)
    alone, _ = learn(algorithm, [0.0] * 4, pressure)
    still, _ = learn(WithoutRewards(algorithm), [4.0, -4.0, 4.0, -4.0])
    assert float(moved.logit.detach()) == float(alone.logit.detach()) < 0.0
    assert float(still.logit.detach()) == 0.0


def test_a_batched_update_refuses_to_be_clipped_as_one():
    with pytest.raises(ConfigError, match="clips its terms one by one"):
        BatchedReinforce().loss(Coin(), None, TOSSED, np.zeros((4, 1)), Regularization())
