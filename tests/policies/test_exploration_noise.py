"""Shared noise: as large as it says, alike for groups that are alike, and nothing for no groups."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.policies.exploration_noise import correlated_noise, similarities

KINDS = np.repeat(np.eye(2, dtype=np.float32), 4, axis=0)
"""Eight groups: four made of one kind of op, then four of another."""
NEAR = (KINDS @ KINDS.T - np.eye(8)).astype(np.float32)
"""They exchange tensors with their like alone."""
BASES = similarities(KINDS, NEAR)


@pytest.fixture(scope="module")
def drawn():
    return correlated_noise(np.random.default_rng(0), BASES, 4000, 2)


def test_each_episode_has_a_size_of_its_own_between_0_and_1(drawn):
    size = drawn.std(axis=(1, 2))
    assert drawn.shape == (4000, 8, 2)
    assert size.max() <= 1.00001
    assert size.mean() == pytest.approx(0.5, abs=0.02)
    assert np.quantile(size, [0.25, 0.75]) == pytest.approx([0.25, 0.75], abs=0.03)
    assert np.abs(drawn.mean(axis=0)).max() < 0.05


def test_groups_that_are_alike_move_together_and_others_do_not(drawn):
    """Alike in two of four ways to draw, and near in order in the third."""
    together = np.corrcoef(drawn[:, :, 0].T)
    assert together[0, 1] > 0.6
    assert together[4, 7] > 0.5
    assert abs(together[0, 7]) < 0.5
    assert together[0, 1] > together[0, 7] + 0.5
    apart = drawn[:, :, 0] - drawn[:, :, 1]  # what is added to all devices of a group is nothing
    assert np.corrcoef(apart.T)[0, 1] > np.corrcoef(apart.T)[0, 7] + 0.5
    assert apart.std() > 0.5


def test_groups_without_any_difference_get_numbers_all_the_same():
    """All of one kind says nothing about kinds: that way to draw gives zeros."""
    same = correlated_noise(
        np.random.default_rng(0), similarities(np.ones((4, 1), np.float32), np.zeros((4, 4))), 40, 2
    )
    assert np.isfinite(same).all()
    still = ~same.any(axis=(1, 2))
    assert 0 < still.sum() < 40


def test_the_same_generator_draws_the_same():
    one, same, other = (
        correlated_noise(np.random.default_rng(seed), BASES, 3, 2) for seed in (1, 1, 2)
    )
    assert (one == same).all()
    assert (one != other).any()


def test_patches_shake_a_few_groups_as_one_and_leave_the_others_alone():
    drawn = correlated_noise(np.random.default_rng(0), BASES, 4000, 2, patches=True)
    shaken = drawn.any(axis=2)
    patched = ~shaken.all(axis=1)
    assert patched.mean() == pytest.approx(0.5, abs=0.03)
    assert shaken[patched].any(axis=1).mean() > 0.99
    for each, at in zip(drawn[patched][:50], shaken[patched][:50], strict=True):
        assert (each[at] == each[at][0]).all()
    alone = shaken[patched & (shaken.sum(axis=1) == 1)]
    assert (alone.sum(axis=0) > 0).all()  # every group is tried
