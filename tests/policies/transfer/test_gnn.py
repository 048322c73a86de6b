"""The graph network for any devices: its features, its merges and its candidate plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright import Cluster, Graph, Op, Problem, Table, judge, zoo
from placewright.policies.shipped import (
    linear_weights,
    shipped_policy,
)
from placewright.policies.transfer.neighbourhood_kernels import NEIGHBOURHOODS

torch = pytest.importorskip("torch")
from placewright.policies.transfer import gnn  # noqa: E402


@pytest.fixture(scope="module")
def branches() -> Problem:
    return Problem(zoo.load("branches:modules=2"), Cluster.parse("3xP100+cpu"))


def test_one_who_is_blind_sees_nothing_of_the_graph(branches):
    for blind in (False, True):
        policy = gnn.GnnConfig(senses=True, blind=blind).build(branches)
        policy.act(branches, 2, seed=0)
        features = policy._rollout_cache[branches][1].features
        around = features[..., 12 : 12 + 3 + len(NEIGHBOURHOODS)]
        assert (around == 0).all() == blind
        assert (policy._features_of(branches).attributes == 0).all() == blind


def test_a_draft_is_the_pair_policys_plan_and_stands_until_a_group_is_decided(branches):
    policy = gnn.GnnConfig(draft=True, max_groups=2000).build(branches)
    seen = policy._features_of(branches)
    likes = shipped_policy("pair").act(branches, 1, 0, greedy=True)
    expected = branches.legalize(
        seen.order.grouping.expand(seen.initial_placement.occupancy.argmax(axis=0)[None])
    )
    assert (likes.placements == expected).all()
    policy.act(branches, 2, seed=0)
    walked = policy._rollout_cache[branches][1]
    stands = walked.features[..., -2]  # decisions × episodes × devices
    assert (stands.sum(axis=2)[: len(seen.order.decision_groups)] == 1).all()
    assert (
        stands[0].argmax(axis=1)
        == seen.initial_placement.occupancy[:, seen.order.decision_groups[0]].argmax()
    ).all()


def test_groups_that_merge_are_on_one_device_and_some_do(branches):
    policy = gnn.GnnConfig(grouping="coarse", max_groups=30, merge=True, shipped=False).build(
        branches
    )
    episodes = policy.act(branches, 6, seed=0)
    option, grouping = episodes.actions["device"], policy.grouping(branches)
    devices = branches.arrays.devices
    assert 0 < (option == devices).mean() < 1
    merged = policy.merged_groups(branches, episodes)
    assert merged.shape == (6, len(grouping))
    walked = policy._rollout_cache[branches][1]
    device = np.empty_like(walked.device)
    device[:, policy._features_of(branches).order.decision_groups] = walked.device
    for row, own in zip(merged, device, strict=True):
        for first in np.unique(row):
            assert len(set(own[row == first].tolist())) == 1
    joined = (merged != np.arange(len(grouping))).sum(axis=1)
    assert (joined == (option == devices).sum(axis=1)).all()  # each that merged is in another's
    judge(branches, episodes.placements, episodes.priority)


def test_who_never_merges_places_as_one_without_the_choice(branches):
    with_, without = (
        gnn.GnnConfig(grouping="coarse", max_groups=30, merge=merge).build(branches)
        for merge in (True, False)
    )
    with_.load_state_dict({**with_.state_dict(), **without.state_dict()})
    with torch.no_grad():
        with_.keep.bias.fill_(-1e4)
    mine, its = (each.act(branches, 1, 0, greedy=True) for each in (with_, without))
    assert (mine.placements == its.placements).all()
    np.testing.assert_allclose(mine.log_prob, its.log_prob, atol=1e-5)


def test_of_the_plans_it_looks_at_it_answers_with_the_one_it_reckons_to_end_first(branches):
    ends = []
    for looks in (1, 32):
        policy = gnn.GnnConfig(drawn=0.3, candidates=looks, shipped=False).build(branches, 2)
        one, same = (policy.act(branches, 1, seed, greedy=True) for seed in (0, 5))
        assert (one.placements == same.placements).all()
        option = one.actions["device"]
        walked = policy._roll_out(policy._features_of(branches), forced_options=option)
        a, ops = branches.arrays, np.flatnonzero(branches.arrays.scheduled)
        took = a.compute[ops, one.placements[0, ops]]
        assert walked.end[0] == pytest.approx((one.priority[0, ops] + took).max())
        ends.append(walked.end[0])
    assert ends[1] < ends[0]


def test_a_plan_that_it_reckons_to_fit_goes_before_one_that_ends_sooner(branches):
    """Three devices, each with memory for four fifths of the network."""
    everything = np.zeros(branches.arrays.ops, dtype=np.int32)
    whole = int(judge(branches, branches.legalize(everything[None])).peak.max())
    capacity = np.where(branches.arrays.is_host, branches.arrays.capacity, int(0.8 * whole))
    tight = branches.with_arrays(capacity=capacity)
    policy = gnn.GnnConfig(drawn=0.5, candidates=32, shipped=False).build(tight, 1)
    walked = policy._roll_out(
        policy._features_of(tight),
        forced_options=policy.act(tight, 1, 0, greedy=True).actions["device"],
    )
    drawn = policy.act(tight, 32, seed=3)
    others = policy._roll_out(policy._features_of(tight), forced_options=drawn.actions["device"])
    assert (others.overflow > 0).any()
    assert walked.overflow[0] <= 0


@pytest.fixture(scope="module")
def two_gpus() -> Problem:
    return Problem(zoo.load("branches:modules=2"), Cluster.parse("2xP100"))


def test_a_device_that_takes_no_time_leaves_numbers_that_can_be_told_apart():
    cluster = Cluster.parse("3xP100")
    names = tuple(device.name for device in cluster.devices)
    graph = Graph("one", (Op("only", outputs=(8,)),))
    problem = Problem(graph, cluster, Table(("only",), names, np.array([[3.0, 3.0, 0.0]])))
    policy = gnn.GnnConfig(rounds=1, shipped=False).build(problem)
    episodes = policy.act(problem, 50, seed=0)
    told = policy._cached_rollout(problem, episodes.actions["device"]).features
    assert np.abs(told).max() < 1e4
    found = policy.score(problem, episodes).log_prob.detach().numpy()
    np.testing.assert_allclose(found, episodes.log_prob, atol=1e-4)


def test_for_any_devices_it_begins_as_the_pair_policy_that_ships(two_gpus):
    """The graph network's say is small at first, so what it likes best is the same plan."""
    pair = shipped_policy("pair")
    policy = gnn.GnnConfig(max_groups=2000).build(two_gpus)
    with torch.no_grad():
        policy.out.weight.zero_()
    np.testing.assert_allclose(policy.linear.detach().numpy(), linear_weights(), rtol=1e-6)
    for cluster in ("2xP100", "3xK80+cpu", "8xP100"):
        problem = replace(two_gpus, cluster=Cluster.parse(cluster))
        mine, its = (each.act(problem, 1, 0, greedy=True) for each in (policy, pair))
        assert (mine.placements == its.placements).all()


def test_the_graph_network_hears_the_graph(two_gpus):
    """Two groups with the same attributes and other neighbours get other vectors."""
    policy = gnn.GnnConfig(rounds=2, shipped=False).build(two_gpus)
    seen = policy._features_of(two_gpus)
    with torch.no_grad():
        vectors = policy._group_vectors(seen).numpy()
    assert vectors.shape == (len(policy.grouping(two_gpus)), 16)
    assert len(np.unique(vectors.round(6), axis=0)) > len(vectors) / 2


def test_where_many_decisions_are_fixed_those_drawn_alone_are_scored(two_gpus):
    policy = gnn.GnnConfig(drawn=0.3, shipped=False).build(two_gpus)
    episodes = policy.act(two_gpus, 8, seed=0)
    free = episodes.actions["free"]
    assert 0.15 < free.mean() < 0.45
    assert (episodes.log_prob[~free] == 0).all()
    assert (episodes.log_prob[free] < 0).any()
    greedy = policy.act(two_gpus, 1, 0, greedy=True)
    assert greedy.actions["free"].all()
