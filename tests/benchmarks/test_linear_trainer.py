"""The linear trainer: its gradient is the slope, and it learns."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.train.linear_trainer import LinearTrainer, gradients
from placewright import Cluster, Problem, judge, solve, solvers, zoo
from placewright.policies.transfer.features import FEATURES
from placewright.policies.transfer.linear import LinearConfig, LinearPolicy


def fresh(seed=0, **config) -> LinearPolicy:
    return LinearPolicy(
        LinearConfig(**config), np.random.default_rng(seed).normal(size=len(FEATURES))
    )


@pytest.fixture(scope="module")
def branches() -> Problem:
    return Problem(zoo.load("branches:modules=1"), Cluster.parse("2xP100+cpu"))


def test_the_gradient_is_the_slope_of_log_probability_and_entropy(branches):
    policy = fresh(grouping="coarse", max_groups=12)
    luck = policy.gumbel(branches, 3, np.random.default_rng(1))
    walk = policy.roll_out(branches, gumbel=luck, keep_features=True)
    of_log, of_entropy = gradients(policy, branches, walk)
    step = 1e-5

    def seen(weights):
        other = LinearPolicy(policy.config, weights)
        logits = np.where(other.legal(branches)[:, None], walk.features @ weights, -1e9)
        sure = logits - np.log(np.exp(logits - logits.max()).sum(-1, keepdims=True)) - logits.max()
        chosen = np.take_along_axis(sure, walk.device.T[:, :, None].astype(int), 2)
        return chosen.sum(axis=(0, 2)), -(np.exp(sure) * np.maximum(sure, -1e3)).sum(axis=(0, 2))

    for at in range(len(FEATURES)):
        moved = step * (np.arange(len(FEATURES)) == at)
        up, down = seen(policy.weights + moved), seen(policy.weights - moved)
        np.testing.assert_allclose(of_log[:, at], (up[0] - down[0]) / (2 * step), atol=1e-3)
        np.testing.assert_allclose(of_entropy[:, at], (up[1] - down[1]) / (2 * step), atol=1e-3)


def test_torch_finds_the_same_gradient(branches):
    pytest.importorskip("torch")
    policy = fresh(grouping="coarse", max_groups=12)
    episodes = policy.act(branches, 4, seed=2)
    walk = policy.roll_out(branches, forced_options=episodes.actions["device"], keep_features=True)
    (weights,) = policy.parameters()
    policy.score(branches, episodes).log_prob.sum().backward()
    expected = gradients(policy, branches, walk)[0].sum(axis=0)
    np.testing.assert_allclose(weights.grad.numpy(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_a_few_hundred_plans_reach_earliest_task_first_on_a_graph_and_cluster_never_seen():
    def problem(graph, cluster):
        return Problem(zoo.load(f"cifar10:graph={graph}"), Cluster.parse(cluster))

    train = [problem(0, "2xK80"), problem(1, "3xP100+cpu")]
    policy = LinearTrainer(episodes=8).run(train, max_evaluations=320, seed=0)
    ratios = []
    for graph, cluster in ((2, "2xK80"), (3, "4xK80+cpu")):
        unseen = problem(graph, cluster)
        etf = solve(unseen, solvers.METF()).objective_value
        episodes = policy.act(unseen, 1, 0, greedy=True)
        ratios.append(judge(unseen, episodes.placements, episodes.priority).value[0] / etf)
    assert np.mean(ratios) < 1.0


def test_the_same_seed_trains_the_same_policy(branches):
    one, same, other = (LinearTrainer().run([branches], 64, seed).weights for seed in (0, 0, 1))
    assert (one == same).all()
    assert (one != other).any()
