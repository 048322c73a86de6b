"""Imitation: units go where the demonstration has them, and damage is repaired."""

from __future__ import annotations

import numpy as np
import pytest

from placewright import Plan

torch = pytest.importorskip("torch")

from placewright.policies.go.config import GoConfig  # noqa: E402
from placewright.training.algorithms import set_learning_rate  # noqa: E402
from placewright.training.go.imitation import Imitation  # noqa: E402
from placewright.training.go.proposer import GoProposer  # noqa: E402

SMALL = GoConfig(hidden=16, heads=2, segment=16, layers=1, tasks=("device", "priority"))


def test_imitation_puts_units_where_the_teacher_has_them_and_mends_what_was_moved(lessons):
    """Taught on one problem whose strong plan is not its first one."""
    problem = lessons[1].problem
    policy = SMALL.build(problem)
    rng, optimizer = np.random.default_rng([0, 7]), torch.optim.Adam(policy.parameters())
    imitation, rows = Imitation(unit_probability=1.0), []
    for step in range(60):
        set_learning_rate(optimizer, 5e-3 * (1 - 0.9 * step / 60))
        rows.append(imitation.step(policy, optimizer, lessons[1], rng))
    assert rows[-1]["loss"] < 0.7 * rows[0]["loss"]
    first, last = (np.mean([row["pass 0"] for row in part]) for part in (rows[:5], rows[-10:]))
    assert last > 0.85
    assert last > first
    seen = policy.observe(problem)
    strong = policy.act(problem, 1, 0, greedy=True).placements[0]
    free = np.flatnonzero(problem.arrays.scheduled & (problem.arrays.allowed.sum(axis=1) > 1))
    likely = GoProposer(policy).move_probabilities(problem, Plan.of(problem, strong))
    assert likely[np.arange(len(strong)), strong][free].mean() > 0.7
    broken = strong.copy()
    unit = int(seen.unit[free[len(free) // 2]])
    broken[seen.unit == unit] = (broken[seen.unit == unit] + 1) % 2
    moved = np.flatnonzero((broken != strong) & problem.arrays.scheduled)
    likely = GoProposer(policy).move_probabilities(problem, Plan.of(problem, broken))
    assert likely[moved, strong[moved]].mean() > 0.5


def test_damage_is_small_or_large_and_lawful(lessons):
    policy = SMALL.build(lessons[0].problem)
    seen, rng = policy.observe(lessons[0].problem), np.random.default_rng(0)
    strong = lessons[0].placements[0][seen.leader]
    rows = [Imitation()._damage_plan(seen, strong, [], rng) for _ in range(60)]
    assert all(seen.legal[np.arange(len(seen)), row].all() for row in rows)
    moved = [float((row != strong).mean()) for row in rows]
    assert min(moved) < 0.1 < max(moved)
