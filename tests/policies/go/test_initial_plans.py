"""Initial plans of GO: heuristics, and devices that are equal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewright import Cluster, Problem, judge, zoo
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
from placewright.policies.go.observation import GoObservation  # noqa: E402

SMALL = GoConfig(hidden=16, heads=2, segment=8, layers=1)


def problem(text="layered:ops=40,seed=1,weights=yes", cluster="3xP100+cpu", **how) -> Problem:
    return Problem(zoo.load(text), Cluster.parse(cluster), **how)


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
