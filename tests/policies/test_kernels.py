"""Kernels: who is near whom; what a policy for any devices sees of it; groups that merge."""

from __future__ import annotations

import numpy as np
import pytest

from placewright import Cluster, Device, Graph, Link, Op, Problem, Roofline, judge, zoo
from placewright.policies import grouping as made
from placewright.policies.transfer.diffusion import (
    NEIGHBOURHOODS,
    diffusion_kernels,
    path_positions,
)
from placewright.scheduling.batched_schedules import ScheduleOrder

torch = pytest.importorskip("torch")
from placewright.policies.shipped import shipped_policy  # noqa: E402
from placewright.policies.transfer import gnn  # noqa: E402


def fork() -> Problem:
    """`first` is read by `left` and `right`, and both by `last`; all take 1 s."""
    ops = (
        Op("first", flops=1, outputs=(3,)),
        Op("left", flops=1, outputs=(1,), inputs=((0, 0),)),
        Op("right", flops=1, outputs=(1,), inputs=((0, 0),)),
        Op("last", flops=1, outputs=(1,), inputs=((1, 0), (2, 0))),
    )
    devices = tuple(Device(f"gpu{d}", "gpu", memory=1000, rates={"float32": 1.0}) for d in range(2))
    wires = {("gpu0", "gpu1"): Link(1.0), ("gpu1", "gpu0"): Link(1.0)}
    return Problem(Graph("fork", ops), Cluster("two", devices, wires), Roofline(1, 1))


def course_of(problem: Problem) -> ScheduleOrder:
    grouping = made.group_ops(problem, "op", 100)
    return ScheduleOrder.of(problem, grouping, made.legal_devices(problem, grouping))


def test_neighbours_of_a_fork():
    found = dict(zip(NEIGHBOURHOODS, diffusion_kernels(course_of(fork())), strict=True))
    np.testing.assert_allclose(found["sources"][3], [0, 0.5, 0.5, 0], atol=1e-6)
    np.testing.assert_allclose(found["readers"][0], [0, 0.5, 0.5, 0], atol=1e-6)
    np.testing.assert_allclose(found["same source"][1], [0, 0, 1, 0], atol=1e-6)
    np.testing.assert_allclose(found["same reader"][2], [0, 1, 0, 0], atol=1e-6)
    assert (found["sources"][0] == 0).all()  # it reads from nobody
    for sense in found.values():
        sums = sense.sum(axis=1)
        assert (np.isclose(sums, 1, atol=1e-5) | (sums == 0)).all()
        assert (np.diag(sense) == 0).all()


def test_ways_through_a_fork():
    """1 s each and a byte a second: the longest way is 1 + 3 + 1 + 1 + 1 = 7 s."""
    begin, end = path_positions(course_of(fork()))
    np.testing.assert_allclose(begin, np.array([1, 5, 5, 7]) / 7)
    np.testing.assert_allclose(end, np.ones(4))  # all are on a longest way


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
