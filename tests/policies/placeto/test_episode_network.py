"""The network over whole episodes gives what the network over single steps does."""

from __future__ import annotations

import numpy as np
import pytest

from placewright import Cluster, Problem, zoo

torch = pytest.importorskip("torch")
from placewright.policies.placeto import episode_network  # noqa: E402
from placewright.policies.placeto.policy import Placeto, PlacetoConfig  # noqa: E402

CONFIGS = {
    "default": PlacetoConfig(max_groups=9, hidden=8, rounds=2, means=True),
    "forward": PlacetoConfig(max_groups=9, rounds=3, edges="forward", start="random"),
    "scheduled": PlacetoConfig(max_groups=9, hidden=8, rounds=1, edges="scheduled", steps=True),
    "no rounds": PlacetoConfig(max_groups=9, rounds=0),
    "one group": PlacetoConfig(max_groups=1, rounds=2),
}
NETWORKS = "branches:modules=2", "nmt:graph=0"


def make_policies(config: PlacetoConfig, problem: Problem) -> tuple[Placeto, Placeto]:
    """Equal policies, whose choices are far from uniform; the second one computes step by step."""
    policies = config.build(problem, seed=3), config.build(problem, seed=3)
    with torch.no_grad():
        for parameter in (p for policy in policies for p in policy.parameters()):
            parameter *= 1.5
    policies[1]._episode_network = lambda _: None
    return policies


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_samples_scores_and_gradients_are_those_of_single_steps(network, config, noise):
    problem = Problem(zoo.load(network), Cluster.parse("2xP100+cpu"))
    policy, plain = make_policies(config, problem)
    episodes, expected = (each.act(problem, 40, seed=5, noise=noise) for each in (policy, plain))
    for name, values in expected.actions.items():
        np.testing.assert_allclose(
            episodes.actions[name], values, rtol=1e-4, atol=1e-5, err_msg=name
        )
    np.testing.assert_allclose(episodes.log_prob, expected.log_prob, rtol=1e-4, atol=1e-5)
    assert len(np.unique(episodes.actions["device"], axis=0)) > 1
    found, right = (each.score(problem, expected) for each in (policy, plain))
    torch.testing.assert_close(found.log_prob, right.log_prob, rtol=1e-4, atol=1e-5)
    credit = torch.randn(found.log_prob.shape, generator=torch.Generator().manual_seed(1))
    for each in (found, right):
        ((credit * each.log_prob).sum() + each.heads[0].entropy.sum()).backward()
    for (name, mine), other in zip(policy.named_parameters(), plain.parameters(), strict=True):
        size = float(other.grad.abs().max())
        torch.testing.assert_close(
            mine.grad, other.grad, rtol=1e-3, atol=1e-5 + 1e-4 * size, msg=name
        )


def test_chunks_change_neither_scores_nor_gradients(monkeypatch):
    problem = Problem(zoo.load("nmt:graph=0"), Cluster.parse("2xP100+cpu"))
    policy = CONFIGS["default"].build(problem, seed=3)
    episodes = policy.act(problem, 7, seed=5)
    whole = policy.score(problem, episodes).log_prob
    gradients = torch.autograd.grad(whole.square().sum(), list(policy.parameters()))
    monkeypatch.setattr(episode_network, "_CHUNK_NUMBERS", 1)
    parts = policy.score(problem, episodes).log_prob
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)
    found = torch.autograd.grad(parts.square().sum(), list(policy.parameters()))
    torch.testing.assert_close(found, gradients, rtol=1e-3, atol=1e-3)


def test_steps_compute_a_part_of_the_vectors():
    """Far fewer rows than groups × steps in a long graph."""
    problem = Problem(zoo.load("inception-v3"), Cluster.parse("2xP100+cpu"))
    policy = PlacetoConfig(hidden=4, rounds=2, means=True).build(problem)
    episodes = policy.act(problem, 1, seed=0)
    layout = policy._episode_network(policy._observe(problem)).layout
    states = episodes.actions["device"].size ** 2
    assert all(len(level.own) < states / 3 for levels in layout.levels for level in levels)
