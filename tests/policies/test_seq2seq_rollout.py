"""Rollouts of ColocRL against the policy's own samples, scores and gradients by autograd."""

from __future__ import annotations

import numpy as np
import pytest

from placewright import Cluster, Constraints, Problem, zoo
from placewright.errors import ConfigError

torch = pytest.importorskip("torch")

from placewright.policies import Episodes  # noqa: E402
from placewright.policies.colocrl.policy import ColocRL, ColocRLConfig  # noqa: E402
from placewright.policies.colocrl.rollout import ColocRLRollouts  # noqa: E402
from placewright.policies.policy import one_plan_per_episode  # noqa: E402


@pytest.fixture
def problem() -> Problem:
    """Some ops may not be on the first device."""
    graph, cluster = zoo.load("layered:ops=60,weights=true"), Cluster.parse("2xP100+cpu")
    pins = {op.name: cluster.devices[1].name for op in graph.ops[20:24] if op.inputs}
    return Problem(graph, cluster, constraints=Constraints(pins=pins))


def make_policy(problem: Problem, **settings) -> ColocRL:
    """A policy whose choices are far from uniform."""
    policy = ColocRLConfig(max_groups=13, hidden=24, **settings).build(problem, seed=3)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter *= 3.0
    return policy


def gumbel_noise(problem: Problem, policy: ColocRL, count: int) -> torch.Tensor:
    """Groups × episodes × devices, as `act` draws it with seed 5."""
    groups = len(policy.grouping(problem))
    noise = np.random.default_rng(5).gumbel(size=(count, groups, problem.arrays.devices))
    return torch.as_tensor(noise, dtype=torch.float32).transpose(0, 1).contiguous()


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_a_rollout_is_what_the_policy_does_with_the_same_noise(problem, temperature):
    policy = make_policy(problem, temperature=temperature)
    rollout = ColocRLRollouts(policy, problem).sample(gumbel_noise(problem, policy, 40))
    episodes = policy.act(problem, 40, 5)
    np.testing.assert_array_equal(rollout.devices.T.numpy(), episodes.actions["device"])
    scores = policy.score(problem, episodes)
    torch.testing.assert_close(rollout.log_prob.T, scores.log_prob, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(rollout.entropy.T, scores.heads[0].entropy, rtol=1e-4, atol=1e-5)
    assert 0.05 < float(scores.heads[0].normalised_entropy.detach()) < 0.95


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_gradients_are_those_of_autograd(problem, temperature):
    policy = make_policy(problem, temperature=temperature)
    rollouts = ColocRLRollouts(policy, problem)
    rollout = rollouts.sample(gumbel_noise(problem, policy, 40))
    weight = torch.randn(40, generator=torch.Generator().manual_seed(1))
    terms = torch.stack([rollout.log_prob_gradient(weight), rollout.entropy_gradient()], dim=1)
    found = rollouts.gradients(rollout, terms)
    devices = rollout.devices.T.numpy().astype(np.int32)
    grouping = policy.grouping(problem)
    episodes = Episodes(
        {"device": devices},
        problem.legalize(grouping.expand(devices)),
        one_plan_per_episode(40),
        rollout.log_prob.T.numpy(),
    )
    scores = policy.score(problem, episodes)
    losses = (weight[:, None] * scores.log_prob).sum(), scores.heads[0].entropy.sum()
    for index, loss in enumerate(losses):
        loss.backward(retain_graph=True)
        for (name, parameter), gradient in zip(policy.named_parameters(), found, strict=True):
            size = float(parameter.grad.abs().max())
            assert size > 1e-4, name
            torch.testing.assert_close(
                gradient[index], parameter.grad, rtol=2e-4, atol=2e-4 * size, msg=name
            )
        policy.zero_grad()


@pytest.mark.parametrize("settings", [{"both_ways": True}, {"tanh": 10.0}])
def test_settings_that_rollouts_do_not_know_are_refused(problem, settings):
    with pytest.raises(ConfigError, match="leave out both_ways and tanh"):
        ColocRLRollouts(make_policy(problem, **settings), problem)
