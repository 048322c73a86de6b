"""GO: it is told what plans mean, it is linear, and names of equal devices are nothing to it."""

from __future__ import annotations

import resource
import time
from dataclasses import replace

import numpy as np
import pytest

from placewright import Cluster, Plan, Problem, judge, simulate, transforms, zoo
from placewright.errors import ConfigError

torch = pytest.importorskip("torch")
from placewright.policies.go.config import GoConfig  # noqa: E402
from placewright.policies.go.initial_plans import (  # noqa: E402
    align_devices,
    canonical_devices,
    equal_devices,
    heuristic_plans,
    list_schedule,
    path_lengths,
)
from placewright.policies.go.levels import (  # noqa: E402
    LEVELS,
    MODULES,
    PARTS,
    UNITS,
)
from placewright.policies.go.observation import GoObservation  # noqa: E402
from placewright.policies.go.plan_features import pair_features  # noqa: E402
from placewright.policies.go.policy import CLASSES, SEARCH_MODE  # noqa: E402

SMALL = GoConfig(hidden=16, heads=2, segment=8, layers=1)
HERE, INTO, LOAD, LATE = 0, 1, 7, 15


def problem(text="layered:ops=40,seed=1,weights=yes", cluster="3xP100+cpu", **how) -> Problem:
    return Problem(zoo.load(text), Cluster.parse(cluster), **how)


def told(given: Problem, plan: np.ndarray) -> np.ndarray:
    seen = GoObservation.of(given, 10**6)
    return pair_features(seen.tensors(torch.device("cpu")), torch.as_tensor(plan)).numpy()


def test_units_are_ops_with_what_goes_with_them_in_the_graphs_order():
    given = problem()
    seen, a = GoObservation.of(given, 10**6), given.arrays
    assert len(seen) == len(np.unique(a.leader)) < a.ops
    assert (np.diff(seen.leader) > 0).all()
    assert (seen.leader[seen.unit] == a.leader).all()
    np.testing.assert_allclose(seen.seconds.sum(axis=0), a.compute[a.scheduled].sum(axis=0))
    few = GoObservation.of(given, 20)
    assert len(few) <= 20
    np.testing.assert_allclose(few.seconds.sum(axis=0), a.compute[a.scheduled].sum(axis=0))
    placed = few.legalize(few.initial_plan)
    assert judge(given, placed).value[0] > 0  # raises unless it is lawful


def test_what_is_told_of_transfers_and_loads_is_what_a_plan_means():
    """By hand: seconds of all tensors from elsewhere, and all work on a device after a move."""
    given = problem(cluster="3xP100+cpu")
    seen, a = GoObservation.of(given, 10**6), given.arrays
    rng = np.random.default_rng(0)
    plan = rng.integers(0, a.devices, size=(2, len(seen)))
    found = told(given, plan)
    mean = np.where(seen.legal, seen.seconds, np.inf).min(axis=1).mean()
    for row in range(2):
        assert (found[row, :, :, HERE] == np.eye(a.devices)[plan[row]]).all()
        unit = int(np.argmax(np.bincount(seen.unit[a.producer[a.inputs]])))  # most read
        reads = {
            (int(t), int(seen.unit[a.producer[t]]))
            for op in np.flatnonzero(seen.unit == unit)
            for t in a.inputs[a.first_input[op] : a.first_input[op + 1]]
            if seen.unit[a.producer[t]] != unit
        }
        seconds = np.zeros(a.devices)
        for device in range(a.devices):
            for tensor, source in reads:
                link = a.link_class[plan[row, source], device]
                seconds[device] += a.transfer[link, tensor] / mean if link >= 0 else 0.0
        expected = np.log1p(np.minimum(seconds - seconds.min(), 20))
        np.testing.assert_allclose(found[row, unit, :, INTO], expected, rtol=1e-4, atol=1e-5)
        load = np.array([seen.seconds[plan[row] == d, d].sum() for d in range(a.devices)])
        own = seen.seconds[unit] * (np.arange(a.devices) != plan[row, unit])
        share = 1 / (1 / seen.seconds.sum(axis=0)).sum()
        expected = np.clip((load + own) / share - 1, -1, 4)
        np.testing.assert_allclose(found[row, unit, :, LOAD], expected, rtol=1e-3, atol=1e-3)


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


def test_devices_that_differ_are_not_alike():
    mixed = problem(cluster="2xK80+2xP100+cpu").arrays
    assert sorted(map(sorted, equal_devices(mixed))) == [[0, 1], [2, 3], [4]]
    apart = problem(cluster="2x(2xP100+cpu)@25GbE").arrays
    assert all(len(each) <= 2 for each in equal_devices(apart))


def test_renamed_plans_take_as_long_and_agree_as_much_as_they_can():
    given = problem(cluster="4xP100", discipline="ready")
    seen = GoObservation.of(given, 10**6)
    plan = np.random.default_rng(3).integers(0, 4, size=len(seen))
    order = np.arange(len(seen))
    first = canonical_devices(plan, seen.device_classes, order)
    assert first[0] == 0
    met = first[np.sort(np.unique(first, return_index=True)[1])]
    assert (np.diff(met) > 0).all()  # a new device is always the next one
    shuffled = np.array([2, 3, 1, 0])[plan]
    back = align_devices(shuffled, plan, seen.device_classes, np.ones(len(plan)))
    assert (back == plan).all()
    values = judge(given, seen.legalize(np.stack([plan, first, shuffled]))).value
    np.testing.assert_allclose(values, values[0], rtol=0.1)  # transfers that tie go by receiver


def test_the_memory_of_a_segment_takes_no_gradient():
    """What a later segment says changes with an earlier one, but teaches it nothing."""
    torch.manual_seed(0)
    layer = SMALL.build(problem()).task
    x = torch.randn(1, 24, 16, requires_grad=True)  # three segments of 8
    whole = torch.zeros(16 + 8)
    layer(x, whole)[0, 16:].sum().backward()
    assert x.grad[0, 16:].abs().sum() > 0
    assert x.grad[0, :16].abs().sum() == 0
    with torch.no_grad():
        moved = x.clone()
        moved[0, 8:16] += 1.0
        assert (layer(moved, whole)[0, 16:] - layer(x, whole)[0, 16:]).abs().max() > 1e-4
        far = x.clone()
        far[0, :8] += 1.0  # two segments before: one layer does not see it
        assert (layer(far, whole)[0, 16:] - layer(x, whole)[0, 16:]).abs().max() < 1e-6


@pytest.mark.parametrize(
    "tasks",
    [("priority",), ("device",), ("device", "priority"), ("priority", "fusion"), ("fusion",)],
)
def test_tasks_are_decided_alone_and_together(tasks, monkeypatch):
    asked = []

    def fuse(given, device, urgency):
        asked.append(urgency)
        return np.full(device.shape, -1, dtype=np.int32)

    monkeypatch.setattr(transforms, "fuse", fuse, raising=False)
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


def test_without_fusion_in_this_release_the_task_says_so(monkeypatch):
    monkeypatch.delattr(transforms, "fuse", raising=False)
    given = problem()
    with pytest.raises(ConfigError, match="leave the task 'fusion' out"):
        replace(SMALL, tasks=("device", "fusion")).build(given).act(given, 1, seed=0)
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


def test_passes_go_from_modules_over_parts_to_units():
    given = problem("ptb:graph=0", "3xP100+cpu")
    seen, ops = GoObservation.of(given, 10**6), given.graph.ops
    modules, parts = seen.at_level(MODULES), seen.at_level(PARTS)
    assert seen.at_level(UNITS) is None
    assert 2 < len(modules.observation) < len(parts.observation) < len(seen)
    named = [ops[op].module for op in seen.leader]
    for group in range(len(modules.observation)):
        members = {named[at] for at in np.flatnonzero(modules.group == group)}
        assert len(members - {""}) <= 1
    for coarse in (modules.group[parts.group == part] for part in range(len(parts.observation))):
        assert len(set(coarse)) == 1  # a part is a part of one module
    np.testing.assert_allclose(modules.observation.seconds.sum(axis=0), seen.seconds.sum(axis=0))
    plan = np.random.default_rng(0).integers(0, 3, size=len(seen))
    rounded = seen.majority_devices(modules.group, plan)
    work = seen.seconds.min(axis=1)
    for group in range(len(modules.observation)):
        members = modules.group == group
        held = np.bincount(plan[members], work[members], 3)
        assert held[rounded[group]] == pytest.approx(held.max(), abs=1e-5 * work.mean())


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


def test_devices_are_told_by_what_is_on_them():
    """With its own numbers hidden, a unit's device is still not like another one."""
    given = problem("branches:modules=3", "3xP100")
    policy = SMALL.build(given)
    seen = policy.observe(given)
    with torch.no_grad():
        torch.manual_seed(0)
        policy.place.ask.weight.normal_()
        state = torch.zeros(
            1,
            len(seen),
            3,
            pair_features(
                seen.tensors(policy.torch_device), torch.zeros(1, len(seen), dtype=torch.long)
            ).shape[3],
        )
        state[0, : len(seen) // 2, 1, HERE] = 1.0
        state[0, len(seen) // 2 :, 0, HERE] = 1.0
        policy.place.linear.zero_()
        policy.place.pair.weight.zero_()
        x = torch.randn(1, len(seen), SMALL.hidden)
        each = torch.zeros(3, seen.tensors(policy.torch_device)["each"].shape[1])
        logits = policy.place(x, state, each, 0)
        swapped = policy.place(x, state[:, :, [1, 0, 2]], each, 0)
    assert (logits[..., 0] - logits[..., 1]).abs().min() > 1e-6
    torch.testing.assert_close(logits[..., [1, 0, 2]], swapped)


def test_a_plans_order_is_the_longest_way_over_its_own_devices():
    given = problem("layered:ops=60,seed=4,weights=yes", "3xP100", discipline="ready")
    seen, a = GoObservation.of(given, 10**6), given.arrays
    device = seen.legalize(np.random.default_rng(0).integers(0, 3, size=(2, len(seen))))
    order = seen.priorities(device)
    for row in range(2):
        for op in np.flatnonzero(a.scheduled)[::-1].tolist():
            ways = [0.0]
            for tensor in range(a.first_tensor[op], a.first_tensor[op + 1]):
                for reader in a.readers[a.first_reader[tensor] : a.first_reader[tensor + 1]]:
                    link = a.link_class[device[row, op], device[row, reader]]
                    ways.append(
                        -order[row, reader] + (a.transfer[link, tensor] if link >= 0 else 0)
                    )
            own = a.compute[op, device[row, op]]
            assert -order[row, op] == pytest.approx(own + max(ways), rel=1e-9)


@pytest.mark.parametrize(
    "change", [{"attention": False}, {"modulation": False}, {"passes": (UNITS,)}]
)
def test_ablations_are_other_networks(change):
    given = problem()
    whole, less = SMALL.build(given), replace(SMALL, **change).build(given)
    count = [sum(each.numel() for each in policy.parameters()) for policy in (whole, less)]
    assert count[1] < count[0] or "passes" in change
    assert less.act(given, 2, seed=0).placements.shape == (2, given.arrays.ops)


def test_first_plans_are_stretches_one_device_and_a_list_schedule_the_quickest_first():
    given = problem("branches:modules=3", "3xP100+cpu", discipline="ready")
    rank = path_lengths(given.arrays)[0]
    plans = heuristic_plans(given, rank, 3)
    a = given.arrays
    free = a.scheduled & (a.allowed.sum(axis=1) > 1)
    used = [set(plan[free]) for plan in plans]
    assert {0} in used
    assert {0, 1, 2} in used  # not the host
    ends = [list_schedule(given, rank, plan)[1] for plan in plans]
    assert ends == sorted(ends)
    assert (heuristic_plans(given, rank, 1) == plans[:1]).all()
    alone = plans[used.index({0})]  # with nothing to send, it reckons as the simulator does
    exact = judge(given, alone[None], -rank[None]).value[0]
    assert list_schedule(given, rank, alone)[1] == (0.0, pytest.approx(exact, rel=0.05))
    policy = replace(SMALL, starts=3).build(given)
    starts = policy.act(given, 7, seed=0).actions["start/device"]
    assert len(np.unique(starts, axis=0)) == 3
    assert (starts[0] == starts[3]).all()
    with pytest.raises(ConfigError, match="expected 1 to 3"):
        GoConfig(starts=4)


def test_first_plans_keep_to_memory_where_one_device_is_too_small():
    """Each may hold half of what everything on one device needs; they have twice that together."""
    given = problem("layered:ops=60,seed=4,weights=yes", "4xP100")
    a, rank = given.arrays, path_lengths(given.arrays)[0]
    alone = judge(given, given.legalize(np.zeros(a.ops, dtype=int))).peak[0, 0]
    tight = given.with_arrays(capacity=np.full(4, int(alone * 0.5)))
    plans = heuristic_plans(tight, rank, 3)
    over = judge(tight, plans, -rank[None].repeat(3, axis=0)).overflow
    assert over[0] == over.min()
    assert over[0] < over.max()
    assert 1 in {len(set(plan)) for plan in heuristic_plans(given, rank, 3)}
    assert all(len(set(plan)) > 1 for plan in plans)


def test_what_is_told_of_times_is_when_things_would_be_there():
    """By hand, for the unit that reads most: its inputs' arrival on each device, less its start."""
    given = problem(cluster="3xP100+cpu", discipline="ready")
    seen, a = GoObservation.of(given, 10**6), given.arrays
    plan = np.random.default_rng(1).integers(0, 4, size=len(seen))
    run = simulate(given, Plan.of(given, seen.legalize(plan), -seen.path_lengths[0]))
    start, end = seen.unit_times(run.start[None], run.end[None])
    on = seen.tensors(torch.device("cpu"))
    times = torch.as_tensor(start), torch.as_tensor(end)
    found = pair_features(on, torch.as_tensor(plan[None]), times).numpy()[0]
    assert (pair_features(on, torch.as_tensor(plan[None])).numpy()[0, :, :, LATE:] == 0).all()
    edges = list(zip(*(seen.features[name].tolist() for name in ("source", "target")), strict=True))
    unit = max(range(len(seen)), key=lambda at: sum(target == at for _, target in edges))
    for device in range(4):
        arrive = [
            end[0, source] + (0 if link < 0 else seen.features["sent"][link, at])
            for at, (source, target) in enumerate(edges)
            if target == unit
            for link in [a.link_class[plan[source], device]]
        ]
        late = max(arrive) - start[0, unit]
        expected = np.sign(late) * np.log1p(abs(late)) / 2
        assert found[unit, device, LATE] == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert (found[:, :, LATE][np.arange(len(seen)), plan] <= 1e-4).all()  # all had come by then
    assert ((found[:, :, LATE + 2] >= 0) & (found[:, :, LATE + 2] <= 1)).all()


def test_a_policy_that_is_told_times_needs_a_clock():
    given = problem()
    policy = replace(SMALL, timed=True).build(given)
    with pytest.raises(ConfigError, match="must be told when ops run"):
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
