"""Hierarchical's grouper: its gradient by enumeration, why it may be zero, and that it learns."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from placewright import Cluster, Device, Graph, Link, Op, Problem, Roofline, judge

torch = pytest.importorskip("torch")
from placewright.policies import Episodes  # noqa: E402
from placewright.policies.hierarchical.policy import HierarchicalConfig  # noqa: E402
from placewright.training import Environment, Trainer, find_recipe  # noqa: E402
from placewright.training.baselines import BatchNormalised  # noqa: E402

TINY = HierarchicalConfig(groups=2, placements=1, hidden=8, grouper=8)
GROUPER = ("kind", "inner", "outer")


def chains(count: int, length: int) -> Problem:
    """Chains of equal ops between a first and a last op, on two devices.

    Ops are listed level by level, so that a segment of the graph has ops of every chain.
    """
    ops, tails = [Op("first", flops=1, outputs=(1,))], [0] * count
    for at, chain in itertools.product(range(length), range(count)):
        kind = "linear" if at % 2 else "matmul"
        source = ((tails[chain], 0),)
        ops.append(Op(f"{chain}.{at}", kind, flops=5, outputs=(1 + chain,), inputs=source))
        tails[chain] = len(ops) - 1
    ops.append(Op("last", flops=1, outputs=(1,), inputs=tuple((tail, 0) for tail in tails)))
    devices = tuple(
        Device(f"gpu{at}", "gpu", memory=1000, rates={"float32": 1.0}, memory_bandwidth=1e30)
        for at in range(2)
    )
    links = {("gpu0", "gpu1"): Link(0.5), ("gpu1", "gpu0"): Link(0.5)}
    return Problem(Graph("chains", tuple(ops)), Cluster("two", devices, links), Roofline(1, 1))


def all_episodes(problem: Problem, units: int) -> Episodes:
    """Every grouping of the units in two groups, with every placement of those on two devices."""
    group = np.array([*itertools.product(range(2), repeat=units)])
    device = np.array([*itertools.product(range(2), repeat=2)])
    of = np.repeat(np.arange(len(group)), len(device))
    devices = np.tile(device, (len(group), 1))
    placements = np.take_along_axis(devices, group[of], axis=1).astype(np.int32)
    actions = {"of": of, "group": group, "device": devices}
    return Episodes(actions, placements, np.arange(len(of)), np.zeros((len(of), 0), np.float32))


def grouper_gradient(policy, loss):
    weights = [weight for name, weight in policy.named_parameters() if name.startswith(GROUPER)]
    found = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
    return torch.cat(
        [
            torch.zeros_like(weight).flatten() if slope is None else slope.flatten()
            for weight, slope in zip(weights, found, strict=True)
        ]
    )


def reinforce_gradient(policy, problem, episodes):
    """As `Reinforce` has it, with advantages normalised in the batch."""
    reward = -judge(problem, episodes.placements).value[:, None]
    advantage = BatchNormalised().advantage(reward, np.ones(len(reward), dtype=bool), "")
    log_prob = policy.score(problem, episodes).log_prob
    loss = (torch.as_tensor(advantage, dtype=torch.float32) * log_prob).sum(dim=1).mean()
    return grouper_gradient(policy, loss)


def test_the_groupers_gradient_is_that_of_the_expected_step_time_by_enumeration():
    """Five units in two groups on two devices: 2^5 groupings x 2^2 placements are all there is."""
    problem = chains(3, 1)
    policy = TINY.build(problem, seed=1)
    episodes = all_episodes(problem, 5)
    log_prob = policy.score(problem, episodes).log_prob.sum(dim=1)
    assert math.isclose(float(log_prob.exp().sum().detach()), 1.0, abs_tol=1e-5)
    reward = torch.as_tensor(-judge(problem, episodes.placements).value, dtype=torch.float32)
    exact = grouper_gradient(policy, (log_prob.exp() * reward).sum())
    assert float(exact.norm()) > 1e-3
    sampled = reinforce_gradient(policy, problem, policy.act(problem, 20_000, seed=0))
    assert float(torch.cosine_similarity(sampled, exact, dim=0)) > 0.95


def test_a_batch_of_one_grouping_gives_the_grouper_no_gradient():
    """Its advantages add up to 0, and all of them multiply the one grouping's log-probability."""
    problem = chains(3, 1)
    norms = []
    for placements in (4, 1):  # episodes that share a grouping
        policy = replace(TINY, placements=placements).build(problem, seed=1)
        episodes = policy.act(problem, 4, seed=3)
        norms.append(float(reinforce_gradient(policy, problem, episodes).norm()))
    assert norms[0] < 1e-6
    assert norms[1] > 1e-3


def test_a_grouper_that_does_not_learn_has_no_gradient_and_the_placer_has():
    problem = chains(3, 1)
    policy = replace(TINY, learn_groups=False).build(problem, seed=1)
    scores = policy.score(problem, policy.act(problem, 4, seed=3))
    scores.log_prob.sum().backward()
    for name, weight in policy.named_parameters():
        assert (weight.grad is None) == name.startswith(GROUPER)


def test_random_initial_groups_are_the_same_for_every_seed_and_use_several_groups():
    problem = chains(3, 4)
    config = HierarchicalConfig(groups=4, hidden=8, locality=1000.0, home="random")
    one, other = (
        config.build(problem, seed).act(problem, 1, seed).actions["group"][0] for seed in (0, 1)
    )
    assert one.tolist() == other.tolist()
    assert len(set(one.tolist())) == 4


def trained(seed: int, **changes) -> tuple[float, int]:
    """The greedy plan's step time at the end, and how many units have left their first group."""
    problem = chains(4, 4)
    recipe = find_recipe("hierarchical-joint", groups=4)
    config = replace(recipe.policy_config, **changes)
    trainer = Trainer(
        [Environment(problem)], replace(recipe, policy_config=config), seed, 1600, device="cpu"
    )
    first = trainer.policy.act(problem, 1, 0, greedy=True)
    trainer.run()
    last = trainer.policy.act(problem, 1, 0, greedy=True)
    return trainer.log[-1].greedy, int((first.actions["group"] != last.actions["group"]).sum())


def best_of_fixed_groups() -> float:
    """The best of all placements of four random groups on two devices."""
    problem = chains(4, 4)
    config = HierarchicalConfig(groups=4, hidden=8, locality=1000.0, home="random")
    group = config.build(problem).act(problem, 1, 0).actions["group"][0]
    device = np.array([*itertools.product(range(2), repeat=4)], dtype=np.int32)
    return float(judge(problem, device[:, group]).value.min())


def test_a_learned_grouping_beats_sampled_ones_and_the_best_plan_of_a_fixed_random_one():
    """Four chains in four groups: the best plan has two chains on each device (46 of 82 s)."""
    seeds = range(3)
    joint = [trained(seed) for seed in seeds]
    sampled = [trained(seed, learn_groups=False) for seed in seeds]
    assert [moved for _, moved in sampled] == [0] * 3
    assert all(moved >= 6 for _, moved in joint)  # of 18 units
    learned, control = (
        math.exp(np.log([value for value, _ in arm]).mean()) for arm in (joint, sampled)
    )
    assert learned < 0.9 * control
    assert learned < 0.95 * best_of_fixed_groups()
