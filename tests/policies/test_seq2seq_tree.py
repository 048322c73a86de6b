"""The decoder over a tree of prefixes gives what a decoder of each episode does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from placewright import Cluster, Problem, zoo

torch = pytest.importorskip("torch")

from placewright.policies.additive_attention import AttentionKeys  # noqa: E402
from placewright.policies.colocrl.policy import ColocRLConfig  # noqa: E402
from placewright.policies.hierarchical.policy import HierarchicalConfig  # noqa: E402
from placewright.policies.seq2seq_tree import TreeDecoder  # noqa: E402

if TYPE_CHECKING:
    from placewright.policies import Episodes, Policy

CONFIGS = {
    "colocrl": ColocRLConfig(max_groups=13, hidden=24, shared=True),
    "temperature": ColocRLConfig(max_groups=13, hidden=24, temperature=2.0, both_ways=True),
    "one grouping": HierarchicalConfig(groups=8, hidden=24, locality=500.0, patches=True),
    "many groupings": HierarchicalConfig(groups=8, hidden=24, placements=3, shared=True),
    "tanh": HierarchicalConfig(groups=8, hidden=24, placements=1, tanh=2.0),
}


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(zoo.load("layered:ops=60,weights=true"), Cluster.parse("2xP100+cpu"))


@pytest.fixture
def by_episode(monkeypatch):
    """A function that makes keys as PyTorch reads them, so that no tree is made."""

    def call(function, *arguments, **options):
        keys = AttentionKeys.of
        with monkeypatch.context() as context:
            context.setattr(AttentionKeys, "of", lambda *given: replace(keys(*given), packed=None))
            return function(*arguments, **options)

    return call


def make_policy(config, problem: Problem, size: float = 3.0) -> Policy:
    """A policy whose choices are far from uniform."""
    policy = config.build(problem, seed=3)
    with torch.no_grad():
        for parameter in policy.placer.parameters():
            parameter *= size
    return policy


def gradients_of(policy: Policy, problem: Problem, episodes: Episodes) -> dict[str, torch.Tensor]:
    best = policy.select(episodes, 1)
    scores = policy.score(problem, episodes, best)
    credit = torch.randn(scores.log_prob.shape, generator=torch.Generator().manual_seed(1))
    loss = (credit * scores.log_prob).sum() + scores.log_prob_of_best.sum()
    loss = loss + sum(head.entropy.sum() for head in scores.heads)
    found = torch.autograd.grad(loss, list(policy.parameters()))
    names = [name for name, _ in policy.named_parameters()]
    return dict(zip(names, found, strict=True)) | {"log_prob": scores.log_prob.detach()}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("noise", [0.0, 1.5])
def test_samples_scores_and_gradients_are_those_of_single_episodes(
    problem, by_episode, config, noise
):
    policy = make_policy(config, problem)
    expected = by_episode(policy.act, problem, 90, seed=5, noise=noise)
    episodes = policy.act(problem, 90, seed=5, noise=noise)
    for name, values in expected.actions.items():
        np.testing.assert_allclose(
            episodes.actions[name], values, rtol=1e-4, atol=1e-4, err_msg=name
        )
    np.testing.assert_allclose(episodes.log_prob, expected.log_prob, rtol=1e-3, atol=1e-4)
    assert len(np.unique(episodes.actions["device"], axis=0)) > 5
    right = by_episode(gradients_of, policy, problem, episodes)
    for name, found in gradients_of(policy, problem, episodes).items():
        size = float(right[name].abs().max())
        torch.testing.assert_close(found, right[name], rtol=1e-3, atol=1e-3 * size, msg=name)


@pytest.mark.parametrize("config", [CONFIGS["colocrl"], CONFIGS["many groupings"]])
def test_scores_use_the_tree_that_was_sampled_while_nothing_changes(monkeypatch, problem, config):
    policy = make_policy(config, problem)
    steps, decode = [], TreeDecoder.decode
    monkeypatch.setattr(
        TreeDecoder, "decode", lambda self, device: (steps.append(1), decode(self, device))
    )
    episodes = policy.act(problem, 70, seed=5)
    first = policy.score(problem, episodes).log_prob
    assert not steps
    again = policy.score(problem, episodes).log_prob
    assert steps == [1]
    assert torch.equal(first, again)  # to the last bit, whoever computes
    np.testing.assert_allclose(first.detach().numpy(), episodes.log_prob, rtol=1e-4, atol=1e-5)
    episodes = policy.act(problem, 70, seed=6)
    with torch.no_grad():
        policy.placer.out.weight *= 0.5
    changed = policy.score(problem, episodes).log_prob
    assert len(steps) == 2
    assert (changed.detach().numpy() - episodes.log_prob).max() > 0.01


def test_few_episodes_are_decoded_one_by_one(problem):
    policy = make_policy(CONFIGS["colocrl"], problem)
    policy.act(problem, 4, seed=5)
    assert policy.placer._sampled is None


def test_a_policy_that_is_sure_of_its_plan_has_few_nodes(problem):
    policy = make_policy(CONFIGS["colocrl"], problem, size=12.0)
    policy.act(problem, 200, seed=0)
    decoder, choice = policy.placer._sampled
    assert choice.shape == (200, 13)
    assert sum(map(len, decoder.logits)) < choice.numel() / 3
