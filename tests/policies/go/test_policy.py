"""GO: tasks, passes, slots, ablations, and what it needs for large graphs."""

from __future__ import annotations

import resource
import time
from dataclasses import replace

import numpy as np
import pytest

from placewright import Cluster, Problem, judge, transforms, zoo
from placewright.errors import ConfigError

torch = pytest.importorskip("torch")

from placewright.policies.go.config import GoConfig  # noqa: E402
from placewright.policies.go.initial_plans import (  # noqa: E402
    equal_devices,
)
from placewright.policies.go.levels import (  # noqa: E402
    LEVELS,
    MODULES,
    UNITS,
)
from placewright.policies.go.policy import CLASSES, SEARCH_MODE  # noqa: E402

SMALL = GoConfig(hidden=16, heads=2, segment=8, layers=1)


def problem(text="layered:ops=40,seed=1,weights=yes", cluster="3xP100+cpu", **how) -> Problem:
    return Problem(zoo.load(text), Cluster.parse(cluster), **how)


def test_nothing_depends_on_how_equal_devices_are_named():
    """Rename two GPUs in the plan that is read, and the answer is renamed the same way."""
    given = problem()
    policy = SMALL.build(given, seed=1)
    seen = policy.observe(given)
    swap = np.array([1, 0, 2, 3])
    assert [0, 1, 2] in equal_devices(given.arrays)
    plan = np.random.default_rng(0).integers(0, 4, size=(1, len(seen)))
    with torch.no_grad():
        graph = policy.encode_graph(given)
        one = policy.logits(graph, plan, 0).numpy()
        other = policy.logits(graph, swap[plan], 0).numpy()
    np.testing.assert_allclose(one[:, :, swap], other, atol=1e-4)


@pytest.mark.parametrize(
    "tasks",
    [("priority",), ("device",), ("device", "priority"), ("priority", "fusion"), ("fusion",)],
)
def test_tasks_are_decided_alone_and_together(tasks, monkeypatch):
    asked = []

    def fuse(given, device, urgency):
        asked.append(urgency)
        return np.full(device.shape, -1, dtype=np.int32)

    monkeypatch.setattr(transforms, "fuse", fuse)
    given = problem()
    policy = replace(SMALL, tasks=tasks).build(given)
    episodes = policy.act(given, 3, seed=0)
    scores = policy.score(given, episodes)
    np.testing.assert_allclose(scores.log_prob.detach().numpy(), episodes.log_prob, atol=1e-5)
    seen = policy.observe(given)
    groups = [seen.at_level(level) for _, level in policy.config.slots]
    decisions = sum(len(seen if each is None else each.observation) for each in groups)
    assert episodes.log_prob.shape == (3, decisions)
    assert {task for task, _ in policy.config.slots} == set(tasks)
    assert (episodes.fusion is not None) == ("fusion" in tasks)
    if "fusion" in tasks:
        assert set(np.unique(asked[0])) <= set(range(CLASSES))
    if "device" not in tasks:
        assert (episodes.placements == seen.legalize(seen.initial_plan)).all()
    assert judge(given, episodes.placements, episodes.priority).value.min() > 0


def test_unknown_tasks_and_passes_are_refused():
    with pytest.raises(ConfigError, match="expected some of"):
        GoConfig(tasks=("fusion", "device"))
    with pytest.raises(ConfigError, match="is given passes"):
        GoConfig(passes=("layer",))


def test_few_decisions_are_drawn_all_in_one_slot_and_the_rest_stays():
    given = problem("branches:modules=3", "4xP100")
    fresh = replace(SMALL, drawn=4, stay_bias=0.0, tasks=("device", "priority")).build(given)
    begun = fresh.initial_decisions(given, 64)
    begun["device"] = np.random.default_rng(0).integers(0, 4, size=begun["device"].shape)
    episodes = fresh.act(given, 64, seed=0, initial=begun)
    slots = [f"{task}/{level}" for task, level in fresh.config.slots]
    free = np.stack([episodes.actions[f"{name}/free"].any(axis=1) for name in slots])
    assert (free.sum(axis=0) == 1).all()
    assert (free.argmax(axis=0) == episodes.actions["slot"]).all()
    assert free.any(axis=1).all()
    unit = episodes.actions["device/unit/free"]
    assert 1 <= unit.sum(axis=1)[free[2]].mean() < 16  # up to four groups, some of neighbours
    moved = episodes.actions["end/device"] != begun["device"]
    assert moved[free[2]].any()
    assert not (moved & ~unit)[free[2]].any()
    assert not moved[free[3]].any()
    at = [episodes.actions[name].shape[1] for name in slots]
    parts = np.split(episodes.log_prob, np.cumsum(at)[:-1], axis=1)
    for name, part in zip(slots, parts, strict=True):
        assert (part[~episodes.actions[f"{name}/free"]] == 0).all()
    scores = fresh.score(given, episodes)
    np.testing.assert_allclose(scores.log_prob.detach().numpy(), episodes.log_prob, atol=1e-5)
    only = fresh.act(given, 16, seed=0, slot_weights=np.array([0.0, 1.0, 0.0, 0.0])).actions["slot"]
    assert (only == 1).all()


def test_what_is_drawn_moves_half_of_the_time_however_sure_it_is_to_stay():
    given = problem("branches:modules=3", "4xP100")
    sure = replace(SMALL, drawn=8, stay_bias=12.0, correlated=False, passes=(UNITS,)).build(given)
    episodes = sure.act(given, 200, seed=0)
    free = episodes.actions["device/unit/free"]
    moved = (episodes.actions["device/unit"] != episodes.actions["start/device"])[free]
    assert 0.4 < moved.mean() < 0.6
    np.testing.assert_allclose(episodes.log_prob[free], np.log(0.5), atol=1.2)  # of three others
    scores = sure.score(given, episodes)
    np.testing.assert_allclose(scores.log_prob.detach().numpy(), episodes.log_prob, atol=1e-5)
    assert (
        sure.act(given, 1, 0, greedy=True).placements
        == sure.observe(given).legalize(sure.observe(given).initial_plan)
    ).all()


def test_a_module_that_stays_leaves_its_units_where_they_are():
    given = problem("branches:modules=3", "3xP100")
    policy = replace(SMALL, passes=(MODULES,), stay_bias=9.0, drawn=0).build(given)
    plan = np.random.default_rng(1).integers(0, 3, size=(1, len(policy.observe(given))))
    episodes = policy.act(given, 1, seed=0, greedy=True, initial={"device": plan})
    assert (episodes.actions["end/device"] == plan).all()
    restless = replace(SMALL, passes=(MODULES,), stay_bias=-9.0, margin=0.0).build(given)
    moved = restless.act(given, 1, seed=0, greedy=True, initial={"device": plan})
    group = restless.observe(given).at_level(MODULES).group
    for members in (np.flatnonzero(group == at) for at in range(group.max() + 1)):
        assert len(set(moved.actions["end/device"][0, members])) == 1


@pytest.mark.parametrize(
    "change", [{"attention": False}, {"modulation": False}, {"passes": (UNITS,)}]
)
def test_ablations_are_other_networks(change):
    given = problem()
    whole, less = SMALL.build(given), replace(SMALL, **change).build(given)
    count = [sum(each.numel() for each in policy.parameters()) for policy in (whole, less)]
    assert count[1] < count[0] or "passes" in change
    assert less.act(given, 2, seed=0).placements.shape == (2, given.arrays.ops)


def test_a_policy_that_is_told_times_needs_a_clock():
    given = problem()
    policy = replace(SMALL, timed=True).build(given)
    with pytest.raises(ConfigError, match="reads when ops run and has no clock"):
        policy.act(given, 1, seed=0)


def test_a_fresh_policy_that_stays_begins_at_the_plan_that_it_reads():
    given = problem()
    policy = replace(SMALL, stay_bias=9.0).build(given)
    seen = policy.observe(given)
    assert (
        policy.act(given, 1, 0, greedy=True).actions["end/device"][0] == seen.initial_plan
    ).all()


def test_a_searchs_plan_is_read_in_a_mode_of_its_own():
    given = problem()
    policy = SMALL.build(given)
    plan = policy.observe(given).initial_plan[None]
    with torch.no_grad():
        graph = policy.encode_graph(given)
        one, other = (
            policy.logits(graph, plan, mode) for mode in (LEVELS.index(UNITS), SEARCH_MODE)
        )
    assert (one - other).abs().max() > 1e-3


@pytest.mark.slow
def test_fifty_thousand_ops_take_seconds_and_little_memory():
    given = problem("layered:ops=50000,seed=3,weights=yes", "8xP100+cpu")
    assert given.arrays.ops > 50_000
    policy = GoConfig(tasks=("device", "priority")).build(given)
    torch.set_num_threads(2)
    began = time.process_time()
    policy.act(given, 1, seed=0, greedy=True)
    assert time.process_time() - began < 20  # of two cores: 10 s
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 6 * 2**20
