"""Nested groups: each made of whole groups of the finer one, whole units, heavy tensors inside."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import problems

from placewright import Cluster, Problem
from placewright.transforms import nested_groupings
from placewright.zoo import load


@settings(max_examples=40, deadline=None)
@given(problems())
def test_groups_nest_and_hold_whole_teams(problem):
    groupings = nested_groupings(problem, smallest=2)
    assert np.array_equal(groupings[0].group[problem.arrays.leader], groupings[0].group)
    for finer, coarser in pairwise(groupings):
        assert len(coarser) < len(finer)
        into = np.full(len(finer), -1)
        into[finer.group] = coarser.group
        assert np.array_equal(into[finer.group], coarser.group)


@pytest.mark.parametrize("name", ["transformer:tokens=1", "layered:ops=400,width=20"])
def test_coarse_groups_keep_most_bytes_inside(name):
    problem = Problem(load(name), Cluster.parse("2xP100+cpu"))
    a = problem.arrays
    coarse = nested_groupings(problem)[-1]
    assert 6 <= len(coarse) <= 40
    apart = coarse.group[a.producer[a.inputs]] != coarse.group[a.reader]
    sizes = a.sizes[a.inputs]
    by_chance = 1 - 1 / len(coarse)
    assert sizes[apart].sum() < 0.75 * by_chance * sizes.sum()


def test_training_graphs_whose_units_are_not_convex_nest_too():
    problem = Problem(load("cifar10"), Cluster.parse("2xP100+cpu"))
    assert len(nested_groupings(problem)) >= 3
