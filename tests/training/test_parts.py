"""Rewards, baselines, schedules and algorithms, each on numbers that can be done in the head."""

from __future__ import annotations

import json

import numpy as np
import pytest

from placewright.policies import Episodes, HeadScores, Scores
from placewright.training import (
    PPO,
    BatchNormalised,
    Constant,
    FixedPenalty,
    GradedPenalty,
    Linear,
    MovingAverage,
    Outcome,
    PerGraph,
    PerStep,
    Regularization,
    Reinforce,
    Staircase,
    Step,
)
from placewright.training.rewards import step_returns

torch = pytest.importorskip("torch")

JUDGED = Outcome(np.array([4.0, 1.0, np.inf]), np.array([0, 50, 0]), np.array([0.0, 0.5, 0.0]))
"""A plan that fits, one over by half a device's memory, one that could not be run."""
ALL = np.ones(2, dtype=bool)


def test_the_papers_reward_is_minus_a_root_or_a_constant():
    assert JUDGED.feasible.tolist() == [True, False, False]
    assert FixedPenalty(10.0)(JUDGED, 1.0).tolist() == [-2.0, -10.0, -10.0]
    assert FixedPenalty(10.0)(JUDGED, 4.0)[0] == -1.0  # relative to the reference


def test_the_graded_reward_makes_a_plan_longer_the_more_it_is_over():
    """1 s · (1 + 10 · 0.5) = 6 s, and with a step of 3 it is 9 s."""
    assert GradedPenalty(overflow_weight=10.0)(JUDGED, 1.0) == pytest.approx(
        [-2.0, -np.sqrt(6), -10.0]
    )
    assert GradedPenalty(overflow_weight=10.0, overflow_step=3.0)(JUDGED, 1.0) == pytest.approx(
        [-2.0, -3.0, -10.0]
    )


def test_returns_of_episodes_with_several_plans_are_later_improvements():
    one = step_returns(np.array([-3.0, -1.0]), np.array([0, 1]), 2)
    assert one.tolist() == [[-3.0], [-1.0]]
    several = step_returns(np.array([-3.0, -2.0, -1.0]), np.array([0, 0, 0]), 1)
    assert several.tolist() == [[2.0, 1.0]]  # two steps from the first of three plans
    with pytest.raises(ValueError, match="out of order"):
        step_returns(np.array([-3.0, -1.0]), np.array([1, 0]), 2)


def test_a_moving_average_compares_with_what_was_before():
    baseline = MovingAverage(decay=0.9, initial=-10.0)
    rows = np.array([[-1.0], [-3.0]])
    assert baseline.advantage(rows, ALL, "g").tolist() == [[9.0], [7.0]]
    assert baseline.average == pytest.approx(-9.2)  # 0.9 · -10 + 0.1 · -2
    only = np.array([True, False])  # what is not counted moves neither policy nor average
    assert baseline.advantage(rows, only, "g")[1] == 0
    assert baseline.average == pytest.approx(0.9 * -9.2 - 0.1)
    none = np.zeros(2, dtype=bool)
    assert not baseline.advantage(rows, none, "g").any()
    assert baseline.average == pytest.approx(0.9 * -9.2 - 0.1)


def test_a_baseline_per_graph_keeps_graphs_apart():
    baseline = PerGraph(lambda: MovingAverage(0.5))
    baseline.advantage(np.array([[-1.0]]), ALL[:1], "a")
    assert baseline.advantage(np.array([[-8.0]]), ALL[:1], "b").tolist() == [[0.0]]
    assert baseline.advantage(np.array([[-3.0]]), ALL[:1], "a").tolist() == [[-2.0]]


def test_a_baseline_per_step_is_the_mean_of_the_last_episodes_at_that_step():
    baseline = PerStep(window=2)
    found = baseline.advantage(np.array([[4.0, 0.0], [2.0, 2.0]]), ALL, "g")
    assert found.tolist() == [[1.0, -1.0], [-1.0, 1.0]]
    found = baseline.advantage(np.array([[6.0, 0.0]]), ALL[:1], "g")
    assert found.tolist() == [[2.0, -1.0]]  # (2 + 6) / 2 and (2 + 0) / 2


def test_a_normalised_batch_has_mean_0_and_deviation_1():
    found = BatchNormalised().advantage(np.array([[-1.0], [-2.0], [-6.0]]), np.ones(3, bool), "g")
    assert found.mean() == pytest.approx(0)
    assert found.std() == pytest.approx(1)
    assert not BatchNormalised().advantage(np.full((2, 1), -3.0), ALL, "g").any()


@pytest.mark.parametrize(
    "make", [MovingAverage, PerGraph, PerStep, BatchNormalised], ids=lambda make: make.__name__
)
def test_a_baseline_goes_on_from_its_state(make):
    one, other = make(), make()
    rows = np.array([[-1.0], [-2.0]])
    one.advantage(rows, ALL, "g")
    other.restore(json.loads(json.dumps(one.state())))
    later = np.array([[-4.0], [-5.0]])
    assert (one.advantage(later, ALL, "g") == other.advantage(later, ALL, "g")).all()


def test_schedules_go_by_the_share_of_the_budget():
    assert Constant(2.0)(0.7) == 2.0
    assert [Step(0.5, 1.0)(share) for share in (0.0, 0.49, 0.5, 1.0)] == [1.0, 1.0, 0.0, 0.0]
    assert [Linear(1.0, 0.0)(share) for share in (0.0, 0.25, 1.0)] == [1.0, 0.75, 0.0]
    assert Linear(1.0, 3.0, 0.5, 0.75)(0.625) == 2.0
    stairs = Staircase(8.0, 0.5, 0.5, 2)
    assert [stairs(share) for share in (0.0, 0.5, 0.74, 0.75, 1.0)] == [8.0, 8.0, 8.0, 4.0, 2.0]


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
