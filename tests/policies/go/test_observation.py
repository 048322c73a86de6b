"""What GO observes of a problem: units, levels, priorities."""

from __future__ import annotations

import numpy as np
import pytest

from placewright import Cluster, Problem, judge, zoo

torch = pytest.importorskip("torch")

from placewright.policies.go.levels import (  # noqa: E402
    MODULES,
    PARTS,
    UNITS,
)
from placewright.policies.go.observation import GoObservation  # noqa: E402


def problem(text="layered:ops=40,seed=1,weights=yes", cluster="3xP100+cpu", **how) -> Problem:
    return Problem(zoo.load(text), Cluster.parse(cluster), **how)


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
